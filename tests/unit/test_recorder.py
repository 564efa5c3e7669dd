# SPDX-License-Identifier: Apache-2.0
"""The flight recorder behind the rings: what it keeps, evicts and writes, by the files alone; of
PSC files and logs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.commands import collect
from tcpkmon.collector.plan.event_triggers import EventWatch, compile_event_triggers
from tcpkmon.collector.plan.request import Request, check_request
from tcpkmon.collector.writer.dump import MOST_TOLD, Hit, Keeping
from tcpkmon.collector.writer.file_sink import FileSink
from tcpkmon.collector.writer.recorder import Recorder
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.base.control import EXISTING, EndReason, Loss, Mark, Trigger
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.klogger.encode import encode_preamble
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report
from tests.fuzz.targets import agree
from tests.unit.makers import CPUS, LOCATION, WAIT_S, LogMaker, Maker
from tests.unit.test_chain import whats

S = 10**9
KEEPING = Keeping(10.0, 1 << 20, 2.0, ("rto", "rst"), 3)


class Watch:
    """Fires what a test puts into `due`."""

    def __init__(self) -> None:
        self.due: list[Hit] = []

    def feed(self, rows: Any, first_ns: int, present: Any = None) -> list[Hit]:
        return []

    def tick(self, now_ns: int) -> list[Hit]:
        due, self.due = self.due, []
        return due


class Recording(Maker):
    """A flight recorder; its clock is `clock_ns`."""

    def __init__(
        self, folder: Path, keeping: Keeping = KEEPING, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.keeping, self.said = keeping, list[str]()
        self.watch = Watch()
        super().__init__(folder, settings=settings)

    def open_stream(self) -> Recorder:
        stream = Recorder(STREAMS[self.form](), self.folder, self.keeping)
        stream.read_books = self.books
        stream.watch = self.watch
        stream.say = self.said.append
        return stream

    def second(self, count: int = 50, lose: int = 0) -> None:
        """A second passes: its records, then a checkpoint."""
        self.pass_time(1.0)
        self.records(count, lose)
        self.checkpoint()

    def pass_time(self, seconds: float) -> None:
        self.now_ns += int(seconds * S)

    def fire(self, number: int, conn_id: int = 7, count: int = 1) -> None:
        self.watch.due.append(Hit(number, self.now_ns, conn_id, count))
        self.stream.release(0)

    def advance(self) -> None:
        """The dump under way ends."""
        self.pass_time(self.keeping.after_s + 0.1)
        self.stream.release(self.now_ns)

    def end(self, reason: EndReason = EndReason.ASKED) -> list[Path]:
        self.close(reason)
        return self.paths if self.folder.exists() else []


class RecordingLog(Recording, LogMaker):
    def books(self) -> Any:
        return super().books() if hasattr(self.stream.codec, "order") else None


def last_second(
    folder: Path, *triggers: str, after_s: float = 0.0, settings: Mapping[str, Any] | None = None
) -> RecordingLog:
    """A recorder of a log that keeps the last second, with triggers on events."""
    keeping = Keeping(1.0, 1 << 20, after_s, triggers, 100)
    made = RecordingLog(folder, keeping, settings)
    names = [slot.name for slot in made.layout.logged]
    found = compile_event_triggers(triggers, made.layout, None, names, made.layout.entry_size)
    made.stream.watch = EventWatch(found) if found else None  # type: ignore[attr-defined]
    return made


both = pytest.mark.parametrize("kind", [Recording, RecordingLog])


def entries_of(path: Path) -> list[Any]:
    with tcpkmon.open(path) as capture:
        return [entry for _, entry in capture.controls()]


def check(path: Path, code: int = 0) -> Report:
    report = format_of(path).verify(path)[-1]
    assert report.exit_code == code, (report.verdict, report.problems)
    return report


@both
def test_nothing_is_written_without_a_trigger(kind: type[Recording], tmp_path: Path) -> None:
    recording = kind(tmp_path / "d")
    for _ in range(5):
        recording.second()
    assert recording.stream.window() is not None
    assert recording.end() == []
    assert "500 records passed the recorder; 0 dumps" in recording.stream.describe_end()


@both
@pytest.mark.parametrize("lose", (0, 3))
def test_a_dump_has_the_window_and_what_comes_after(
    kind: type[Recording], tmp_path: Path, lose: int
) -> None:
    recording = kind(tmp_path / "d")
    for _ in range(30):
        recording.second(lose=lose)
    recording.fire(1)
    recording.second(lose=lose)
    recording.fire(2)
    recording.advance()
    recording.second()
    (path,) = recording.end()
    assert path.stem.endswith("-000001")
    report = check(path, 3 if lose else 0)
    assert report.end_reason == "dumped" and report.proven_end
    held = report.totals.in_file
    assert report.evicted == CPUS * 50 * 30 - (held - CPUS * 50)
    # 10 seconds and the block that they begin in, then the one after the trigger.
    assert 11 * 50 * CPUS <= held <= 13 * 50 * CPUS
    assert report.lost_total == held // 50 * lose
    assert report.window[0].startswith("not complete" if lose else "complete from ")
    if kind is Recording:
        triggers = [entry for entry in entries_of(path) if isinstance(entry, Trigger)]
        assert [(t.number, t.conn_id) for t in triggers] == [(1, 7), (2, 7)]
    assert any("trigger: rto, connection 7" in line for line in report.window)
    if kind is Recording and not lose:
        agree(path)


@both
def test_a_gap_that_shows_later_belongs_before_the_window(
    kind: type[Recording], tmp_path: Path
) -> None:
    """The ring was full long before the CPU's next record, which shows the gap."""
    recording = kind(tmp_path / "d")
    recording.second()
    for cpu in range(CPUS):
        recording.serials[cpu] += 20
        recording.ledger["attempts"][cpu, recording.row] += 20
        recording.ledger["ring_full"][cpu, recording.row] += 20
    for _ in range(12):
        recording.pass_time(1)
        recording.stream.release(recording.now_ns)
        recording.checkpoint()
    recording.second()
    recording.fire(1)
    recording.advance()
    (path,) = recording.end()
    report = check(path)
    assert report.lost_total == 0
    what = "40 numbers" if kind is Recording else "20 serials"  # of each log
    assert any(f"{what} missing here" in line for line in report.window), report.window


def _copy(first: Path, second: Path, index: Path) -> None:
    second.write_bytes(first.read_bytes())


def _swap(first: Path, second: Path, index: Path) -> None:
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


def _edit(**values: Any) -> Any:
    """Another value in the first line of the index."""

    def change(first: Path, second: Path, index: Path) -> None:
        lines = [json.loads(line) for line in index.read_text().splitlines()]
        lines[0].update(values)
        index.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return change


def _remove(first: Path, second: Path, index: Path) -> None:
    """With its line: the numbers that are left tell."""
    first.unlink()
    lines = index.read_text().splitlines(keepends=True)
    index.write_text("".join(line for line in lines if first.name not in line))


@pytest.mark.parametrize(
    "change", [_copy, _swap, _edit(records=4), _edit(capture="0" * 32), _remove]
)  # fmt: skip
def test_dumps_of_a_folder_are_checked_together(tmp_path: Path, change: Any) -> None:
    recording = Recording(tmp_path / "d")
    for _ in range(4):
        recording.second(3)
    for _ in range(2):
        recording.stream.ask(9)
        recording.second(2)
        recording.advance()
        recording.second(2)
    first, second = recording.end()
    change(first, second, recording.folder / "index.jsonl")
    reports = format_of(recording.folder).verify(recording.folder)
    assert reports[-1].exit_code == 5, reports[-1].notes


def serials_of(folder: Path) -> list[list[int]]:
    """Those of each CPU, in the order in which a reader of the folder gives the records."""
    with tcpkmon.open(folder) as capture:
        columns = capture.columns(("cpu", "serial", "location"))
        plain = columns["location"] == LOCATION
        assert (np.diff(capture.seq().astype(np.int64)) > 0).all()
        return [columns["serial"][plain & (columns["cpu"] == cpu)].tolist() for cpu in range(CPUS)]


@pytest.mark.parametrize("lose", (0, 3))
def test_records_that_dumps_share_are_read_once(tmp_path: Path, lose: int) -> None:
    recording = Recording(tmp_path / "d")
    for _ in range(15):
        recording.second(lose=lose)
    for _ in range(3):
        recording.stream.ask(99)
        recording.second(lose=lose)
        recording.advance()
    for _ in range(25):
        recording.second(lose=lose)
    recording.stream.ask(99)
    recording.advance()
    paths = recording.end()
    single = [serials_of(path) for path in paths]
    with tcpkmon.open(tmp_path / "d") as capture:
        assert [text for text in capture.warnings if "segment" not in text] == [
            f"what came between {paths[2].name} and {paths[3].name} is evicted"
        ]
        lost = capture.lost
    for cpu, read in enumerate(serials_of(tmp_path / "d")):
        every = [serial for one in single for serial in one[cpu]]
        assert read == sorted(set(every)) and len(every) > len(read)
    # Each loss of a window is counted once, and what was evicted is none.
    listed = [entry for path in paths for entry in entries_of(path) if isinstance(entry, Loss)]
    assert lost == sum(one.count for one in {(one.cpu, one.first_serial): one for one in listed}
                       .values())  # fmt: skip
    assert bool(lost) is bool(lose) is (len(listed) > lost // 3)


def test_dumps_that_cannot_tell_what_they_share_are_refused(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "d")
    for _ in range(15):
        recording.second()
    recording.fire(1)
    recording.advance()
    recording.stream.ask(99)
    recording.advance()
    paths = recording.end()
    for path in paths:
        path.write_bytes(path.read_bytes().replace(b"serial\0", b"SERIAL\0", 1))
    with pytest.raises(UsageError, match="no columns cpu and serial"):
        tcpkmon.open(tmp_path / "d")


@both
def test_the_end_of_the_capture_ends_a_dump_exactly(kind: type[Recording], tmp_path: Path) -> None:
    recording = kind(tmp_path / "d")
    for _ in range(15):
        recording.second()
    recording.fire(1)
    (path,) = recording.end(EndReason.DURATION)
    report = check(path)
    assert report.end_reason == "duration"
    assert report.evicted + report.totals.in_file == CPUS * 50 * 15


@both
def test_the_limit_of_dumps_an_hour(kind: type[Recording], tmp_path: Path) -> None:
    """Who asks for one does not hold back a trigger."""
    recording = kind(tmp_path / "d")
    recording.stream.ask(4711)
    recording.advance()
    for _ in range(5):
        recording.fire(1)
        recording.advance()
    told = recording.stream.window()
    assert told is not None
    assert (told["dumps"], told["held_back"]) == (4, 2)
    assert sum("--dumps-per-hour" in line for line in recording.said) == 1
    recording.stream.ask(0)
    recording.advance()
    paths = recording.end()
    assert len(paths) == 5
    assert "asked for by process 4711" in check(paths[0]).window[1]
    assert "SIGUSR2" in check(paths[4]).window[1]
    if kind is Recording:
        with tcpkmon.open(paths[4]) as capture:
            settings: Any = capture.settings
        assert settings["recorder"]["held_back"] == 2
        assert settings["recorder"]["why"] == "SIGUSR2"


def test_many_triggers_in_one_dump_are_counted(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "d")
    for _ in range(MOST_TOLD):
        recording.fire(1)
    recording.fire(2, count=5)
    recording.advance()
    (path,) = recording.end()
    told = [entry for entry in entries_of(path) if isinstance(entry, Trigger)]
    assert len(told) == MOST_TOLD + 1 and told[-1].count == 5
    report = check(path)
    assert f"and {MOST_TOLD - 10 + 5:,} more triggers" in report.window


def test_later_triggers_lengthen_a_dump_but_not_for_ever(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "d")
    for _ in range(12):
        recording.fire(1)
        recording.second()
    assert "dump 2: rto" in recording.said  # the first has ended after 4 times 2 s
    assert "dump 3: rto" not in recording.said
    recording.advance()
    for path in recording.end():
        check(path)


def test_memory_is_bounded_by_bytes(tmp_path: Path) -> None:
    keeping = replace(KEEPING, last_s=None, last_bytes=1 << 20)
    recording = Recording(tmp_path / "d", keeping)
    for _ in range(40):
        recording.second(count=500)
        told = recording.stream.window()
        assert told is not None and told["bytes"] <= (1 << 20) * 1.5
    recording.fire(1)
    recording.advance()
    (path,) = recording.end()
    assert check(path).evicted > 30_000
    assert path.stat().st_size < 2 << 20


def test_the_last_state_of_each_open_connection_is_first(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "d")
    names = {"conn_id": [1, 2, 3, 4, 1], "location": [1, 1, 11, 4, 4], "callvalue": [0, 0, 0, 7, 8]}
    recording.columns = {**names, "snd_cwnd": [10, 20, 30, 40, 50], "state": [1, 1, 1, 1, 1]}
    recording.second(count=5)
    recording.columns = {}
    for _ in range(13):
        recording.second(count=1)
    recording.fire(1)
    recording.advance()
    (path,) = recording.end()
    check(path)
    with tcpkmon.open(path) as capture:
        wanted = ("location", "conn_id", "snd_cwnd", "state", "callvalue", "cpu", "serial")
        columns = capture.columns(wanted)
        states = columns["location"] == EXISTING
        found = {name: columns[name][states].tolist() for name in wanted}
    # 3 is destroyed, 4 has closed; 1 has changed to CLOSE_WAIT.
    assert found["conn_id"] == [2, 1]
    assert found["snd_cwnd"] == [20, 50]
    assert found["state"] == [1, 8]
    assert found["cpu"] == [CPUS] * 2 and found["serial"] == [1, 2]
    assert all(1_000 <= earlier_ms <= 5_000 for earlier_ms in found["callvalue"])


@both
def test_a_dump_begins_with_the_budget_s_step_in_force(
    kind: type[Recording], tmp_path: Path
) -> None:
    """Taken so long before the window that no entry of it is kept."""
    recording = kind(tmp_path / "d")
    recording.step(0, 2, 1)
    for _ in range(13):
        recording.second(count=1)
    recording.fire(1)
    recording.advance()
    (path,) = recording.end()
    report = check(path)
    assert len(report.shed) == 1 and "step 2 of the budget" in report.shed[0]


@both
def test_marks_and_switches_are_in_the_dump(kind: type[Recording], tmp_path: Path) -> None:
    recording = kind(tmp_path / "d")
    recording.switch(0)
    for _ in range(13):
        recording.second(count=1)
    recording.stream.marks([Mark(3, "here")])
    recording.fire(1)
    recording.stream.marks([Mark(4, "there")])
    recording.advance()
    (path,) = recording.end()
    report = check(path)
    assert report.off
    if kind is RecordingLog:
        return
    entries = entries_of(path)
    assert [entry.text for entry in entries if isinstance(entry, Mark)] == ["here", "there"]


@both
def test_a_dump_that_cannot_be_made_is_told(kind: type[Recording], tmp_path: Path) -> None:
    """Neither its file, nor in a log's folder the second file."""
    recording = kind(tmp_path / "d")
    stream = recording.stream
    assert stream.segments is not None
    ask = stream.segments.ask

    def refuse(request: int, data: bytes) -> int:
        if kind is Recording or (request == 3 and data.endswith(b"/1")):
            raise OSError(28, "No space left on device")
        return ask(request, data)

    stream.open_files_by(refuse)
    recording.second()
    recording.fire(1)
    recording.advance()
    assert stream.order is not None
    assert recording.end() == []
    told = stream.window()
    assert told is not None and "No space left" in told["failed"]
    assert any("No space left" in line for line in recording.said)


def test_a_dump_without_room_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for its beginning and its end comes first; the next dump is whole."""
    recording = Recording(tmp_path / "d")
    recording.second()
    with monkeypatch.context() as patch:
        full = OSError(28, "No space left on device")
        patch.setattr(FileSink, "prepare", lambda *_: full)
        recording.fire(1)
        recording.advance()
        done = threading.Event()
        recording.stream.after(done.set)
        recording.stream.settle()
        assert done.wait(WAIT_S)
    assert recording.paths == []
    recording.second()
    recording.fire(2)
    recording.advance()
    (path,) = recording.end()
    assert path.name.endswith("-000002.pm")
    check(path)
    assert [line for line in recording.said if "No space left" in line]


@pytest.mark.parametrize(
    "harm",
    (
        lambda s: s["segment"]["previous"]["serials"].update({"0": 5}),
        lambda s: s["segment"]["previous"].update(entries=1),
        lambda s: s["recorder"].update(from_ns="x"),
        lambda s: s["recorder"].update(triggers=[]),
        lambda s: s["segment"]["previous"].pop("evicted"),
    ),
)
def test_what_does_not_add_up_is_found(tmp_path: Path, harm: Any) -> None:
    from tcpkmon.formats.psc.header import KIND_SETTINGS, decode_header, encode_header

    recording = Recording(tmp_path / "d")
    for _ in range(15):
        recording.second()
    recording.fire(1)
    recording.advance()
    (path,) = recording.end()
    data = path.read_bytes()
    header, offset = decode_header(data, len(data))
    settings = json.loads(header.text(KIND_SETTINGS) or "")
    harm(settings)
    text = json.dumps(settings).encode()
    extras = {**header.extras, KIND_SETTINGS: [text.ljust(-(-len(text) // 4) * 4, b"\0")]}
    path.write_bytes(encode_header(replace(header, extras=extras)) + data[offset:])
    check(path, 5)


def request_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Request:
    found: list[Request] = []
    monkeypatch.setattr(collect, "run", lambda request: found.append(request) or 0)
    collect.command.main(arguments, standalone_mode=False)
    check_request(found[0])
    return found[0]


def test_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of(
        monkeypatch, "--record-last", "30s", "--after", "0", "--on", "rto", "--on", "rst",
        "--dumps-per-hour", "2",
    )  # fmt: skip
    assert request.recorder is not None
    assert request.recorder.triggers == ("rto", "rst")
    assert (request.recorder.after_s, request.recorder.dumps_per_hour) == (0.0, 2)
    assert not request.output.endswith(".pm")
    for wrong in (
        ["--on", "rto"], ["--after", "1s"],
        ["--record-last", "30s", "-o", "-"],
        ["--record-last", "30s", "--format", "magnet"],
        ["--record-last", "30s", "--rotate-size", "1G"],
        ["--record-last", "30s", "--on", "rto >"],
        ["--record-last", "30s", "--dumps-per-hour", "0"],
        ["--record-last", "1K"], ["--record-last", "0s"], ["--rotate-size", ""],
        ["--rotate-size", "1G", "--keep-for", ""], ["--record-last", "30s", "--after", ""],
    ):  # fmt: skip
        with pytest.raises(UsageError):
            request_of(monkeypatch, *wrong)


def test_a_capture_without_a_recorder_says_so(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "d")
    assert maker.stream.window() is None
    with pytest.raises(UsageError, match="no flight recorder"):
        maker.stream.ask(1)
    maker.close(EndReason.ASKED)


def change_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a log's header, and make its checksum right."""
    data = path.read_bytes()
    with LogReader(path) as reader:
        header, end = reader.header, reader._data_offset
    change(header)
    path.write_bytes(encode_preamble(header) + data[end:])


def verify_dumps(folder: Path) -> list[Report]:
    """Of each dump, that of all its logs."""
    found = [format_of(one.path(folder)).verify(one.path(folder)) for one in find_segments(folder)]
    return [reports[-1] for reports in found]


def pings(folder: Path, number: int = 0) -> list[int]:
    with open_log(find_segments(folder)[number].path(folder)) as log:
        return sorted(event["n"] for event in log.choose("PING"))


def test_a_trigger_on_an_event_writes_the_window_of_a_log(tmp_path: Path) -> None:
    made = last_second(tmp_path / "out", "PING and n == 115")
    for _ in range(5):
        made.second(10)
    assert not find_segments(tmp_path / "out")
    made.records(20)
    made.now_ns += 10
    made.stream.release(made.now_ns)
    made.close()
    (report,) = verify_dumps(tmp_path / "out")
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


@pytest.mark.parametrize("lose", [0, 3])
def test_what_two_dumps_of_logs_hold_is_read_once(tmp_path: Path, lose: int) -> None:
    made = last_second(tmp_path / "out")
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


def test_what_a_log_says_was_evicted_is_checked(tmp_path: Path) -> None:
    """A header that names other serials than the ledger counts is found."""
    made = last_second(tmp_path / "out")
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
