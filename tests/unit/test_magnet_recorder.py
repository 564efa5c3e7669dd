# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of MAGNeT files: a dump is complete, and proves it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tcpkmon
from tcpkmon.collector.writer.dump import MOST_TOLD, Hit, Keeping
from tcpkmon.collector.writer.recorder import Recorder
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.base.control import Change, EndReason, Mark
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.magnet.control import encode_header
from tcpkmon.formats.magnet.header import MagnetFile
from tcpkmon.formats.magnet.layout import FIRST_EVENT, MARK
from tcpkmon.formats.magnet.reader import open_segments
from tcpkmon.formats.magnet.walk import Entry, Walk
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report, repair_magnet, verify_magnet
from tests.unit.magnet_builder import MagnetBuilder

S = 10**9


class Watch:
    """Fires what a test puts into `due`."""

    def __init__(self) -> None:
        self.due: list[Hit] = []
        self.seen = 0

    def feed(self, rows: Any, times_ns: Any) -> list[Hit]:
        assert len(rows) == len(times_ns)
        self.seen += len(rows)
        due, self.due = self.due, []
        return due

    def tick(self, now_ns: int) -> list[Hit]:
        return []


class Recording(MagnetBuilder):
    """It keeps 3 seconds, and writes one more after a trigger."""

    def __init__(self, folder: Path, data: bool = False, **keeping: Any) -> None:
        given = {"last_s": 3.0, "last_bytes": 1 << 20, "after_s": 1.0, "dumps_per_hour": 9}
        texts = ("IP_SEND and size > 1000", 'MAGNET_CONNECTION and rport == 443 and comm == "x"')
        self.keeping = Keeping(**{**given, "triggers": texts, **keeping})
        self.watch, self.said = Watch(), list[str]()
        super().__init__(folder, data, rotates=True)

    def open_stream(self, rotates: bool) -> Recorder:
        stream = Recorder(STREAMS["magnet"](), self.path, self.keeping)
        stream.read_books = self.books
        stream.watch, stream.say = self.watch, self.said.append
        return stream

    def books(self) -> Any:
        return super().books() if hasattr(self, "stream") else None

    def release(self) -> MagnetBuilder:
        self.stream.release(self.now_ns)
        self.stream.settle()
        return self

    def second(self, count: int = 20, lose: int = 0) -> None:
        for cpu, name in enumerate(("IP_SEND", "DEV_SEND")):
            if lose:
                self.lose(name, cpu, lose)
            self.log(name, cpu, count)
        self.now_ns += S
        self.checkpoint()

    def end(self) -> list[Path]:
        self.write()
        self.stream.discard()
        if not self.path.exists():
            return []
        return [one.path(self.path) for one in find_segments(self.path)]


def check(path: Path, code: int = 0) -> Report:
    report = verify_magnet(path)
    assert not report.problems and report.exit_code == code, (report.verdict, report.problems)
    return report


def kinds_of(path: Path) -> list[str]:
    with MagnetFile(path) as file:
        return [found.kind for found in Walk(file) if isinstance(found, Entry)]


def settings_of(path: Path) -> Any:
    with MagnetFile(path) as file:
        return file.header["settings"]


def test_nothing_is_written_without_a_trigger(tmp_path: Path) -> None:
    made = Recording(tmp_path / "d")
    for _ in range(5):
        made.second()
    window = made.stream.window()
    assert window is not None and window["evicted"] == 2 * 40 and window["records"] == 3 * 40
    assert made.end() == [] and made.watch.seen == 5 * 40
    assert "200 records passed the recorder; 0 dumps" in made.stream.describe_end()


@pytest.mark.parametrize("lose", [0, 3])
def test_a_dump_has_the_window_and_what_comes_after(tmp_path: Path, lose: int) -> None:
    made = Recording(tmp_path / "d")
    for _ in range(8):
        made.second(lose=lose)
    made.watch.due.append(Hit(1, made.now_ns, 7, 2))
    made.second(lose=lose)
    made.second(lose=lose)
    made.second()
    (path,) = made.end()
    report = check(path, 3 if lose else 0)
    assert report.end_reason == "dumped" and report.proven_end
    held = report.totals.in_file
    assert report.evicted + held == 9 * 40 and 4 * 40 <= held <= 6 * 40
    assert report.lost_total == held // 20 * lose
    assert report.window[0].startswith("not complete" if lose else "complete from 2023")
    assert f"{report.evicted} records before that are evicted" in report.window[0]
    assert "trigger: IP_SEND and size > ?, connection 7 (2 at once), at 2023" in report.window[1]
    with tcpkmon.open(path) as reader:
        assert reader.complete and not reader.damaged
        assert reader.lost == report.lost_total
    assert f"dump: {path.name}" in made.said
    previous = settings_of(path)["segment"]["previous"]
    assert previous["evicted"] and sum(previous["serials"].values()) == report.evicted * (
        20 + lose
    ) // 20


def test_values_of_triggers_are_as_private_as_the_file(tmp_path: Path) -> None:
    hidden = ["IP_SEND and size > ?", "MAGNET_CONNECTION and rport == ? and comm == ?"]
    for data in (False, True):
        made = Recording(tmp_path / str(data), data)
        made.second()
        made.stream.ask(4711)
        (path,) = made.end()
        recorder = settings_of(path)["recorder"]
        assert (recorder["triggers"] == hidden) is not data
        assert "asked for by process 4711" in check(path).window[1]


def test_a_gap_that_shows_later_belongs_before_the_window(tmp_path: Path) -> None:
    made = Recording(tmp_path / "d")
    made.second()
    made.lose("IP_SEND", 0, 5)
    for _ in range(5):
        made.log("DEV_SEND", 1, 5)
        made.now_ns += S
        made.checkpoint()
    made.log("IP_SEND", 0, 5)
    made.stream.ask()
    made.second()
    made.second()
    (path,) = made.end()
    report = check(path)
    assert report.window[0].startswith("complete")
    assert "5 numbers missing here are of records lost before it" in report.window[1]


def test_two_dumps_marks_and_a_switch(tmp_path: Path) -> None:
    made = Recording(tmp_path / "d", last_s=1.0)
    point = made.places["DEV_SEND"][0]
    made.second()
    made.stream.changed([Change(0, point, made.now_ns - 5, made.now_ns, 1, 0, 0)])
    for _ in range(4):
        made.second()
    made.stream.ask()
    made.stream.marks([Mark(5, "")], 99)
    made.second()
    made.second()
    for _ in range(4):
        made.second()
    made.stream.ask()
    made.second()
    first, second = made.end()
    assert kinds_of(first).count("CHANGE") == 1 and kinds_of(second).count("CHANGE") == 1
    reports = [check(first), check(second)]
    assert all(report.off for report in reports)
    assert [report.end_reason for report in reports] == ["dumped", "dumped"]
    assert reports[1].evicted > reports[0].evicted + reports[0].totals.in_file
    *_, last = format_of(tmp_path / "d").verify(tmp_path / "d")
    assert last.exit_code == 0
    with open_segments(first) as reader:
        marks = [batch.numbers == MARK for batch in reader.batches()]
        assert sum(int(one.sum()) for one in marks) == 1
    assert made.stream.bytes_written() == first.stat().st_size + second.stat().st_size


def test_triggers_that_are_not_named_are_counted(tmp_path: Path) -> None:
    made = Recording(tmp_path / "d")
    made.watch.due += [Hit(1, made.now_ns, 1, 1)] * (MOST_TOLD + 5)
    made.second()
    (path,) = made.end()
    assert kinds_of(path).count("TRIGGER") == MOST_TOLD + 1
    assert f"and {MOST_TOLD - 10 + 5} more triggers" in check(path).window


def test_the_end_of_the_capture_ends_a_dump(tmp_path: Path) -> None:
    made = Recording(tmp_path / "d", after_s=60.0)
    made.second()
    made.stream.ask()
    made.lose("IP_SEND", 0, 3)
    made.write(EndReason.DURATION)
    made.stream.discard()
    (path,) = (one.path(made.path) for one in find_segments(made.path))
    report = check(path, 3)
    assert report.end_reason == "duration" and report.totals.lost["ring full"] == 3


def forge(path: Path, change: Callable[[dict[str, Any]], None]) -> Report:
    """Change a file's header, with a checksum that is right."""
    data = path.read_bytes()
    with MagnetFile(path) as file:
        header, first = dict(file.header), file.first * file.layout.size
        change(header)
        path.write_bytes(encode_header(header, file.layout) + data[first:])
    return verify_magnet(path)


def test_what_a_forged_dump_says_does_not_add_up(tmp_path: Path) -> None:
    made = Recording(tmp_path / "d")
    for _ in range(8):
        made.second()
    made.stream.ask()
    (path,) = made.end()
    whole = path.read_bytes()

    def previous(header: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = header["settings"]["segment"]["previous"]
        return found

    def more(header: dict[str, Any]) -> None:
        previous(header)["serials"]["0"] += 5

    def whole_file(header: dict[str, Any]) -> None:
        previous(header)["evicted"] = False

    def no_time(header: dict[str, Any]) -> None:
        header["settings"]["recorder"]["from_ns"] = "x"

    for change, what in (
        (more, "serials before this file"),
        (no_time, "description of this dump cannot be read"),
    ):
        report = forge(path, change)
        assert any(what in problem.what for problem in report.problems), report.problems
        path.write_bytes(whole)
    assert not forge(path, whole_file).window


def test_a_folder_of_dumps_has_each_record_once(tmp_path: Path) -> None:
    made = Recording(tmp_path / "d", after_s=0.5)
    for _ in range(4):
        made.second(lose=2)
    made.stream.ask()
    made.second(lose=2)
    made.stream.ask()  # the windows overlap
    made.second(lose=1)
    for _ in range(6):
        made.second()
    made.stream.ask()  # and this one does not
    made.second()
    paths = made.end()
    records = [check(path, 3).totals.in_file for path in paths[:2]]
    assert len(paths) == 3 and sum(records) > 6 * 40
    with open_segments(made.path) as reader:
        for _ in range(2):
            times, serials = list[int](), list[int]()
            for batch in reader.batches():
                times += batch.times_ns[batch.numbers >= FIRST_EVENT].tolist()
                serials += batch.serials.tolist()
            lost = reader.losses.lost
    assert serials == sorted(set(serials))
    assert lost == 4 * (5 - check(paths[0], 3).evicted // 40) + 2
    assert len(times) == len(set(times)) and times == sorted(times)
    third = check(paths[2]).totals.in_file
    first_evicted = check(paths[0], 3).evicted
    assert len(times) == 6 * 40 - first_evicted + third


def test_a_dump_is_repaired(tmp_path: Path) -> None:
    made = Recording(tmp_path / "d")
    for _ in range(5):
        made.second(200)
    made.stream.ask()
    made.second()
    made.second()
    (path,) = made.end()
    data = bytearray(path.read_bytes())
    data[-3000] ^= 1
    path.write_bytes(data)
    assert verify_magnet(path).exit_code == 5
    done = repair_magnet(path, tmp_path / "new.magnet")
    assert not done.report.problems and done.report.evicted, done.report.problems
    assert done.report.window[0].startswith("not complete")
