# SPDX-License-Identifier: Apache-2.0
"""Where the file of a process that was killed ends, so that another can go on with it.

    header | START ... | checkpoint k | entries ... | half an entry, or half a checkpoint
                        ^              ^             ^
                        the last whole  counted      cut off
                        one, with a     here
                        note in the journal

The checkpoint has the counts of what is in the file before it, the journal where each CPU's serials
were. What follows is at most what was written in a second, however long the file is.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.linux.trusted_files import open_no_link
from tcpkmon.collector.ring.journal import Journal
from tcpkmon.collector.sequencer.ordered import count_places
from tcpkmon.collector.writer.codec import ALL, Left, Tail
from tcpkmon.collector.writer.output_file import trusted_users
from tcpkmon.collector.writer.segment_folder import take_over_file
from tcpkmon.collector.writer.written import Place, Written
from tcpkmon.formats.base.control import (
    ANY_CPU,
    Checkpoint,
    Clock,
    Collector,
    Control,
    Cpu,
    End,
    EndReason,
    Loss,
    LossCause,
    is_control,
    words_view,
)
from tcpkmon.formats.base.errors import DamagedError, FileError
from tcpkmon.formats.base.facts import decode
from tcpkmon.formats.base.limits import MOST_CPUS, MOST_HEADER_BYTES
from tcpkmon.formats.base.segments import find_segments, hidden
from tcpkmon.formats.base.unseen import Unseen
from tcpkmon.formats.psc.header import KIND_SETTINGS, decode_header

_ROWS = 1 << 14
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CAPTURE = re.compile(r"[0-9a-f]{32}")


@dataclass
class _Counts:
    """What is in the file after its last checkpoint."""

    in_file: Counter[Place] = field(default_factory=Counter)
    serials: dict[int, int] = field(default_factory=dict)
    lost: Counter[int] = field(default_factory=Counter)
    killed: Counter[int] = field(default_factory=Counter)
    offset_ns: int | None = None


def open_tail(
    folder: int | None, path: str, capture: str, dtype: np.dtype[Any], journal: Journal
) -> Tail:
    """Of a capture's last segment in a folder, or of a file that is none. FileError, OSError."""
    if folder is not None:
        return _open_last_segment(folder, capture, dtype, journal)
    fd = open_no_link(path, _FLAGS, trusted_users())
    try:
        return _read_tail(fd, path, dtype, journal)
    except FileError:
        os.close(fd)
        raise


def _open_last_segment(folder: int, capture: str, dtype: np.dtype[Any], journal: Journal) -> Tail:
    """Of a capture's last segment that has a beginning. A later one, which has none, is removed.

    FileError where there is none, OSError.
    """
    found = [one for one in find_segments(folder) if not one.sealed and one.suffix == ".pm"]
    why, unbegun = "", []
    for one in sorted(found, key=lambda one: one.number, reverse=True):
        fd = os.open(hidden(one.name), _FLAGS, dir_fd=folder)
        try:
            take_over_file(fd, one.name)
            tail = _read_tail(fd, one.name, dtype, journal)
            if tail.capture != capture:
                raise FileError(f"{one.name} is of another capture")
        except FileError as error:
            os.close(fd)
            why = why or error.message
            unbegun.append(one)
            continue
        for later in unbegun:
            if later.number == tail.number + 1:
                os.unlink(hidden(later.name), dir_fd=folder)
        tail.older = [each.name for each in found if each.number == tail.number - 1]
        return tail
    raise FileError(why or "its last file is not there")


def _read_tail(fd: int, name: str, dtype: np.dtype[Any], journal: Journal) -> Tail:
    """The end of a file with entries of this type. FileError where nobody can go on with it."""
    try:
        return _Reader(fd, dtype, journal).read(name)
    except (DamagedError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise FileError(f"{name}: it cannot be gone on with: {error}") from error


class _Reader:
    def __init__(self, fd: int, dtype: np.dtype[Any], journal: Journal) -> None:
        self._fd, self._dtype, self._journal = fd, dtype, journal
        size = os.fstat(fd).st_size
        header, self._start = decode_header(os.pread(fd, MOST_HEADER_BYTES, 0), size)
        if not header.is_intact or header.entry_size != dtype.itemsize:
            raise ValueError("its header is damaged, or of another capture")
        settings = header.text(KIND_SETTINGS)
        self._segment = json.loads(settings or "{}").get("segment")
        self._count = (size - self._start) // dtype.itemsize

    def _rows(self, start: int, stop: int) -> NDArray[Any]:
        size = self._dtype.itemsize
        data = os.pread(self._fd, (stop - start) * size, self._start + start * size)
        rows: NDArray[Any] = np.frombuffer(data, self._dtype)
        if len(rows) != stop - start:
            raise ValueError("it is cut short")
        return rows

    def _control(self, row: NDArray[Any]) -> Control:
        words = words_view(row.copy())[0]
        return decode(int(row["callvalue"][0]), int(row["location"][0]), words.tolist())

    def _group(self, head: Checkpoint, at: int) -> list[Control]:
        rows = self._rows(at + 1, at + 1 + head.group)
        return [self._control(rows[n : n + 1]) for n in range(len(rows))]

    def _last_checkpoint(self) -> tuple[int, Checkpoint]:
        """The last whole one; what is there of a later one is cut off."""
        stop = self._count
        while stop > 0:
            start = max(0, stop - _ROWS)
            found = np.flatnonzero(self._rows(start, stop)["location"] == Checkpoint.location)
            for at in (found[::-1] + start).tolist():
                head = self._control(self._rows(at, at + 1))
                assert isinstance(head, Checkpoint)
                if at + head.group < self._count:
                    return at, head
                self._count = at
            stop = start
        raise ValueError("it has no whole checkpoint")

    def read(self, name: str) -> Tail:
        at, head = self._last_checkpoint()
        note = self._journal.find(head.number)
        if note is None or head.final:
            raise ValueError(f"nothing is known of checkpoint {head.number}")
        previous: Mapping[str, Any] = (self._segment or {}).get("previous") or {}
        before = int(previous.get("entries", 0))
        if head.entries != before + at:
            raise ValueError(f"checkpoint {head.number} is not in its place")
        written = Written(checkpoints=head.number + 1)
        late: Counter[Place] = Counter()
        killed: Counter[int] = Counter()
        for one in self._group(head, at):
            if isinstance(one, Collector):
                place = one.cpu, one.point
                written.in_file[place] += one.in_file
                late[place] += one.late
                for cause, counts in written.drops.items():
                    counts[place] += getattr(one, cause)
            elif isinstance(one, Cpu):
                killed[one.cpu] += one.damaged
        first = at + 1 + head.group
        seq = head.entries + head.lost + 1 + head.group
        rest = _Counts()
        last_seq, end = self._count_rest(first, seq, rest)
        written.in_file.update(rest.in_file)
        written.entries, written.last_seq = before + end, last_seq
        released = {}
        known = written.in_file + late
        for dropped in written.drops.values():
            known += dropped
        read: Counter[int] = Counter()
        for (cpu, _), count in known.items():
            read[cpu] += count
        lost_in_order = 0
        for cpu in sorted(note.released.keys() | rest.serials.keys()):
            serial, lost = note.released.get(cpu, (0, 0))
            serial, lost = max(serial, rest.serials.get(cpu, 0)), lost + rest.lost[cpu]
            lost_in_order += lost
            # What the writer dropped after the checkpoint has no CPU in the file: it was killed.
            of_late = sum(count for (at_cpu, _), count in late.items() if at_cpu == cpu)
            more = max(0, serial - lost + of_late - read[cpu])
            killed[cpu] += more + rest.killed[cpu]
            released[cpu] = serial, lost + more
        written.skipped = max(0, written.lost - lost_in_order)
        offset_ns = note.offset_ns if rest.offset_ns is None else rest.offset_ns
        left = Left(self._fd, self._start + end * self._dtype.itemsize)
        tail = Tail(
            {ALL: left}, name, os.path.basename(name), written, released, +late, +killed, offset_ns,
        )  # fmt: skip
        if self._segment is not None:
            self._describe(tail, previous)
        return tail

    def _describe(self, tail: Tail, previous: Mapping[str, Any]) -> None:
        """Which segment it is, and what the files before it hold."""
        assert self._segment is not None
        tail.capture, tail.number = self._segment["capture"], self._segment["number"]
        if not _CAPTURE.fullmatch(tail.capture) or not isinstance(tail.number, int):
            raise ValueError("its header names no capture")
        tail.written.segment = tail.number
        if not previous:
            return
        at, head = 1, self._control(self._rows(1, 2))
        if isinstance(head, Unseen):
            at, head = 2, self._control(self._rows(2, 3))
        if not isinstance(head, Checkpoint):
            raise ValueError("it does not begin with a ledger")
        records = sum(one.in_file for one in self._group(head, at) if isinstance(one, Collector))
        tail.before = records, int(previous["last_seq"]) - int(previous["entries"])

    def _count_rest(self, at: int, seq: int, counts: _Counts) -> tuple[int, int]:
        """Count the entries from `at` on, which follow this number; the last number, and where
        they end: at the file's end, or before one that is out of order."""
        while at < self._count:
            rows = self._rows(at, min(at + _ROWS, self._count))
            location = rows["location"].astype(np.int64)
            steps = np.ones(len(rows), np.int64)
            control = np.flatnonzero(is_control(location))
            entries = {int(n): self._control(rows[n : n + 1]) for n in control}
            for n, one in entries.items():
                if isinstance(one, Loss):
                    steps[n] += one.count
            numbers = seq + np.cumsum(steps)
            wrong = np.flatnonzero(
                (rows["seq_no"] != numbers.astype(np.uint32)) | (location <= 0)
            )
            stop = int(wrong[0]) if len(wrong) else len(rows)
            for n, one in entries.items():
                if n < stop and isinstance(one, End):
                    if one.reason != EndReason.ROTATED:
                        raise ValueError("it ended in order")
                    stop = n
            self._count_rows(rows[:stop], entries, stop, counts)
            if stop:
                seq = int(numbers[stop - 1])
            at += stop
            if stop < len(rows):
                break
        return seq, at

    def _count_rows(
        self, rows: NDArray[Any], entries: Mapping[int, Control], stop: int, counts: _Counts
    ) -> None:
        for n, one in entries.items():
            if n >= stop:
                continue
            if isinstance(one, Clock):
                counts.offset_ns = one.realtime_ns - one.mono_ns
            elif isinstance(one, Loss) and one.cpu != ANY_CPU:
                if one.cpu > MOST_CPUS:
                    raise ValueError(f"CPU {one.cpu} is not possible")
                if one.cause == LossCause.KILLED:
                    counts.killed[one.cpu] += one.count
                counts.lost[one.cpu] += one.count
                last = one.first_serial + one.count - 1
                counts.serials[one.cpu] = max(counts.serials.get(one.cpu, 0), last)
        location = rows["location"]
        plain = np.flatnonzero(~is_control(location))
        cpus = rows["cpu"][plain]
        for cpu in np.unique(cpus).tolist():
            mine = plain[cpus == cpu]
            counts.in_file.update(count_places(cpu, location[mine]))
            last = int(rows["serial"][mine].max())
            counts.serials[cpu] = max(counts.serials.get(cpu, 0), last)
