# SPDX-License-Identifier: Apache-2.0
"""The flight recorder behind the rings: what it keeps, evicts and writes, by the files alone."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.commands import collect
from tcpkmon.collector.commands.status import in_words
from tcpkmon.collector.plan.recorder import parse_last
from tcpkmon.collector.plan.request import Request, check_request
from tcpkmon.collector.writer.dump import MOST_TOLD, Hit, Keeping
from tcpkmon.collector.writer.file_sink import FileSink
from tcpkmon.collector.writer.recorder import Recorder
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.base.changes import ChangeKind
from tcpkmon.formats.base.control import EXISTING, Change, EndReason, Loss, Mark, Trigger
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report, verify_file
from tests.fuzz.targets import agree
from tests.unit.makers import CPUS, LOCATION, WAIT_S, Maker

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

    def __init__(self, folder: Path, keeping: Keeping = KEEPING) -> None:
        self.keeping, self.said = keeping, list[str]()
        self.watch = Watch()
        super().__init__(folder)

    def open_stream(self) -> Recorder:
        stream = Recorder(STREAMS["psc"](), self.folder, self.keeping)
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

    def end(self) -> list[Path]:
        self.close()
        return self.paths if self.folder.exists() else []


def entries_of(path: Path) -> list[Any]:
    with tcpkmon.open(path) as capture:
        return [entry for _, entry in capture.controls()]


def check(path: Path, code: int = 0) -> Report:
    report = verify_file(path)
    assert report.exit_code == code, (report.verdict, report.problems)
    return report


def test_nothing_is_written_without_a_trigger(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "d")
    for _ in range(5):
        recording.second()
    assert recording.stream.window() is not None
    assert recording.end() == []
    assert "500 records passed the recorder; 0 dumps" in recording.stream.describe_end()


@pytest.mark.parametrize("lose", (0, 3))
def test_a_dump_has_the_window_and_what_comes_after(tmp_path: Path, lose: int) -> None:
    recording = Recording(tmp_path / "d")
    for _ in range(30):
        recording.second(lose=lose)
    recording.fire(1)
    recording.second(lose=lose)
    recording.fire(2)
    recording.advance()
    recording.second()
    (path,) = recording.end()
    assert path.name.endswith("-000001.pm")
    report = check(path, 3 if lose else 0)
    assert report.end_reason == "dumped" and report.proven_end
    held = {row.cpu: row.in_file for row in report.rows if row.location == LOCATION}
    assert report.evicted == CPUS * 50 * 30 - (sum(held.values()) - CPUS * 50)
    # 10 seconds and the block that they begin in, then the one after the trigger.
    assert 11 * 50 <= held[0] <= 12 * 50 + 50
    assert report.lost_total == (held[0] // 50 * lose * CPUS if lose else 0)
    assert report.window[0].startswith("not complete" if lose else "complete from ")
    triggers = [entry for entry in entries_of(path) if isinstance(entry, Trigger)]
    assert [(t.number, t.conn_id) for t in triggers] == [(1, 7), (2, 7)]
    assert any("trigger: rto, connection 7" in line for line in report.window)


def test_losses_before_the_window_are_not_lost_in_it(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "d")
    recording.second(lose=1000)
    for _ in range(15):
        recording.second()
    recording.fire(1)
    recording.advance()
    (path,) = recording.end()
    assert check(path).lost_total == 0


def test_a_gap_that_shows_later_belongs_before_the_window(tmp_path: Path) -> None:
    """The ring was full long before the CPU's next record, which shows the gap."""
    recording = Recording(tmp_path / "d")
    recording.second()
    for cpu in range(CPUS):
        recording.serials[cpu] += 20
        recording.ledger["attempts"][cpu, LOCATION] += 20
        recording.ledger["ring_full"][cpu, LOCATION] += 20
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
    assert any("40 numbers missing here" in line for line in report.window)


def test_two_dumps_share_records(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "d")
    for _ in range(15):
        recording.second()
    recording.fire(1)
    recording.advance()
    recording.second()
    recording.stream.ask(99)
    recording.advance()
    first, second = recording.end()
    for path in (first, second):
        check(path)
    seen = []
    for path in (first, second):
        with tcpkmon.open(path) as capture:
            columns = capture.columns(("cpu", "serial", "location"))
            mine = (columns["cpu"] == 0) & (columns["location"] == LOCATION)
            seen.append(set(columns["serial"][mine].tolist()))
    assert seen[0] & seen[1] and max(seen[1]) > max(seen[0])
    reports = format_of(recording.folder).verify(recording.folder)
    assert [report.exit_code for report in reports] == [0, 0, 0]
    assert all(report.window for report in reports[:2])
    whole, parts = reports[2], reports[:2]
    assert whole.notes[0] == "2 dump(s), number 1 to 2; a record can be in several"
    assert whole.entries == sum(part.entries for part in parts) > 0
    assert whole.size_bytes == first.stat().st_size + second.stat().st_size
    for path in (first, second):  # named by its first trigger, not by the first record kept
        with tcpkmon.open(path) as capture:
            at_ns = next(e.mono_ns for _, e in capture.controls() if isinstance(e, Trigger))
            mono_ns, real_ns = capture.clock[:2]
        utc = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime((at_ns - mono_ns + real_ns) // S))
        assert f"-{utc}-" in path.name
    (asked,) = [entry for entry in entries_of(second) if isinstance(entry, Trigger)]
    assert (asked.number, asked.pid) == (0, 99)


def _copy(first: Path, second: Path, index: Path) -> None:
    second.write_bytes(first.read_bytes())


def _swap(first: Path, second: Path, index: Path) -> None:
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


def _count_more(first: Path, second: Path, index: Path) -> None:
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    lines[0]["records"] += 4
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _of_another(first: Path, second: Path, index: Path) -> None:
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    lines[0]["capture"] = "0" * 32
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _remove(first: Path, second: Path, index: Path) -> None:
    """With its line: the numbers that are left tell."""
    first.unlink()
    lines = index.read_text().splitlines(keepends=True)
    index.write_text("".join(line for line in lines if first.name not in line))


@pytest.mark.parametrize("change", [_copy, _swap, _count_more, _of_another, _remove])
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


def test_a_folder_says_that_a_dump_has_losses(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "d")
    recording.second(lose=3)
    recording.stream.ask(9)
    recording.second(2)
    recording.advance()
    recording.second(2)
    recording.end()
    dump, folder = format_of(recording.folder).verify(recording.folder)
    assert (dump.exit_code, folder.exit_code) == (3, 3)
    assert folder.verdict == "adds up: losses in 1 dump(s)"


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


def test_the_end_of_the_capture_ends_a_dump_exactly(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "d")
    for _ in range(15):
        recording.second()
    recording.fire(1)
    (path,) = recording.end()
    report = check(path)
    assert report.end_reason == "asked"
    assert report.evicted + sum(row.in_file for row in report.rows) == CPUS * 50 * 15


def test_the_limit_of_dumps_an_hour(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "d")
    for _ in range(5):
        recording.fire(1)
        recording.advance()
    told = recording.stream.window()
    assert told is not None
    assert (told["dumps"], told["held_back"]) == (3, 2)
    assert sum("--dumps-per-hour" in line for line in recording.said) == 1
    recording.stream.ask(0)
    recording.advance()
    paths = recording.end()
    assert len(paths) == 4
    with tcpkmon.open(paths[3]) as capture:
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


def test_a_dump_begins_with_the_budget_s_step_in_force(tmp_path: Path) -> None:
    """Taken so long before the window that no entry of it is kept."""
    recording = Recording(tmp_path / "d")
    now_ns = recording.now_ns
    recording.stream.changed([Change(ChangeKind.SHED, 0, now_ns, now_ns, 0, 2, 0, 1)])
    for _ in range(13):
        recording.second(count=1)
    recording.fire(1)
    recording.advance()
    (path,) = recording.end()
    report = check(path)
    assert len(report.shed) == 1 and "step 2 of the budget" in report.shed[0]


def test_marks_and_switches_are_in_the_dump(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "d")
    recording.stream.changed([Change(0, LOCATION, recording.now_ns, recording.now_ns, 1, 0)])
    for _ in range(13):
        recording.second(count=1)
    recording.stream.marks([Mark(3, "here")])
    recording.fire(1)
    recording.stream.marks([Mark(4, "there")])
    recording.advance()
    (path,) = recording.end()
    report = check(path)
    assert report.off
    entries = entries_of(path)
    assert [entry.text for entry in entries if isinstance(entry, Mark)] == ["here", "there"]


def test_a_dump_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "d")
    stream = recording.stream

    def refuse(number: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

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


def test_options() -> None:
    assert parse_last("30s") == (30.0, 256 << 20)
    assert parse_last("64M") == (None, 64 << 20)
    assert parse_last("2m,1G") == (120.0, 1 << 30)
    with pytest.raises(UsageError):
        parse_last("x")


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


def test_the_last_record_of_a_place_wins() -> None:
    """numpy keeps the last of several values for one place, also for rows as bytes."""
    table = np.zeros(4, "V16")
    rows = np.arange(6 * 4, dtype=np.uint32).view("V16")
    table[np.array([1, 2, 1, 3, 1, 2])] = rows
    assert table[1] == rows[4] and table[2] == rows[5] and table[3] == rows[3]


def test_the_window_in_words(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "d")
    for _ in range(15):
        recording.second()
    told = recording.stream.window()
    assert told is not None
    label, text = in_words("recorder", told)
    assert label == "recorder" and "1,000 records" in text and "0 dumps" in text
    recording.fire(1)
    told = recording.stream.window()
    assert told is not None and "1 dumps, one under way" in in_words("recorder", told)[1]
    recording.end()


def test_every_reader_agrees_with_the_proof(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "d")
    for _ in range(15):
        recording.second()
    recording.fire(1)
    recording.advance()
    (path,) = recording.end()
    check(path)
    agree(path)
