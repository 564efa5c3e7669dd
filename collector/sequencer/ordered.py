# SPDX-License-Identifier: Apache-2.0
"""Ordered entries: what the sequencer gives to the spool, and the numbers and times in entries."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.control import ANY_CPU, WORDS_OFFSET, Loss

I64 = NDArray[np.int64]

# The classic head of an entry as u32 words; see the table in formats/psc/columns.py.
_SEQ, _SECONDS, _MICROSECONDS, LOCATION_WORD = 0, 1, 2, 4
_COUNT = WORDS_OFFSET // 4 + 2
POINTS = 256


@dataclass
class Ordered:
    """Entries ready to be written: (n,) contiguous rows of the capture's dtype.

    cpus: (n,) whose records they are; ANY_CPU: a control entry. places: rows of CPU, location and
    how many records of these there are. The batch uses `span` sequence numbers, from first_seq on;
    those that its LOSS entries count come before them.
    """

    entries: NDArray[Any]
    cpus: NDArray[np.uint16]
    places: I64
    first_seq: int
    span: int
    first_ns: int = 0
    """CLOCK_MONOTONIC of the first entry."""
    records: int = 0
    """How many entries are records."""
    ahead: int | None = None
    """See Sequencer.ahead, when these numbers were given; None: no sequencer gave them."""
    start_bytes: int = 0
    """The bytes of all batches of the sequencer before this one."""

    @property
    def last(self) -> dict[int, int]:
        """Nothing: a file of entries says itself which serials it has."""
        return {}

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def nbytes(self) -> int:
        return int(self.entries.nbytes)

    def renumber(self, first_seq: int) -> None:
        """Set other numbers, in the entries."""
        step = first_seq - self.first_seq
        if step:
            if self.ahead is not None:
                self.ahead += step
            self.first_seq = first_seq
            head_words(self.entries)[:, _SEQ] += np.uint32(step & 0xFFFFFFFF)
            if "seq" in (self.entries.dtype.names or ()):
                self.entries["seq"] += np.uint64(step & 0xFFFFFFFFFFFFFFFF)

    def numbers(self, stop: int) -> int:
        """How many numbers its first `stop` entries use."""
        if stop == len(self):
            return self.span
        words = head_words(self.entries[:stop])
        losses = words[words[:, LOCATION_WORD] == Loss.location].astype(np.int64)
        return stop + int((losses[:, _COUNT] + (losses[:, _COUNT + 1] << 32)).sum())

    def counts(self, start: int = 0, stop: int | None = None) -> Counter[tuple[int, int]]:
        """Records (not control entries) of a range, by (cpu, location)."""
        if start == 0 and stop in {None, len(self)}:
            return Counter({(cpu, location): n for cpu, location, n in self.places.tolist()})
        cpus = self.cpus[start:stop]
        locations = head_words(self.entries[start:stop])[:, LOCATION_WORD]
        total: Counter[tuple[int, int]] = Counter()
        for cpu in {*cpus.tolist()} - {ANY_CPU}:
            total.update(count_places(cpu, locations[cpus == cpu]))
        return total


def head_words(entries: NDArray[Any]) -> NDArray[np.uint32]:
    """Contiguous rows as u32 words, a view of shape (n, itemsize / 4)."""
    return entries.view(np.uint32).reshape(len(entries), entries.dtype.itemsize // 4)


def count_places(cpu: int, points: NDArray[np.uint32]) -> Counter[tuple[int, int]]:
    """Count one CPU's records by (cpu, point)."""
    counts = np.bincount(np.minimum(points, POINTS - 1))
    return Counter({(cpu, point): int(counts[point]) for point in np.flatnonzero(counts).tolist()})


def stamp(entries: NDArray[Any], seqs: I64, mono_ns: I64, offset_ns: int) -> None:
    """Set the sequence numbers and the time of day of contiguous rows, in place.

    offset_ns: time of day less monotonic time.
    """
    words = head_words(entries)
    seconds, microseconds = np.divmod((mono_ns + offset_ns) // 1000, 1_000_000)
    words[:, _SECONDS] = seconds
    words[:, _MICROSECONDS] = microseconds
    words[:, _SEQ] = seqs.astype(np.uint32)
    if "seq" in (entries.dtype.names or ()):
        entries["seq"] = seqs


def stamp_control(entries: NDArray[Any], seqs: I64, mono_ns: int, offset_ns: int) -> None:
    """Set the numbers of control entries, and one time for all, in place."""
    stamp(entries, seqs, np.full(len(entries), mono_ns, np.int64), offset_ns)
    if "time_ns" in (entries.dtype.names or ()):
        entries["time_ns"] = mono_ns


def opaque(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Rows as bytes without fields. numpy copies structured rows field by field: that is slower,
    and omits the bytes of no column, which a LOSS entry may use."""
    return np.dtype(("V", dtype.itemsize))
