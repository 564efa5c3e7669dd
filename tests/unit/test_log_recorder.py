# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of Klogger logs: a dump is complete, and proves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tcpkmon
from tcpkmon.collector.plan.event_triggers import EventWatch, compile_event_triggers
from tcpkmon.collector.writer.dump import Keeping
from tcpkmon.collector.writer.recorder import Recorder as RecorderStream
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.base.control import EndReason
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.klogger.encode import encode_preamble
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report
from tests.unit.makers import CPUS, LogMaker


class Recorder(LogMaker):
    """A capture that keeps the last second."""

    def __init__(
        self, folder: Path, *triggers: str, after_s: float = 0.0, last_bytes: int = 1 << 20,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.triggers = triggers
        self.after_s = after_s
        self.last_bytes = last_bytes
        super().__init__(folder, settings=settings)

    def open_stream(self) -> RecorderStream:
        keeping = Keeping(1.0, self.last_bytes, self.after_s, self.triggers, 100)
        stream = RecorderStream(STREAMS["klogger"](), self.folder, keeping)
        stream.read_books = self.books
        self.stream = stream
        names = [slot.name for slot in self.layout.logged]
        found = compile_event_triggers(
            self.triggers, self.layout, None, names, self.layout.entry_size
        )
        stream.watch = EventWatch(found) if found else None
        return stream

    def books(self):  # type: ignore[no-untyped-def]
        return super().books() if hasattr(self.stream.codec, "order") else None

    def second(self, count: int = 10, lose: int = 0) -> None:
        """A second passes: a block of the window."""
        self.records(count, lose)
        self.now_ns += 10**9
        self.stream.release(self.now_ns)
        self.checkpoint()


def change_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a log's header, and make its checksum right."""
    data = path.read_bytes()
    with LogReader(path) as reader:
        header, end = reader.header, reader._data_offset
    change(header)
    path.write_bytes(encode_preamble(header) + data[end:])


def verify(folder: Path) -> list[Report]:
    """Of each dump, that of all its logs."""
    found = [format_of(one.path(folder)).verify(one.path(folder)) for one in find_segments(folder)]
    return [reports[-1] for reports in found]


def whats(report: Report) -> str:
    return "; ".join(problem.what for problem in report.problems)


def pings(folder: Path, number: int = 0) -> list[int]:
    with open_log(find_segments(folder)[number].path(folder)) as log:
        return sorted(event["n"] for event in log.choose("PING"))


def test_a_dump_has_the_window_and_proves_it(tmp_path: Path) -> None:
    made = Recorder(tmp_path / "out", "PING and n == 115")
    for _ in range(5):
        made.second()
    assert not find_segments(tmp_path / "out")
    made.records(20)
    made.now_ns += 10
    made.stream.release(made.now_ns)
    made.close()
    (report,) = verify(tmp_path / "out")
    assert not report.problems and report.exit_code == 0, whats(report)
    assert report.end_reason == "dumped" and report.proven_end
    assert report.window[0].startswith("complete from 20") and report.evicted > 0
    assert f"{report.evicted} records before that are evicted" in report.window[0]
    assert "trigger: PING and n == 115" in report.window[1]
    found = pings(tmp_path / "out")
    assert found == list(range(report.evicted, 100 + 20 * CPUS))
    with tcpkmon.open(find_segments(tmp_path / "out")[0].path(tmp_path / "out")) as reader:
        assert reader.complete and not reader.lost and not reader.damaged
    *_, last, _ = format_of(tmp_path / "out").verify(tmp_path / "out")
    assert last.exit_code == 0 and last.window


def test_evicted_and_lost_are_told_apart(tmp_path: Path) -> None:
    made = Recorder(tmp_path / "out")
    for _ in range(3):
        made.second(lose=2)
    made.second()
    made.stream.ask(4711)
    made.second(lose=3)
    made.close()
    (report,) = verify(tmp_path / "out")
    assert not report.problems, whats(report)
    assert report.exit_code == 3 and report.window[0].startswith("not complete from")
    assert "asked for by process 4711" in report.window[1]
    lost = report.totals.lost["ring full"]
    assert 3 * CPUS <= lost < 9 * CPUS


def test_an_end_while_a_dump_is_written(tmp_path: Path) -> None:
    made = Recorder(tmp_path / "out", "PING and n == 30", after_s=60.0)
    for _ in range(4):
        made.second()
    made.close(EndReason.DURATION)
    (report,) = verify(tmp_path / "out")
    assert not report.problems and report.exit_code == 0, whats(report)
    assert report.end_reason == "duration"
    assert pings(tmp_path / "out")[-1] == 4 * 10 * CPUS - 1


def test_two_dumps_and_a_switch_between(tmp_path: Path) -> None:
    made = Recorder(tmp_path / "out")
    made.second()
    made.stream.ask()
    made.second()
    made.switch(0)
    made.second(0)
    made.second(0)
    made.stream.pause()
    made.second(0)
    made.stream.ask()
    made.now_ns += 10**9
    made.stream.release(made.now_ns)
    made.close()
    reports = verify(tmp_path / "out")
    assert [report.exit_code for report in reports] == [0, 0], [*map(whats, reports)]
    assert not reports[0].off and reports[1].off
    assert any("SIGUSR2" in line for line in reports[0].window)


@pytest.mark.parametrize("lose", [0, 3])
def test_what_two_dumps_hold_is_read_once(tmp_path: Path, lose: int) -> None:
    made = Recorder(tmp_path / "out")
    for _ in range(3):
        made.second()
    made.stream.ask()
    made.records(4, lose)
    made.now_ns += 10
    made.stream.release(made.now_ns)
    made.checkpoint()
    made.records(3)
    made.now_ns += 10
    made.stream.release(made.now_ns)
    made.stream.ask()
    made.second()
    made.close()
    first, second = (pings(tmp_path / "out", number) for number in range(2))
    assert set(first) & set(second), "they overlap"
    with open_log(tmp_path / "out") as log:
        every = sorted(event["n"] for event in log.choose("PING"))
        assert not log.problems
    assert every == sorted({*first, *second})


def test_who_asks_for_a_dump_does_not_hold_back_a_trigger(tmp_path: Path) -> None:
    made = Recorder(tmp_path / "out", "PING and n == 45")
    made.stream._keeping = replace(made.stream._keeping, dumps_per_hour=1)  # type: ignore[attr-defined]
    made.second()
    made.stream.ask()
    made.second()
    made.second()
    made.second()
    made.close()
    one, two = verify(tmp_path / "out")
    assert "SIGUSR2" in one.window[1] and "PING and n == 45" in two.window[1]


def test_a_dump_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    made = Recorder(tmp_path / "out")
    told: list[str] = []
    made.stream.say = told.append  # type: ignore[attr-defined]
    made.second()
    assert made.stream.segments is not None
    ask = made.stream.segments.ask

    def refuse(request: int, data: bytes) -> int:
        if request == 3 and data.endswith(b"/1"):
            raise OSError(28, "No space left on device")
        return ask(request, data)

    made.stream.segments.ask = refuse
    made.stream.ask()
    made.second()
    made.close()
    assert not (tmp_path / "out").exists(), "it is empty"
    assert any("could not be written" in text for text in told), told


def test_what_was_evicted_is_checked(tmp_path: Path) -> None:
    """A header that names other serials than the ledger counts is found."""
    made = Recorder(tmp_path / "out")
    for _ in range(4):
        made.second()
    made.stream.ask()
    made.second()
    made.close()
    (segment,) = find_segments(tmp_path / "out")
    path = segment.path(tmp_path / "out") / "kernlog.dump.cpu0"
    change_header(path, lambda header: header["settings"]["segment"]["previous"]["serials"].update(
        {"0": 19}))  # fmt: skip
    (report,) = format_of(path).verify(path)
    assert "serials before this file" in whats(report)


@pytest.mark.parametrize("cpu", [0, 1])
def test_window_of_one_log(tmp_path: Path, cpu: int) -> None:
    made = Recorder(tmp_path / "out")
    made.second()
    made.stream.ask()
    made.second()
    made.close()
    (segment,) = find_segments(tmp_path / "out")
    path = segment.path(tmp_path / "out") / f"kernlog.dump.cpu{cpu}"
    (report,) = format_of(path).verify(path)
    assert report.window[0].startswith("complete from") and report.exit_code == 0
