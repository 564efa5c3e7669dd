# SPDX-License-Identifier: Apache-2.0
"""A process goes on with the file or the log of one that was killed, wherever it was cut."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tcpkmon.collector.daemon.held import Held
from tcpkmon.collector.daemon.systemd import Systemd
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.journal import Journal, Note
from tcpkmon.collector.ring.notes import CountsNote, FileNote, Notes, SegmentNote
from tcpkmon.collector.sequencer.sequencer import Queues
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.codec import File, Tail
from tcpkmon.collector.writer.file_sink import FileSink
from tcpkmon.collector.writer.klogger_codec import KloggerCodec, LogState
from tcpkmon.collector.writer.noting import Noting
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.collector.writer.written import Written
from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.psc.reader import open_capture
from tcpkmon.formats.registry import format_of
from tests.full import first
from tests.unit.makers import CPUS, WAIT_S, LogMaker, Maker, index_of


def test_the_journal_has_the_last_two_notes() -> None:
    with Journal(3) as journal:
        for number in range(4):
            journal.note(number, Note({0: (10 + number, 1), 2: (5, 0)}, 7))
        journal.retire(2, 5, 1)
        journal.retire(2, 3, 0)
        with Journal(3, os.dup(journal.fd)) as other:
            assert other.find(3) == Note({0: (13, 1), 2: (5, 0)}, 7)
            assert other.find(2) == Note({0: (12, 1), 2: (5, 0)}, 7)
            assert other.find(1) is None
            assert (other.retired(2), other.ring_lost()) == (8, {2: 1})
        with pytest.raises(PermissionError):
            os.ftruncate(journal.fd, 0)


def test_a_journal_of_another_machine_is_closed() -> None:
    fd = os.dup(Journal(4).fd)
    with pytest.raises(ValueError, match="of another machine"):
        Journal(5, fd)
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_note_that_was_not_finished_leaves_the_one_before() -> None:
    with Journal(2) as journal:
        notes = journal.files
        notes.segment(SegmentNote(1, 0, 0), b"a")
        for number in range(3):
            notes.file(1, FileNote(100 * number, (number, 4, 5, 0)))
            notes.count("in_file", {(1, 32): 10})
            notes.serials({1: 7 + number})
            notes.commit()
        number = notes._memory["number"]
        number[1 - number.argmax()] = 0  # a fourth is half stored
        notes._memory["files"][1 - number.argmax(), 1, 0] = 999
        with Journal(2, os.dup(journal.fd)) as other:
            assert other.files.files() == {1: FileNote(200, (2, 4, 5, 0))}
            assert list(other.files.counts()) == [("in_file", (1, 32), 30)]
            assert other.files.now() == (SegmentNote(1, 0, 0), CountsNote(0, 0, 0, 0))
            assert (other.files.name, other.files.released()) == ("a", {1: 9})
            # It goes on from there, in both places.
            for _ in range(2):
                other.files.count("in_file", {(1, 32): 5})
                other.files.commit()
                assert other.files.files()[1].end_bytes == 200
            assert list(other.files.counts()) == [("in_file", (1, 32), 40)]
            other.files.segment(SegmentNote(2, 40, 1), b"b")
            other.files.file(0, FileNote(50, (1, 1, 1, 7)))
            assert other.files.files()[1].end_bytes == 200
            other.files.commit()
            assert other.files.files() == {0: FileNote(50, (1, 1, 1, 7))}
            assert list(other.files.counts()) == [("in_file", (1, 32), 40)]


def test_the_journal_is_small_for_many_cpus() -> None:
    """Pages that no CPU uses take no memory."""
    with Journal(4096) as journal:
        journal.files.file(0, FileNote(1, (1, 1, 1, 1)))
        journal.files.commit()
        assert os.fstat(journal.fd).st_blocks * 512 < 1 << 20
        assert isinstance(journal.files, Notes)
        assert Counter(journal.files.late()) == Counter()


def test_what_was_dropped_counts_with_its_serials(tmp_path: Path) -> None:
    """Until then those records may be in the ring, and be written by who goes on."""
    path = tmp_path / "log"
    with Journal(1) as journal, path.open("wb") as file:
        codec, notes = KloggerCodec(), journal.files
        log = File(0, FileSink(os.dup(file.fileno()), 1), LogState())
        noting = Noting(notes, codec)
        noting.dropped("queue_full", Counter({(0, 32): 4}), {0: 20})
        assert (list(notes.counts()), notes.released()) == ([], {})
        noting.commit([log], Written())
        assert list(notes.counts()) == [("queue_full", (0, 32), 4)]
        assert notes.released() == {0: 20}
        log.sink.close()


def test_queues_that_are_resumed() -> None:
    queues = Queues(np.dtype([("serial", "=u4"), ("pad", "V60")]))
    queues.resume({0: (10, 2), 1: (7, 0)}, Counter({(0, 3): 1}))
    assert queues.released() == {0: (10, 2), 1: (7, 0)}
    assert queues.read == {0: 9, 1: 7}


def test_who_gave_up_its_privileges_adds_links_alone() -> None:
    def file() -> int:
        return os.memfd_create("any")

    held = Held(Systemd({}), "web", {})
    held.add({"path": "a"}, ["map/x", "link/f/0"], [file(), file()], trusted=True)
    before = dict(held.fds)
    held.add({"path": "b"}, ["map/x", "map/y", "more/f/0"], [file() for _ in range(4)], False)
    assert held.state == {"path": "a"}
    assert {name: held.fds[name] for name in before} == before
    assert held.fds.keys() - before == {"more/f/0"}
    held.add({"path": "c"}, ["journal"], [file()], trusted=True)
    assert (held.state, list(held.fds)) == ({"path": "c"}, ["journal"])
    held.close()
    assert not held.fds


class Killed(Maker):
    """A maker whose process is killed: go_on() is another's. rings: all records by CPU."""

    def __init__(self, folder: Path, rotates: bool = True) -> None:
        self.rings: dict[int, list[Any]] = {cpu: [] for cpu in range(CPUS)}
        super().__init__(folder, rotates)

    def open_stream(self) -> Stream:
        stream = super().open_stream()
        self.journal = stream.journal = Journal(CPUS + 1)
        push = stream.push

        def keep(batches: list[Batch]) -> None:
            for batch in batches:
                # copy() of the entries would leave out what no field has.
                rows = batch.entries.view(f"V{self.dtype.itemsize}").copy()
                self.rings[batch.cpu].append(rows)
            push(batches)

        stream.push = keep  # type: ignore[method-assign,assignment]
        return stream

    def wait(self) -> None:
        """All that was released is in the files."""
        written = threading.Event()
        self.stream.after(written.set)
        self.stream.settle()
        assert written.wait(WAIT_S)

    def notes(self) -> bytes:
        """The journal as it is now."""
        return os.pread(self.journal.fd, os.fstat(self.journal.fd).st_size, 0)

    def tail(self, folder: Path, notes: bytes) -> tuple[Stream, Tail]:
        """The end of the capture in a copy of its folder, with what the journal was."""
        for file in self.stream._writer.files.values():  # as the kernel does when a process ends
            fcntl.flock(file.sink._fd, fcntl.LOCK_UN)
        fd = os.memfd_create("journal")
        os.write(fd, notes)
        self.journal = Journal(CPUS + 1, fd)
        capture = self.stream.segments.capture if self.stream.segments is not None else ""
        where = folder if self.rotates else folder.with_name("new")
        stream = Stream(STREAMS[self.form](), where, rotates=self.rotates)
        try:
            return stream, stream.open_tail(str(folder), capture, self.dtype, self.journal)
        except FileError:
            stream.discard()
            raise

    def go_on(self, folder: Path, notes: bytes, released: int) -> dict[int, int]:
        """Another process goes on in this folder; so many records of each ring were released.

        Returns how many were killed, by CPU.
        """
        stream, tail = self.tail(folder, notes)
        stream.journal = self.journal
        stream.go_on(self.info, self.current, self.clocks, tail)
        order = stream.order
        before = {cpu: order.read.get(cpu, 0) + order.killed[cpu] for cpu in range(CPUS)}
        killed = {}
        for cpu in range(CPUS):
            rows = np.concatenate(self.rings[cpu])[released:].view(self.dtype)
            again = order.push_again(Batch(cpu, rows, 0))
            killed[cpu] = released + again - before[cpu]
        stream.kill({cpu: count for cpu, count in killed.items() if count})
        self.stream = stream
        stream.start()
        stream.release(2**63 - 1)
        return killed


class KilledLog(Killed, LogMaker):
    pass


def verify(folder: Path) -> Any:
    """The report of the whole; no part has a problem."""
    reports = format_of(folder).verify(folder)
    for report in reports:
        assert not report.error and not report.problems, (report.path, report.problems)
    return reports[-1]


def lost_of(report: Any) -> dict[str, int]:
    return {cause: count for cause, count in report.totals.lost.items() if count}


def pings(folder: Path) -> list[int]:
    with open_log(folder) as log:
        return sorted(event["n"] for event in log.choose("PING"))


def unsealed(folder: Path) -> Path:
    (last,) = [one for one in find_segments(folder) if not one.sealed]
    return last.path(folder)


def fill(maker: Killed) -> bytes:
    """Some segments and records; the journal before the last of them were noted."""
    maker.records(30)
    maker.checkpoint()
    if maker.rotates:
        maker.rotate()
    maker.records(20, lose=2)
    maker.checkpoint()
    maker.wait()
    notes = maker.notes()
    maker.records(12, lose=1)
    maker.mark(3)
    maker.wait()
    return notes


def cut(folder: Path, to: Path, short: int) -> None:
    """A copy of a PSC folder, whose hidden file has so many bytes less."""
    shutil.copytree(folder, to)
    os.truncate(unsealed(to), unsealed(to).stat().st_size - short)


SIZES = [0, 217, 20 * 216 + 3, 1, 100, 5 * 216, 24 * 216]
"""How many bytes of the file's end are missing. 28 entries follow the last checkpoint's group."""
CUTS = [(released, short) for short in SIZES for released in (0, 20, 50)]


@pytest.mark.parametrize("released, short", first(9, CUTS))
def test_nothing_is_missing_wherever_a_file_was_cut(
    tmp_path: Path, short: int, released: int
) -> None:
    maker = Killed(tmp_path / "f")
    fill(maker)
    cut(tmp_path / "f", tmp_path / "g", short)
    check_whole(maker, tmp_path / "g", maker.notes(), released)


@pytest.mark.parametrize("rotates", [True, False])
@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize(
    "released, half", first(3, [(0, 7), (20, 0), (50, 7), (0, 0), (20, 7), (50, 0)])
)
def test_nothing_is_missing_from_a_log_and_nothing_twice(
    tmp_path: Path, rotates: bool, noted: bool, released: int, half: int
) -> None:
    """Whether the last dumps were noted or not, and with half a dump behind them."""
    maker, folder = KilledLog(tmp_path / "f", rotates), tmp_path / "f"
    notes = fill(maker)
    for path in (unsealed(folder) if rotates else folder).iterdir():
        with path.open("ab") as file:
            file.write(b"x" * half)
    check_whole(maker, folder, maker.notes() if noted else notes, released)
    assert pings(folder) == list(range(67 * CPUS))
    assert not list(tmp_path.glob("new*"))


def check_whole(maker: Killed, folder: Path, notes: bytes, released: int) -> None:
    """What was released is in the files; after 5 more records all adds up."""
    assert not any(maker.go_on(folder, notes, released).values())
    if maker.rotates:
        maker.rotate()
    maker.records(5)
    maker.close()
    report = verify(folder)
    assert report.exit_code == 3 and lost_of(report) == {"ring full": 3 * CPUS}
    assert report.totals.in_file == 67 * CPUS
    if maker.rotates:
        assert [line["number"] for line in index_of(folder)] == [1, 2, 3]


@pytest.mark.parametrize("kind", [Killed, KilledLog])
def test_what_was_released_and_not_written_is_killed(kind: type[Killed], tmp_path: Path) -> None:
    maker, folder = kind(tmp_path / "f"), tmp_path / "f"
    notes = fill(maker)
    if kind is Killed:
        folder = tmp_path / "g"
        cut(maker.folder, folder, 20 * 216)
    killed = maker.go_on(folder, notes, 60)
    assert all(0 < count <= 10 for count in killed.values())
    maker.rotate()
    maker.wait()
    # It is killed again: the journal or the file has those.
    assert not any(maker.go_on(folder, maker.notes(), 62).values())
    maker.rotate()
    maker.records(5)
    maker.close()
    report, lost = verify(folder), sum(killed.values())
    assert lost_of(report) == {"ring full": 3 * CPUS, "killed": lost}
    assert report.totals.in_file == 67 * CPUS - lost
    if kind is KilledLog:
        assert len(set(pings(folder))) == report.totals.in_file


def test_it_was_killed_while_it_rotated(tmp_path: Path) -> None:
    """The file has its end, but not its name; the next one has no beginning."""
    maker = Killed(tmp_path / "f")
    fill(maker)
    last = unsealed(tmp_path / "f")
    later = last.with_name(last.name.replace("-000002", "-000003"))
    later.write_bytes(b"half a header")
    stream, tail = maker.tail(tmp_path / "f", maker.notes())
    assert (f".{tail.name}.part", tail.number, tail.older) == (last.name, 2, [])
    assert not later.exists()
    os.close(tail.files[0].fd)
    stream.discard()


def test_a_log_was_killed_while_it_rotated(tmp_path: Path) -> None:
    """The last segment has its end, but not its name; the next one has no note."""
    maker = KilledLog(tmp_path / "f")
    fill(maker)
    notes = maker.notes()
    with patch.object(maker.stream._writer, "_close", lambda *_: None):
        maker.rotate()
        maker.wait()
    copy = tmp_path / "g"
    shutil.copytree(tmp_path / "f", copy)
    assert [one.number for one in find_segments(copy) if not one.sealed] == [2, 3]
    after = maker.notes()
    assert not any(maker.go_on(copy, notes, 62).values())
    assert [one.number for one in find_segments(copy) if not one.sealed] == [2]
    maker.rotate()
    maker.close()
    assert verify(copy).totals.in_file == 62 * CPUS
    # The next one is noted: then it goes on, and the other gets its name.
    stream, tail = maker.tail(tmp_path / "f", after)
    assert (tail.written.segment, len(tail.older)) == (3, 1)
    assert tail.written.in_file.total() == 62 * CPUS
    assert tail.before == (62 * CPUS, 3 * CPUS)
    for left in tail.files.values():
        os.close(left.fd)
    stream.discard()


def test_a_file_that_nobody_can_go_on_with(tmp_path: Path) -> None:
    maker = Killed(tmp_path / "f")
    fill(maker)
    notes, path = maker.notes(), unsealed(tmp_path / "f")
    data = path.read_bytes()
    with open_capture(path) as capture:
        start = capture.array.offset
    for left, why in (
        (data[: start + 3 * 216], "no whole checkpoint"),
        (data[: start - 3], "header"),
        (b"x" * len(data), "cannot be gone on with"),
        (None, "not there"),
    ):
        path.unlink() if left is None else path.write_bytes(left)
        with pytest.raises(FileError, match=why):
            maker.tail(tmp_path / "f", notes)


def test_a_log_that_nobody_can_go_on_with(tmp_path: Path) -> None:
    maker = KilledLog(tmp_path / "f")
    fill(maker)
    notes, folder = maker.notes(), unsealed(tmp_path / "f")
    path = folder / "kernlog.dump.cpu1"
    os.truncate(path, 100)
    with pytest.raises(FileError, match="shorter than what was noted"):
        maker.tail(tmp_path / "f", notes)
    path.unlink()
    with pytest.raises(OSError, match="No such file"):
        maker.tail(tmp_path / "f", notes)
    shutil.rmtree(folder)
    with pytest.raises(FileError, match="not there"):
        maker.tail(tmp_path / "f", notes)


@pytest.mark.parametrize("short", [0, 5, 20 * 216])
def test_what_a_killed_capture_left_is_repaired(tmp_path: Path, short: int) -> None:
    """It is not its capture's first segment: its numbers go on."""
    maker = Killed(tmp_path / "f")
    fill(maker)
    cut(tmp_path / "f", tmp_path / "g", short)
    last = unsealed(tmp_path / "g")
    new = last.with_name(last.name[1 : -len(".part")])
    _, report = format_of(last).repair(last, new)
    assert (report.exit_code, report.problems, report.seq_lost) == (3, [], 6)
    os.unlink(last)
    assert verify(tmp_path / "g").exit_code == 3
