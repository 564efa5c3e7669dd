# SPDX-License-Identifier: Apache-2.0
"""A process goes on with the MAGNeT file of one that was killed, wherever it was cut."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.journal import Journal
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.codec import Tail
from tcpkmon.collector.writer.file_sink import FileSink, Outcome
from tcpkmon.collector.writer.ledger import Books
from tcpkmon.collector.writer.magnet_codec import CHECK_RECORDS
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.magnet.header import MagnetFile
from tcpkmon.formats.magnet.walk import Piece, Walk
from tcpkmon.formats.registry import format_of
from tests.unit.magnet_builder import MagnetBuilder

WAIT_S = 60.0
CPUS = 2


class Killed(MagnetBuilder):
    """A capture whose process is killed; go_on() is another's. rings: all records by CPU."""

    def open_stream(self, rotates: bool) -> Stream:
        stream = super().open_stream(rotates)
        self.rotates, self.journal = rotates, Journal(CPUS + 1)
        stream.journal = self.journal
        self.rings: dict[int, list[Any]] = {cpu: [] for cpu in range(CPUS)}
        push = stream.push

        def keep(batches: list[Batch]) -> None:
            for batch in batches:
                self.rings[batch.cpu].append(batch.entries.view(f"V{self.dtype.itemsize}").copy())
            push(batches)

        stream.push = keep  # type: ignore[method-assign,assignment]
        return stream

    def both(self, count: int, lose: int = 0) -> None:
        """So many records of each CPU, after some that found no room; all of them released."""
        for cpu, name in enumerate(("IP_SEND", "DEV_SEND")):
            if lose:
                self.lose(name, cpu, lose)
            self.log(name, cpu, count, size=np.arange(count))
        self.release()

    def wait(self) -> None:
        """All that was released is in the file."""
        written = threading.Event()
        self.stream.after(written.set)
        self.stream.settle()
        assert written.wait(WAIT_S)

    def die(self) -> None:
        """As the kernel does with the locks of a process that ends."""
        for file in self.stream._writer.files.values():
            fcntl.flock(file.sink._fd, fcntl.LOCK_UN)

    def notes(self) -> bytes:
        """The journal as it is now."""
        return os.pread(self.journal.fd, os.fstat(self.journal.fd).st_size, 0)

    def tail(self, path: Path, notes: bytes) -> tuple[Stream, Tail]:
        """The end of the file at this path, with what the journal was."""
        self.die()
        fd = os.memfd_create("journal")
        os.write(fd, notes)
        self.journal = Journal(CPUS + 1, fd)
        capture = self.stream.segments.capture if self.stream.segments is not None else ""
        stream = Stream(STREAMS["magnet"](), path, force=True, rotates=self.rotates)
        try:
            return stream, stream.open_tail(str(path), capture, self.dtype, self.journal)
        except FileError:
            stream.discard()
            raise

    def go_on(self, path: Path, notes: bytes, released: int) -> dict[int, int]:
        """Another process goes on; so many records of each ring were released, and are not there
        any more. Returns how many were killed, by CPU."""
        before = self.stream
        stream, tail = self.tail(path, notes)
        stream.journal = self.journal
        clocks = before._clocks
        stream.go_on(before._info, SimpleNamespace(states=dict), clocks, tail)  # type: ignore[arg-type]
        order = stream.order
        known = {cpu: order.read.get(cpu, 0) + order.killed[cpu] for cpu in range(CPUS)}
        killed = {}
        for cpu in range(CPUS):
            rows = np.concatenate(self.rings[cpu])[released:].view(self.dtype)
            again = order.push_again(Batch(cpu, rows, 0))
            killed[cpu] = released + again - known[cpu]
        stream.kill({cpu: count for cpu, count in killed.items() if count})
        self.stream = stream
        stream.start()
        self.release()
        return killed

    def books(self) -> Books:
        from dataclasses import replace

        return replace(super().books(), killed=dict(self.stream.order.killed))


def end_of(folder: Path) -> Path:
    """The file that is written."""
    if not folder.is_dir():
        return folder
    return next(one.path(folder) for one in find_segments(folder) if not one.sealed)


def make(path: Path, rotates: bool) -> tuple[Killed, bytes]:
    """Some segments and records; the journal before the last records were noted."""
    made = Killed(path, rotates=rotates)
    made.both(30)
    made.checkpoint()
    if rotates:
        made.rotate()
    made.both(20, lose=2)
    made.checkpoint()
    made.both(7)
    made.wait()
    notes = made.notes()
    made.both(5, lose=1)
    made.mark(3, 1)
    made.wait()
    return made, notes


def verify(path: Path) -> Any:
    """The report of the whole; no part has a problem."""
    reports = format_of(path).verify(path)
    for report in reports:
        assert not report.error and not report.problems, (report.path, report.problems)
    return reports[-1]


def sizes(path: Path, name: str) -> list[int]:
    """The number of each record of an event, in the file's order."""
    files = [one.path(path) for one in find_segments(path)] if path.is_dir() else [path]
    found: list[int] = []
    for each in files:
        with MagnetFile(each) as file:
            (code,) = [kind.code for kind in file.kinds if kind.name == name]
            for piece in Walk(file):
                if isinstance(piece, Piece):
                    found += piece.rows["size"][piece.rows["event"] == code].tolist()
    return found


EACH = [*range(30), *range(20), *range(7), *range(5), *range(4)]


@pytest.mark.parametrize("rotates", [True, False])
@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("released", [0, 20, 57])
@pytest.mark.parametrize("half", [0, 7])
def test_nothing_is_missing_and_nothing_twice(
    tmp_path: Path, rotates: bool, noted: bool, released: int, half: int
) -> None:
    """Whether the last records were noted or not, and with half a record behind them."""
    path = tmp_path / ("f" if rotates else "f.magnet")
    made, notes = make(path, rotates)
    if noted:
        notes = made.notes()
    with end_of(path).open("ab") as file:
        file.write(b"x" * half)
    assert not any(made.go_on(path, notes, released).values())
    if rotates:
        made.rotate()
    made.both(4)
    made.write()
    report = verify(path)
    assert report.exit_code == 3 and report.proven_end
    assert {cause: n for cause, n in report.totals.lost.items() if n} == {"ring full": 3 * CPUS}
    assert report.totals.in_file == 66 * CPUS
    assert sizes(path, "MAGNET_IP_SEND") == sizes(path, "MAGNET_DEV_SEND") == EACH


@pytest.mark.parametrize("rotates", [True, False])
def test_what_was_released_and_not_written_is_killed(tmp_path: Path, rotates: bool) -> None:
    path = tmp_path / ("f" if rotates else "f.magnet")
    made, notes = make(path, rotates)
    assert made.go_on(path, notes, 60) == {0: 3, 1: 3}
    made.wait()
    # It is killed again: the journal knows of those.
    assert not any(made.go_on(path, made.notes(), 62).values())
    made.both(4)
    made.write()
    report = verify(path)
    assert {cause: n for cause, n in report.totals.lost.items() if n} == {
        "ring full": 3 * CPUS, "killed": 3 * CPUS,
    }  # fmt: skip
    assert report.totals.in_file == 63 * CPUS
    assert len(sizes(path, "MAGNET_IP_SEND")) == 63
    with tcpkmon.open(path) as reader:
        assert reader.lost == 6 * CPUS


def test_a_long_block_of_records_goes_on(tmp_path: Path) -> None:
    """Its CRCs are made again from the file; with more records it gets its control entry."""
    made = Killed(tmp_path / "f.magnet")
    for _ in range(3):
        made.both(CHECK_RECORDS // 8 + 5)
    made.wait()
    assert not any(made.go_on(tmp_path / "f.magnet", made.notes(), 10).values())
    made.both(CHECK_RECORDS // 4)
    made.write()
    assert verify(tmp_path / "f.magnet").exit_code == 0


def test_what_a_full_disk_dropped_is_killed_where_the_file_does_not_tell_yet(
    tmp_path: Path,
) -> None:
    """Until the LOST records are written, the journal has the end before them."""
    path = tmp_path / "f.magnet"
    made, _ = make(path, False)
    full = Outcome(0, OSError(errno.ENOSPC, "full"))
    with patch.object(FileSink, "write", lambda *_, **__: full):
        made.both(6)
        made.wait()
    assert made.stream._writer.written.disk_full.total() == 6 * CPUS
    notes = made.notes()
    assert made.go_on(path, notes, 68) == {0: 6, 1: 6}
    made.both(4)
    made.write()
    lost = verify(path).totals.lost
    assert (lost["ring full"], lost["killed"]) == (3 * CPUS, 6 * CPUS)


def test_it_was_killed_while_it_rotated(tmp_path: Path) -> None:
    """The last segment has its end, but not its name; the next one has no note."""
    path = tmp_path / "f"
    made, _ = make(path, True)
    notes = made.notes()
    made.die()
    with patch.object(made.stream._writer, "_close", lambda *_: None):
        made.rotate()
        made.wait()
    after = made.notes()
    shutil.copytree(path, tmp_path / "g")
    assert [one.number for one in find_segments(path) if not one.sealed] == [2, 3]
    stream, tail = made.tail(tmp_path / "g", after)
    assert (tail.written.segment, len(tail.older)) == (3, 1)
    assert tail.before == (62 * CPUS, 3 * CPUS)
    os.close(tail.files[0].fd)
    stream.discard()
    assert not any(made.go_on(path, notes, 62).values())
    assert [one.number for one in find_segments(path) if not one.sealed] == [2]
    made.rotate()
    made.write()
    assert verify(path).totals.in_file == 62 * CPUS


def test_a_file_that_nobody_can_go_on_with(tmp_path: Path) -> None:
    made, _ = make(tmp_path / "f", True)
    notes = made.notes()
    os.truncate(end_of(tmp_path / "f"), 100)
    with pytest.raises(FileError, match="shorter than what was noted"):
        made.tail(tmp_path / "f", notes)
    end_of(tmp_path / "f").unlink()
    with pytest.raises(FileError, match="not there"):
        made.tail(tmp_path / "f", notes)
