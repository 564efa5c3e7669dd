# SPDX-License-Identifier: Apache-2.0
"""A process goes on with the file of one that was killed, wherever the file was cut."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.daemon.held import Held
from tcpkmon.collector.daemon.systemd import Systemd
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.journal import Journal, Note
from tcpkmon.collector.sequencer.cpu_queue import Queues
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.codec import Tail
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.psc.reader import open_capture
from tcpkmon.formats.registry import format_of
from tests.unit.makers import CPUS, WAIT_S, Maker, index_of


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
        with pytest.raises(ValueError, match="another machine"):
            Journal(4, os.dup(journal.fd))
        with pytest.raises(PermissionError):
            os.ftruncate(journal.fd, 0)


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
                self.rings[batch.cpu].append(batch.entries.copy())
            push(batches)

        stream.push = keep  # type: ignore[method-assign,assignment]
        return stream

    def wait(self) -> None:
        """All that was released is in the file."""
        written = threading.Event()
        self.stream.after(written.set)
        self.stream.settle()
        assert written.wait(WAIT_S)

    def tail(self, folder: Path) -> tuple[Stream, Tail]:
        stream = Stream(STREAMS[self.form](), folder, rotates=self.rotates)
        assert self.stream.segments is not None
        capture = self.stream.segments.capture
        try:
            return stream, stream.open_tail("", capture, self.dtype, self.journal)
        except FileError:
            stream.discard()
            raise

    def go_on(self, folder: Path, released: dict[int, int]) -> dict[int, int]:
        """Another process goes on in this folder; the rings' first records were released.

        It drains what is left, and ends. Returns how many records were killed, by CPU.
        """
        stream, tail = self.tail(folder)
        info = self.stream._info
        stream.journal = Journal(CPUS + 1)
        stream.go_on(info, Nothing(), self.clocks, tail)  # type: ignore[arg-type]
        order = stream.order
        before = {cpu: order.read.get(cpu, 0) + order.killed[cpu] for cpu in range(CPUS)}
        killed = {}
        for cpu in range(CPUS):
            rows = np.concatenate(self.rings[cpu])[released[cpu] :]
            again = order.push_again(Batch(cpu, rows, 0))
            killed[cpu] = released[cpu] + again - before[cpu]
        stream.kill({cpu: count for cpu, count in killed.items() if count})
        self.stream = stream
        stream.start()
        self.rotate()
        self.close()
        return killed


class Nothing:
    """Nothing is switched off."""

    def states(self) -> dict[str, tuple[int, int]]:
        return {}


def cut(folder: Path, to: Path, size: int) -> None:
    """A copy of the folder, whose hidden file is cut to a size."""
    shutil.copytree(folder, to)
    (last,) = [one for one in find_segments(to) if not one.sealed]
    os.truncate(last.path(to), size)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    maker = Killed(tmp_path_factory.mktemp("made") / "f")
    maker.records(30)
    maker.checkpoint()
    maker.rotate()
    maker.records(20, lose=2)
    maker.checkpoint()
    maker.records(12, lose=1)
    maker.wait()
    return maker


SIZES = [0, 1, 100, 217, 5 * 216, 20 * 216 + 3, 24 * 216]
"""How many bytes of the file's end are missing. 28 entries follow the last checkpoint's group."""


@pytest.mark.parametrize("short", SIZES)
@pytest.mark.parametrize("released", [0, 20, 50])
def test_nothing_is_missing_wherever_it_was_cut(
    killed: Killed, tmp_path: Path, short: int, released: int
) -> None:
    (last,) = [one for one in find_segments(killed.folder) if not one.sealed]
    cut(killed.folder, tmp_path / "f", last.path(killed.folder).stat().st_size - short)
    stream = killed.stream
    try:
        lost = killed.go_on(tmp_path / "f", dict.fromkeys(range(CPUS), released))
    finally:
        killed.stream = stream
    assert not any(lost.values())  # what was released is in the file
    *single, chain = format_of(tmp_path / "f").verify(tmp_path / "f")
    assert [report.problems for report in (*single, chain)] == [[]] * (len(single) + 1)
    assert chain.exit_code == 3
    (row, other) = chain.rows
    assert (row.in_file, other.in_file) == (62, 62)
    assert row.lost == other.lost == {"ring full": 3}
    assert [line["number"] for line in index_of(tmp_path / "f")] == [1, 2, 3]


def test_what_was_released_and_not_written_is_killed(killed: Killed, tmp_path: Path) -> None:
    (last,) = [one for one in find_segments(killed.folder) if not one.sealed]
    cut(killed.folder, tmp_path / "f", last.path(killed.folder).stat().st_size - 20 * 216)
    stream = killed.stream
    try:
        lost = killed.go_on(tmp_path / "f", {0: 60, 1: 61})
    finally:
        killed.stream = stream
    assert all(lost.values())
    *single, chain = format_of(tmp_path / "f").verify(tmp_path / "f")
    assert [report.problems for report in (*single, chain)] == [[]] * (len(single) + 1)
    for cpu, row in enumerate(chain.rows):
        assert row.in_file == 62 - lost[cpu]
        assert row.lost == {"ring full": 3, "killed": lost[cpu]}


def test_it_was_killed_while_it_rotated(killed: Killed, tmp_path: Path) -> None:
    """The file has its end, but not its name; the next one has no beginning."""
    shutil.copytree(killed.folder, tmp_path / "f")
    (last,) = [one for one in find_segments(tmp_path / "f") if not one.sealed]
    later = last.name.replace("-000002", "-000003")
    (tmp_path / "f" / f".{later}.part").write_bytes(b"half a header")
    stream, tail = killed.tail(tmp_path / "f")
    assert (tail.name, tail.number, tail.older) == (last.name, 2, [])
    assert not (tmp_path / "f" / f".{later}.part").exists()
    os.close(tail.files[0].fd)
    stream.discard()


def test_a_file_that_nobody_can_go_on_with(killed: Killed, tmp_path: Path) -> None:
    (last,) = [one for one in find_segments(killed.folder) if not one.sealed]
    size = last.path(killed.folder).stat().st_size
    with open_capture(last.path(killed.folder)) as capture:
        start = capture.array.offset
    for name, short, why in (
        ("a", start + 3 * 216, "no whole checkpoint"),
        ("b", start - 3, "header"),
    ):
        cut(killed.folder, tmp_path / name, short)
        with pytest.raises(FileError, match=why):
            killed.tail(tmp_path / name)
    shutil.copytree(killed.folder, tmp_path / "other")
    path = last.path(tmp_path / "other")
    path.write_bytes(b"x" * size)
    with pytest.raises(FileError, match="cannot be gone on with"):
        killed.tail(tmp_path / "other")
    os.unlink(path)
    with pytest.raises(FileError, match="not there"):
        killed.tail(tmp_path / "other")


@pytest.mark.parametrize("short", [0, 5, 20 * 216])
def test_what_a_killed_capture_left_is_repaired(
    killed: Killed, tmp_path: Path, short: int
) -> None:
    """It is not its capture's first segment: its numbers go on."""
    (last,) = [one for one in find_segments(killed.folder) if not one.sealed]
    cut(killed.folder, tmp_path / "f", last.path(killed.folder).stat().st_size - short)
    _, report = format_of(killed.folder / last.name).repair(
        last.path(tmp_path / "f"), tmp_path / "f" / last.name
    )
    assert (report.exit_code, report.problems, report.seq_lost) == (3, [], 6)
    os.unlink(last.path(tmp_path / "f"))
    *_, chain = format_of(tmp_path / "f").verify(tmp_path / "f")
    assert (chain.exit_code, chain.problems) == (3, [])


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


def test_queues_that_are_resumed() -> None:
    queues = Queues(np.dtype([("serial", "=u4"), ("pad", "V60")]))
    queues.resume({0: (10, 2), 1: (7, 0)}, Counter({(0, 3): 1}))
    assert queues.released() == {0: (10, 2), 1: (7, 0)}
    assert queues.read == {0: 9, 1: 7}


def test_a_journal_of_another_machine_is_closed() -> None:
    fd = os.dup(Journal(4).fd)
    with pytest.raises(ValueError, match="of another machine"):
        Journal(5, fd)
    with pytest.raises(OSError):
        os.fstat(fd)
