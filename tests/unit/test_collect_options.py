# SPDX-License-Identifier: Apache-2.0
"""Small parts of collect that need no kernel: durations, stopping, status, printing."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tcpkmon.collector import capturing
from tcpkmon.collector.commands import collect
from tcpkmon.collector.control.handlers import Handlers
from tcpkmon.collector.plan import columns
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.recorder import Recorder
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.session.stop_signals import Stopping
from tcpkmon.collector.writer import stream
from tcpkmon.collector.writer.record_printer import Printer
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.base import cli
from tcpkmon.formats.base.control import EndReason
from tcpkmon.formats.base.errors import TcpkmonError, UsageError
from tcpkmon.formats.base.quantities import parse_duration
from tcpkmon.formats.registry import FILE_FORMATS


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10), ("10s", 10), ("250ms", 0.25), ("1.5m", 90), ("1h", 3600)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1s", "ten", "10 days", "1e3", "nan"])
def test_bad_durations(text):
    with pytest.raises(UsageError, match="duration"):
        parse_duration(text)


def test_every_file_format_has_a_stream_and_is_offered():
    offered = next(p for p in collect.command.params if p.name == "file_format")
    # A MAGNeT file is made of a log when the capture ends.
    assert [*stream.STREAMS, "magnet"] == list(offered.type.choices)
    assert {*stream.STREAMS, "magnet"} == set(FILE_FORMATS)
    assert offered.default == "psc"


def test_a_signal_asks_to_stop_and_a_second_one_hurries():
    got: list[int] = []
    woken: list[bool] = []
    with Stopping() as stopping, stopping.waking(lambda: woken.append(stopping.due())):
        stopping.forward = got.append
        assert not stopping.due()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping.due() and stopping.reason is EndReason.ASKED and not stopping.hurry
        assert woken == [True], "who waits is woken when there is a reason to stop"
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping.hurry
    assert got == [signal.SIGTERM, signal.SIGINT]


def test_sigusr1_asks_for_a_mark_and_stops_nothing():
    before = signal.getsignal(signal.SIGUSR1)
    woken: list[int] = []
    with Stopping() as stopping:
        with stopping.waking(lambda: woken.append(stopping.marks)):
            for count in (1, 2):
                os.kill(os.getpid(), signal.SIGUSR1)
                assert stopping.marks == count == woken[-1]
        os.kill(os.getpid(), signal.SIGUSR1)
        assert woken == [1, 2], "nobody is woken who does not wait any more"
        assert not stopping.due()
    assert signal.getsignal(signal.SIGUSR1) is before


def test_the_duration_counts_from_its_start():
    with Stopping(duration_s=1e-9) as stopping:
        assert not stopping.due() and stopping.remaining_s(5) == 5
        stopping.start_clock()
        while not stopping.due():
            assert stopping.remaining_s(5) <= 1e-9
        assert stopping.reason is EndReason.DURATION
        stopping.ask(EndReason.COUNT)
        assert stopping.reason is EndReason.DURATION, "the first reason stays"


def test_printed_records_are_one_harmless_line_each():
    schema = columns.load_schema()
    chosen = columns.choose_columns(schema.event(columns.EVENT), "full")
    made = columns.make_layout(schema, chosen, ())
    entries = np.zeros(3, made.dtype)
    entries["location"] = [14, 228, 9]
    entries["callvalue"] = [2, 0, 2**32 - 11]
    entries["lport"], entries["rport"] = 5001, 443
    entries["comm"] = np.void(b"\x1b[31mevil\n\0".ljust(16, b"\0"))
    entries["state"] = 1
    out = io.StringIO()
    failed: list[OSError] = []
    Printer(made.schema, made.columns, out, failed.append).write(entries)
    lines = out.getvalue().splitlines()
    assert len(lines) == 2, "a control entry is no record"
    assert " RTO " in lines[0] and ":5001 > " in lines[0] and "state=TCP_ESTABLISHED" in lines[0]
    assert "callvalue=-11" in lines[1], "an error is negative"
    assert "\x1b" not in out.getvalue() and "evil" in lines[0]
    assert not failed


def test_printed_text_is_one_word() -> None:
    """A command names itself: it must not be taken for other columns."""
    schema = columns.load_schema()
    chosen = columns.choose_columns(schema.event(columns.EVENT), "comm")
    made = columns.make_layout(schema, chosen, ())
    names = {b"plain-1:x": "plain-1:x", b"a state=FIN": '"a state=FIN"', b'q"\\': r'"q\"\\"'}
    entries = np.zeros(len(names), made.dtype)
    entries["location"] = 14
    entries["comm"] = [np.void(name.ljust(16, b"\0")) for name in names]
    out = io.StringIO()
    Printer(made.schema, made.columns, out, [].append).write(entries)
    printed = [line.partition("comm=")[2] for line in out.getvalue().splitlines()]
    assert [text.split(" snd_cwnd=")[0] for text in printed] == list(names.values())


@pytest.mark.parametrize("words", [["--schema", "sched"], ["-o", "-"]])
def test_why_needs_a_capture_of_tcp_that_it_can_read(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(collect.command, ["--why", *words, "--", "true"]) == 2
    assert "--why" in capsys.readouterr().err


READY_AND_DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(int(sys.argv[1]), b"x")
time.sleep(60)
"""


def hangs(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(
        capturing.isolated, "command", lambda *words: [sys.executable, "-c", code, words[2]]
    )


def test_at_its_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hangs(monkeypatch, "import time; time.sleep(60)")
    with pytest.raises(TcpkmonError, match=r"did not start within 0\.2 s"):
        capturing.launch([], tmp_path / "a.pm", within_s=0.2)


def test_at_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hangs(monkeypatch, READY_AND_DEAF)
    with (
        pytest.raises(TcpkmonError, match=r"did not end within 0\.2 s"),
        capturing.launch([], tmp_path / "a.pm", within_s=30) as capture,
    ):
        capture.stop(0.2)
    assert capture._process.poll() == -signal.SIGKILL


class Marking:
    """A stream and a kernel that note the marks."""

    def __init__(self, largest_mark: int) -> None:
        self.largest_mark = largest_mark
        self.numbers: list[int] = []
        self.on: dict[str, int] = {}
        self.told: dict[str, Any] = {}

    def marks(self, marks: Any, pid: int) -> bool:
        self.numbers += [mark.number for mark in marks]
        return True

    buffer_bytes = low_water_percent = shed_level = 0
    cpus = ()

    def nothing(self, *_: Any) -> None:
        return

    read_switches = switched = changed = pause = push = release = free = resume = resize = nothing

    def limits(self) -> dict[int, int]:
        return {}

    def filters_in_force(self) -> int:
        return 0

    def drain(self) -> list[Any]:
        return []

    def states(self) -> dict[str, tuple[int, int]]:
        return {name: (number, state) for number, (name, state) in enumerate(self.on.items())}

    def switch(self, names: list[str], on: bool) -> None:
        self.on.update(dict.fromkeys(names, int(on)))

    def describe(self, settings: dict[str, Any]) -> None:
        self.told |= settings


@pytest.mark.parametrize(("name", "bits"), [("psc", 32), ("klogger", 64)])
def test_a_mark_that_does_not_fit_is_refused(name: str, bits: int) -> None:
    noted = cast(Any, Marking(STREAMS[name]().largest_mark))
    request = Request(Filters(), "x.pm")
    handlers = Handlers(request, noted, noted, noted, lambda: {}, lambda: {})
    handlers.mark((1 << bits) - 1, 7)
    with pytest.raises(UsageError, match=f"mark {1 << bits} is too large for this file"):
        handlers.mark(1 << bits, 7)
    assert noted.numbers == [(1 << bits) - 1]


@pytest.mark.parametrize(
    ("names", "left"),
    [(None, {"A": 1, "B": 1, "C": -1}), (["B"], {"A": 0, "B": 1, "C": -1})],
)
def test_what_a_killed_process_switched_off_can_be_switched_on(
    names: list[str] | None, left: dict[str, int]
) -> None:
    """All was off when it was killed, and is now: logging, or each event."""
    kernel = cast(Any, Marking(1))
    kernel.on = {"A": 0, "B": 0, "C": -1}
    handlers = Handlers(Request(Filters(), "x.pm"), kernel, kernel, kernel, dict, dict)
    assert not handlers.enabled
    handlers.set_enabled(names, True)
    assert handlers.enabled
    kernel.on["C"] = -1  # a place that this kernel does not have
    assert kernel.on == left


def test_the_next_file_says_how_large_the_rings_are() -> None:
    kernel = cast(Any, Marking(1))
    handlers = Handlers(Request(Filters(), "x.pm"), kernel, kernel, kernel, dict, dict)
    handlers.set_enabled(None, False)
    handlers.set_buffer_bytes(1 << 20)
    handlers.set_low_water(40)
    assert kernel.told == {"buffer_bytes": 1 << 20, "low_water_percent": 40}
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    with pytest.raises(UsageError, match="are the most for a capture that runs"):
        handlers.set_buffer_bytes(memory // 16)  # of each of several CPUs
    assert kernel.told == {"buffer_bytes": 1 << 20, "low_water_percent": 40}


class Changing(Marking):
    """A stream, rings and a kernel whose filters change, and that write dumps."""

    dumps = 0

    @property
    def filters(self) -> Filters:
        return Filters()

    def set_filters(self, filters: Filters) -> None:
        return

    def ask(self, pid: int) -> int:
        self.dumps += 1
        return self.dumps


def test_the_group_makes_no_files_by_filters() -> None:
    changing = cast(Any, Changing(1))
    handlers = Handlers(Request(Filters(), "x"), changing, changing, changing, dict, dict)
    begun: list[str] = []
    handlers.next_file = begun.append
    for _ in range(5):
        handlers.set_filters({"ports": "1"}, is_owner=False)
    assert begun == []
    handlers.set_filters({"ports": "2"})
    assert begun == ["filters"]


def test_the_group_gets_as_many_dumps_as_triggers_do() -> None:
    changing = cast(Any, Changing(1))
    request = Request(Filters(), "x", recorder=Recorder(dumps_per_hour=2))
    handlers = Handlers(request, changing, changing, changing, dict, dict)
    for _ in range(2):
        handlers.dump(7, is_owner=False)
    with pytest.raises(TcpkmonError, match="asked for 2 dumps within an hour"):
        handlers.dump(7, is_owner=False)
    assert handlers.dump(7)["dump"] == 3
