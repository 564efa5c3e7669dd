# SPDX-License-Identifier: Apache-2.0
"""Where the files of a capture end, in the journal: see collector/ring/journal.py.

A file may be cut back to what was noted last: the ring still has those records. So no record needs
to be read. A note is what happened since the one before, staged piece by piece; commit() makes all
of it hold at once. There are two places:

    place 0   number 6 | notes 1 ... 6
    place 1   number 5 | notes 1 ... 5     the next: it gets notes 6 and 7, and its number last

A process that is killed meanwhile leaves the other place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

POINTS = 256
COLUMNS = ("in_file", "queue_full", "disk_full", "write_error")
NAME_BYTES = 128
"""No segment has a longer name."""
STATE = 4
"""So many numbers are a codec's state of a file."""


@dataclass(frozen=True)
class FileNote:
    """A file ends there. state: Codec.numbers_of()."""

    end_bytes: int
    state: tuple[int, ...]


@dataclass(frozen=True)
class SegmentNote:
    """The segment that is written. records, lost: of those before it."""

    segment: int
    records: int
    lost: int


@dataclass(frozen=True)
class CountsNote:
    """What Written counts: see collector/writer/written.py."""

    entries: int
    last_seq: int
    skipped: int
    checkpoints: int


def layout(cpus: int) -> np.dtype[Any]:
    """The notes of a capture with so many CPUs."""
    return np.dtype([
        ("number", "=i8", 2), ("name", f"S{NAME_BYTES}", (2, 1)), ("now", "=i8", (2, 3)),
        ("written", "=i8", (2, 4)), ("files", "=i8", (2, cpus, 1 + STATE)),
        ("serials", "=i8", (2, cpus)), ("killed", "=i8", (2, cpus)),
        ("counts", "=i8", (2, len(COLUMNS), cpus, POINTS)),
        ("offset_ns", "=i8"), ("late", "=i8", (cpus, POINTS)),
    ])  # fmt: skip


_Change = tuple[str, Any, Any, bool]
"""(field, index, value, whether it is added)"""


class Notes:
    """The notes in this memory. One thread writes them, but for stream()."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._arrays = {name: memory[name] for name in memory.dtype.names}
        self._staged: list[_Change] = []
        self._before: list[_Change] = []
        """Of the last commit: the older place lacks them."""
        self._newer = int(np.argmax(memory["number"]))
        older = 1 - self._newer
        if not memory["number"].any():
            return
        memory["number"][older] = 0
        for name in ("name", "now", "written", "files", "serials", "killed", "counts"):
            memory[name][older] = memory[name][self._newer]

    def _set(self, field: str, at: Any, value: Any) -> None:
        self._staged.append((field, at, value, False))

    def file(self, cpu: int, note: FileNote) -> None:
        """A CPU's file of the segment ends here."""
        self._set("files", cpu, (note.end_bytes, *note.state))

    def segment(self, note: SegmentNote, name: bytes) -> None:
        """This segment is written from now on; its files are noted after this."""
        self._set("files", slice(None), 0)
        self._set("now", slice(None), astuple(note))
        self._set("name", ..., name)

    def written(self, note: CountsNote) -> None:
        """What is in the files so far."""
        self._set("written", slice(None), astuple(note))

    def serials(self, last: Mapping[int, int]) -> None:
        """By CPU, the last serial that was written or dropped."""
        for cpu, serial in last.items():
            self._set("serials", cpu, serial)

    def kill(self, counts: Mapping[int, int]) -> None:
        """By CPU, records that were read and not written by processes that were killed."""
        for cpu, count in counts.items():
            self._set("killed", cpu, count)

    def count(self, column: str, counts: Mapping[tuple[int, int], int]) -> None:
        """So many records more by (cpu, location). column: of COLUMNS."""
        row = COLUMNS.index(column)
        for (cpu, location), count in counts.items():
            self._staged.append(("counts", (row, cpu, location), count, True))

    def commit(self) -> None:
        """All that was staged holds from now on."""
        at, number = 1 - self._newer, self._arrays["number"]
        number[at] = 0
        for field, index, value, is_added in (*self._before, *self._staged):
            place = self._arrays[field][at]
            if is_added:
                place[index] += value
            else:
                place[index] = value
        number[at] = number[self._newer] + 1
        self._newer, self._before, self._staged = at, self._staged, []

    def stream(self, offset_ns: int, late: Mapping[tuple[int, int], int]) -> None:
        """What is counted before the files; offset_ns: time of day less monotonic time."""
        self._memory["offset_ns"] = offset_ns
        for (cpu, location), count in late.items():
            self._memory["late"][cpu, location] = count

    @property
    def offset_ns(self) -> int:
        """Time of day less monotonic time."""
        return int(self._memory["offset_ns"])

    @property
    def name(self) -> str:
        """Of the segment that is written; '' where the output does not rotate."""
        return bytes(self._last("name")[0]).decode()

    def now(self) -> tuple[SegmentNote, CountsNote] | None:
        """The segment that is written, and what is in all files; None before the first."""
        now, written = self._last("now").tolist(), self._last("written").tolist()
        return (SegmentNote(*now), CountsNote(*written)) if now[0] else None

    def files(self) -> dict[int, FileNote]:
        """By CPU, where the files of the segment end."""
        files = self._last("files")
        return {
            cpu: FileNote(int(files[cpu, 0]), tuple(files[cpu, 1:].tolist()))
            for cpu in np.flatnonzero(files[:, 0]).tolist()
        }

    def counts(self) -> Iterator[tuple[str, tuple[int, int], int]]:
        """(column, (cpu, location), records) of all files so far."""
        counts = self._last("counts")
        for row, cpu, location in np.argwhere(counts).tolist():
            yield COLUMNS[row], (cpu, location), int(counts[row, cpu, location])

    def released(self) -> dict[int, int]:
        """By CPU, the last serial that was written or dropped."""
        return _numbers(self._last("serials"))

    def killed(self) -> dict[int, int]:
        """By CPU, records that were read and not written by processes that were killed."""
        return _numbers(self._last("killed"))

    def late(self) -> dict[tuple[int, int], int]:
        """Late records by (cpu, location)."""
        counts = self._memory["late"]
        return {(cpu, at): int(counts[cpu, at]) for cpu, at in np.argwhere(counts).tolist()}

    def _last(self, field: str) -> Any:
        return self._arrays[field][self._newer]


def _numbers(values: Any) -> dict[int, int]:
    return {cpu: int(values[cpu]) for cpu in np.flatnonzero(values).tolist()}
