# SPDX-License-Identifier: Apache-2.0
"""The flight recorder on real traffic: its dumps are complete, alone and against a full capture."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.lab.counters import losing
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.base.control import EXISTING, End, Trigger
from tcpkmon.formats.base.drops import REASON_BITS, SENT_BIT
from tcpkmon.formats.base.tcp import DROPS
from tcpkmon.formats.registry import format_of
from tests.live.capturing import Pair, connected, receive, within
from tests.live.faults import (
    COUNTED,
    TCPKMON,
    TIMEOUT_S,
    Collector,
    Flood,
    Space,
    cpus,
    environment,
    verify,
    wait_until,
)

pytestmark = pytest.mark.timeout(TIMEOUT_S)

MS = 1_000_000
LATE_MS = 2_000
"""By which a busy machine may come late; an idle one is there within 100."""
KEY = ("location", "lport", "rport", "seg_seq", "seg_len", "snd_una", "rcv_nxt", "callvalue")


@contextmanager
def talking(pair: Pair) -> Iterator[None]:
    """Inside, the two exchange some bytes again and again."""
    over = threading.Event()

    def talk() -> None:
        while not over.wait(0.005):
            pair.exchange()

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def dumps(folder: Path) -> list[Path]:
    """The files that have their names."""
    return sorted([*folder.glob("*.pm"), *folder.glob("*.klog")])


def recorder(folder: Path, *arguments: str) -> Collector:
    return Collector("-o", str(folder), *arguments)


def await_dumps(folder: Path, number: int) -> list[Path]:
    wait_until(lambda: len(dumps(folder)) >= number, f"{number} dumps")
    return dumps(folder)


def triggers_of(path: Path) -> list[Trigger]:
    with tcpkmon.open(path) as capture:
        return [entry for _, entry in capture.controls() if isinstance(entry, Trigger)]


def records_of(path: Path, first_ns: int, last_ns: int) -> Counter[tuple[int, ...]]:
    """The records of a time, without what depends on the capture, as the numbers of functions."""
    with tcpkmon.open(path) as capture:
        columns = capture.columns((*KEY, "time_ns"))
        times = columns.pop("time_ns").astype(np.int64)
        inside = (times >= first_ns) & (times < last_ns) & ~capture.control()
        inside &= columns["location"] != EXISTING
        drops = np.isin(columns["location"], DROPS)
        columns["callvalue"][drops] &= np.uint32(REASON_BITS | 1 << SENT_BIT)
        return Counter(zip(*(columns[name][inside].tolist() for name in KEY), strict=True))


def span_of(path: Path) -> tuple[int, int]:
    """The window that the file claims: the header's beginning, and the time of END."""
    with tcpkmon.open(path) as capture:
        settings: Any = capture.settings
        row, last = list(capture.controls())[-1]
        assert isinstance(last, End)
        return settings["recorder"]["from_ns"], int(capture.column("time_ns", row, row + 1)[0])


def test_a_blackout_is_on_file_from_before_to_after(lab: Lab, tmp_path: Path) -> None:
    folder, full = tmp_path / "dumps", tmp_path / "full.pm"
    where = (*within(lab), "--no-existing")
    options = ("--record-last", "1s", "--after", "500ms", "--on", "rto", "--on", "loss_probe")
    pause = threading.Event()
    with (
        connected(lab) as pair,
        recorder(folder, *where, *options).ready() as keeping,
        Collector("-o", str(full), *where).ready() as whole,
    ):
        with talking(pair):
            pause.wait(2.5)
        assert not dumps(folder)
        with losing(lab.b, "meta l4proto tcp"):
            pair.client.sendall(b"x" * 100)
            keeping.says("dump 1")
            pause.wait(0.4)
        path, *others = await_dumps(folder, 1)
        assert keeping.finish().code == 0
        assert whole.finish().code == 0
    assert not others
    report = verify(path, 0)
    assert report["end_reason"] == "dumped" and report["proven_end"]
    assert report["evicted"] > 100
    assert report["window"][0].startswith("complete from ")
    told = triggers_of(path)
    # The tail loss probe comes first, and the timer while the dump is written.
    assert {trigger.number for trigger in told} == {1, 2}
    for trigger in told:
        assert 0 <= trigger.told_ns - trigger.mono_ns < LATE_MS * MS
        assert trigger.conn_id and trigger.count
    first_ns, last_ns = span_of(path)
    at_ns = told[0].mono_ns
    assert 1_000 * MS <= at_ns - first_ns <= (1_200 + LATE_MS) * MS
    assert 500 * MS <= last_ns - at_ns <= (1_100 + LATE_MS) * MS
    # Another capture stamps the same event a little earlier or later.
    inner = records_of(full, first_ns + 5 * MS, last_ns - 5 * MS)
    assert inner.total() > 100
    assert not inner - records_of(path, 0, 1 << 62)
    assert not records_of(path, first_ns + 5 * MS, last_ns - 5 * MS) - records_of(full, 0, 1 << 62)
    # The connection was open before the window: its last state before it is the first entry.
    with tcpkmon.open(path) as capture:
        columns = capture.columns(("location", "conn_id", "lport", "state"))
        states = columns["location"] == EXISTING
        assert pair_ports(columns["lport"][states]) == {"client", "server"}
        assert set(columns["conn_id"][states].tolist()) >= {told[0].conn_id}


def pair_ports(ports: Any) -> set[str]:
    """Both ends have a state: two ports."""
    return {"client", "server"} if len(set(ports.tolist())) == 2 else set(map(str, ports))


def test_dumps_that_are_asked_for_and_the_limit(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    options = ("--record-last", "500ms", "--after", "100ms", "--dumps-per-hour", "1")
    on = ("--on", "snd_cwnd > 1 and seg_len == 77")
    with (
        connected(lab) as pair,
        recorder(folder, *within(lab), *options, *on).ready() as keeping,
        talking(pair),
    ):
        pair.server.sendall(b"x" * 77)
        await_dumps(folder, 1)
        wait_until(lambda: window(keeping)["held_back"] or exchange(pair), "held back")
        assert len(dumps(folder)) == 1
        keeping.says("--dumps-per-hour")
        keeping.send(signal.SIGUSR2)
        await_dumps(folder, 2)
        done = subprocess.run(
            [TCPKMON, "dump", "--collector", str(keeping.pid)],
            env=environment(), text=True, capture_output=True, check=True,
        )  # fmt: skip
        assert "dump 3 in " in done.stdout
        await_dumps(folder, 3)
        told = window(keeping)
        assert told["dumps"] == 3 and not told["dumping"] and told["held_back"]
        assert 0.4 < told["seconds"] < 1 + LATE_MS / 1000
        assert told["newest"] - told["oldest"] == pytest.approx(told["seconds"], abs=0.01)
        assert keeping.finish().code == 0
    for path in dumps(folder):
        verify(path, 0)
    asked = [triggers_of(path) for path in dumps(folder)]
    assert asked[0][0].number == 1
    assert [(t.number, t.pid) for t in asked[1]] == [(0, 0)]
    assert [t.number for t in asked[2]] == [0] and asked[2][0].pid


def exchange(pair: Pair) -> None:
    pair.server.sendall(b"x" * 77)


def window(keeping: Collector) -> dict[str, Any]:
    """What the status says of the recorder."""
    done = subprocess.run(
        [TCPKMON, "status", "--json", "--collector", str(keeping.pid)],
        env=environment(), text=True, capture_output=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)["recorder"]
    return found


def test_what_is_evicted_and_what_is_written_are_all_records(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    pause = threading.Event()
    with (
        connected(lab) as pair,
        recorder(folder, *within(lab), "--record-last", "500ms", "--after", "20s").ready() as one,
    ):
        with talking(pair):
            pause.wait(2.5)
            one.send(signal.SIGUSR2)
            one.says("dump 1")
            pause.wait(0.2)
        done = one.finish()
    assert done.code == 0
    (path,) = dumps(folder)
    # The capture ended before the dump did: its last ledger is exact.
    report = verify(path, 0)
    assert report["end_reason"] == "asked"
    passed = re.search(r"([\d,]+) records passed the recorder", done.stderr)
    assert passed is not None
    rows = [row for row in report["rows"] if row["pending"] == 0]
    held = sum(row["in_file"] for row in rows if row["location"] != EXISTING)
    assert report["evicted"] > 100
    assert report["evicted"] + held == int(passed[1].replace(",", ""))


def test_all_calls_are_in_dumps_of_logs_or_evicted(lab: Lab, tmp_path: Path) -> None:
    folder, made = tmp_path / "dumps", 0

    def send(count: int) -> None:
        nonlocal made
        made += count
        for _ in range(count):
            pair.client.send(b"x")
        receive(pair.server, count)

    options = ("--record-last", "1s", "--after", "300ms", "--dumps-per-hour", "1", "--no-existing")
    with connected(lab) as pair, recorder(
        folder, "--format", "klogger", *within(lab), "--locations", "SEND_CALL,STATE_CHANGE",
        *options, "--on", f"send_call and rport == {pair.server_port}",
    ).ready() as one:  # fmt: skip
        assert not dumps(folder)
        send(100)
        await_dumps(folder, 1)
        send(1000)
        time.sleep(2.5)
        send(77)
        one.send(signal.SIGUSR2)
        await_dumps(folder, 2)
        assert one.finish().code == 0
    reports = [format_of(path).verify(path)[-1] for path in dumps(folder)]
    for report in reports:
        assert not report.problems and report.exit_code == 0, report.problems
        assert report.window[0].startswith("complete from"), report.window
        assert report.end_reason == "dumped"
    first, second = reports
    assert 0 < first.totals.in_file <= 100 and first.evicted == 0
    assert second.evicted >= 1000 and second.totals.in_file >= 77
    assert second.evicted + second.totals.in_file == made
    assert "asked for by SIGUSR2" in second.window[1]
    with open_log(dumps(folder)[0]) as log:
        fired = next(iter(log.choose("TRIGGER")))
        assert fired["number"] == 1 and fired["count"] >= 1
        assert 0 <= fired["told_ns"] - fired["mono_ns"] < LATE_MS * MS
        assert sum(1 for event in log.choose("SNAPSHOT")) == first.totals.in_file


def test_a_loss_in_the_window_is_told_and_one_before_it_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    pause = threading.Event()
    with Space() as space, Flood(space) as flood:
        where = ("--netns", space.path, "--ports", str(flood.port), "--no-existing", *COUNTED)
        options = ("--record-last", "1s", "--after", "0", "--buffer-size", "0.03")
        with recorder(folder, *where, *options).ready() as keeping:
            flood.begin(cpus()[0], 30_000)
            flood.advance(1_000)
            keeping.pause()
            pause.wait(0.3)
            keeping.resume()
            flood.end()
            keeping.send(signal.SIGUSR2)
            await_dumps(folder, 1)
            pause.wait(3)
            flood.begin(cpus()[0], 100)
            flood.end()
            keeping.send(signal.SIGUSR2)
            await_dumps(folder, 2)
            assert keeping.finish().code == 0
    first, second = dumps(folder)
    report = verify(first, 3)
    assert report["lost_total"] > 100 and report["problems_total"] == 0
    assert report["window"][0].startswith("not complete from ")
    report = verify(second, 0)
    assert report["evicted"] > 100 and report["lost_total"] == 0


def test_a_quiet_connection_does_not_stall(tmp_path: Path, lab: Lab) -> None:
    """All that it sent is acknowledged. One whose peer cannot answer does stall."""
    folder = tmp_path / "dumps"
    options = ("--record-last", "2s", "--after", "100ms", "--on", "stall > 300ms")
    with (
        recorder(folder, *within(lab), *options).ready() as collector,
        connected(lab) as quiet,
        connected(lab) as other,
    ):
        port = other.client_port
        quiet.exchange()
        time.sleep(1.2)
        assert not dumps(folder)
        with losing(lab.b, "meta l4proto tcp"):
            other.client.sendall(bytes(100))
            (path,) = await_dumps(folder, 1)
        assert collector.finish().code == 0
    (trigger,) = triggers_of(path)
    with tcpkmon.open(path) as capture:
        columns = capture.columns(("conn_id", "lport"))
    ports = columns["lport"][columns["conn_id"] == trigger.conn_id]
    assert port in ports
