# SPDX-License-Identifier: Apache-2.0
"""Where the files of a log end, in the journal: see collector/ring/journal.py.

A dump is written whole or not at all, and a file may be cut back to its last dump that was noted:
the ring still has those records. So no file needs to be read.

Each note has two places. The older one is overwritten, its number last, so a process that is
killed meanwhile leaves the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

POINTS = 256
COLUMNS = ("in_file", "queue_full", "disk_full", "write_error")
NAME_BYTES = 128
"""No segment has a longer name."""


@dataclass(frozen=True)
class FileNote:
    """A CPU's file. end_bytes: where it ends. last, inserted, dumps, before, serial: see
    collector/writer/log_tail.py."""

    end_bytes: int
    last: int
    inserted: int
    dumps: int
    before: int
    serial: int


@dataclass(frozen=True)
class SegmentNote:
    """The segment that is written now. records, lost, last_seq: of those before it."""

    segment: int
    name: bytes
    records: int
    lost: int
    last_seq: int


Count = tuple[str, int, int]
"""(column, location, records)"""


def layout(cpus: int) -> np.dtype[Any]:
    """The notes of a capture with so many CPUs."""
    numbers = [(name, "=i8") for name in ("number", "segment", *FileNote.__annotations__)]
    file = np.dtype([*numbers, ("counts", "=i8", (len(COLUMNS), POINTS))])
    now = np.dtype([
        ("number", "=i8"), ("segment", "=i8"), ("name", f"S{NAME_BYTES}"), ("records", "=i8"),
        ("lost", "=i8"), ("last_seq", "=i8"),
    ])  # fmt: skip
    return np.dtype([
        ("offset_ns", "=i8"), ("killed", "=i8", cpus), ("late", "=i8", (cpus, POINTS)),
        ("now", now, 2), ("files", file, (cpus, 2)),
    ])  # fmt: skip


class LogNotes:
    """The notes in this memory."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def file(self, cpu: int, segment: int, note: FileNote, counts: Iterable[Count] = ()) -> None:
        """A CPU's file of a segment ends here. counts: what came to the CPU's counts."""
        new, old = _places(self._memory["files"][cpu])
        new["number"] = 0
        new["counts"] = old["counts"]
        for column, location, count in counts:
            new["counts"][COLUMNS.index(column), location] += count
        _store(new, old, {"segment": segment, **vars(note)})

    def segment(self, note: SegmentNote) -> None:
        """This segment is written from now on; the notes of its files are there."""
        new, old = _places(self._memory["now"])
        new["number"] = 0
        _store(new, old, vars(note))

    def stream(
        self, offset_ns: int, late: Mapping[tuple[int, int], int], killed: Mapping[int, int]
    ) -> None:
        """What is counted before the files; offset_ns: time of day less monotonic time."""
        self._memory["offset_ns"] = offset_ns
        for (cpu, location), count in late.items():
            self._memory["late"][cpu, location] = count
        for cpu, count in killed.items():
            self._memory["killed"][cpu] = count

    @property
    def offset_ns(self) -> int:
        """Time of day less monotonic time."""
        return int(self._memory["offset_ns"])

    def now(self) -> SegmentNote | None:
        """The segment that is written."""
        _, last = _places(self._memory["now"])
        if not last["number"]:
            return None
        numbers = {name: int(last[name]) for name in ("segment", "records", "lost", "last_seq")}
        return SegmentNote(name=bytes(last["name"]), **numbers)

    def files(self, segment: int) -> dict[int, FileNote]:
        """By CPU, the last note of its file of a segment."""
        return {
            cpu: FileNote(*(int(one[name]) for name in FileNote.__annotations__))
            for cpu, one in self._latest(segment)
        }

    def counts(self, segment: int) -> Iterator[tuple[str, tuple[int, int], int]]:
        """(column, (cpu, location), records) of all files up to this segment."""
        for cpu, one in self._latest(segment):
            counts = one["counts"]
            for row, location in np.argwhere(counts).tolist():
                yield COLUMNS[row], (cpu, location), int(counts[row, location])

    def _latest(self, segment: int) -> Iterator[tuple[int, Any]]:
        """By CPU, the last finished note of this segment."""
        for cpu, pair in enumerate(self._memory["files"]):
            noted = [one for one in pair if one["number"] and one["segment"] == segment]
            if noted:
                yield cpu, max(noted, key=lambda one: int(one["number"]))

    def late(self) -> dict[tuple[int, int], int]:
        """Late records by (cpu, location)."""
        counts = self._memory["late"]
        return {(cpu, at): int(counts[cpu, at]) for cpu, at in np.argwhere(counts).tolist()}

    def killed(self) -> dict[int, int]:
        """By CPU, records that were read and not written by processes that were killed."""
        counts = self._memory["killed"]
        return {cpu: int(counts[cpu]) for cpu in np.flatnonzero(counts).tolist()}


def _places(pair: Any) -> tuple[Any, Any]:
    """The older of two places, and the newer."""
    return (pair[1], pair[0]) if pair[0]["number"] > pair[1]["number"] else (pair[0], pair[1])


def _store(new: Any, old: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        new[name] = value
    new["number"] = old["number"] + 1
