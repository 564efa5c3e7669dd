# SPDX-License-Identifier: Apache-2.0
"""Ordered entries: what the sequencer gives to the spool, and the numbers and times in entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.control import ANY_CPU, WORDS_OFFSET, Loss

I64 = NDArray[np.int64]
MonoToEpoch = Callable[[I64], I64]
"""From ns to ns, arrays of one shape."""

# The classic head of an entry as u32 words; see the table in formats/psc/columns.py.
_SEQ, _SECONDS, _MICROSECONDS, _CALLVALUE, LOCATION_WORD = 0, 1, 2, 3, 4
_W = WORDS_OFFSET // 4
_POINTS = 256


@dataclass
class Numbering:
    """The writer's feedback to the sequencer, which numbers entries before they are written.

        sequencer:  100 .. 199 | 200 .. 299 |            numbers as if nothing else came
        file:       100 .. 199 | 2 marks | 202 .. 301    so ahead is 2

    ahead: the file's numbers less the sequencer's; ahead_bytes: the same for bytes. If ahead is
    out of date, the writer numbers entries again. If ahead_bytes is, it copies them before a
    direct write.
    """

    ahead: int = 0
    ahead_bytes: int = 0


class Tally(Protocol):
    """Counts the records of CPUs by their locations: see collector/writer/written.py."""

    def add(self, cpu: int, locations: NDArray[np.uint32]) -> None: ...


@dataclass
class Origin:
    """A CPU's records in a batch: their places, which rise, and their locations."""

    cpu: int
    where: I64
    locations: NDArray[np.uint32]


@dataclass
class Ordered:
    """Entries ready to be written: (n,) contiguous rows of the capture's dtype.

    seqs: their sequence numbers; they rise by more than one where records were lost. origins: the
    places of all records; an entry at another place is a control entry. The batch uses `span`
    numbers, from first_seq to that of its last entry.
    """

    entries: NDArray[Any]
    seqs: I64
    origins: Sequence[Origin]
    first_seq: int
    span: int
    first_ns: int = 0
    """CLOCK_MONOTONIC of the first entry."""
    numbering: Numbering | None = None
    ahead: int = 0
    """numbering.ahead when these numbers were given."""
    start_bytes: int = 0
    """The bytes of all batches of the sequencer before this one."""

    @property
    def last(self) -> Mapping[int, int]:
        """By CPU, the last serial of a record here, or that a LOSS entry counts."""
        words = head_words(self.entries)
        lost = words[words[:, LOCATION_WORD] == Loss.location].astype(np.int64)
        ends = lost[:, [_W, _W + 2]] + (lost[:, [_W + 1, _W + 3]] << 32)
        last = dict(zip(lost[:, _CALLVALUE].tolist(), (ends.sum(1) - 1).tolist(), strict=True))
        last.pop(ANY_CPU, None)
        for one in self.origins:
            if len(one.where):
                serial = int(self.entries["serial"][one.where[-1]])
                last[one.cpu] = max(serial, last.get(one.cpu, 0))
        return last

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def nbytes(self) -> int:
        return int(self.entries.nbytes)

    @property
    def records(self) -> int:
        """How many entries are records."""
        return sum(len(origin.where) for origin in self.origins)

    def renumber(self, first_seq: int) -> None:
        """Set other numbers, in the entries too."""
        step = first_seq - self.first_seq
        if step:
            self.ahead += step
            if self.numbering is not None:
                self.numbering.ahead = self.ahead
            self.seqs += step
            self.first_seq = first_seq
            _number(self.entries, self.seqs)

    def numbers(self, stop: int) -> int:
        """How many numbers its first `stop` entries use."""
        return int(self.seqs[stop - 1]) - self.first_seq + 1 if stop else 0

    def span_from(self, start: int) -> int:
        """How many numbers the entries from a place on use."""
        return self.span - self.numbers(start)

    def tally(self, tally: Tally) -> None:
        """Count all records."""
        for origin in self.origins:
            tally.add(origin.cpu, origin.locations)

    def counts(self, start: int = 0, stop: int | None = None) -> Counter[tuple[int, int]]:
        """Records (not control entries) of a range, by (cpu, location)."""
        total: Counter[tuple[int, int]] = Counter()
        for origin in self.origins:
            first, last = origin.where.searchsorted((start, len(self) if stop is None else stop))
            total.update(count_places(origin.cpu, origin.locations[first:last]))
        return total


def head_words(entries: NDArray[Any]) -> NDArray[np.uint32]:
    """Contiguous rows as u32 words, a view of shape (n, itemsize / 4)."""
    return entries.view(np.uint32).reshape(len(entries), entries.dtype.itemsize // 4)


def count_places(cpu: int, points: NDArray[np.uint32]) -> Counter[tuple[int, int]]:
    """Count one CPU's records by (cpu, point)."""
    counts = np.bincount(np.minimum(points, _POINTS - 1))
    return Counter({(cpu, point): int(counts[point]) for point in np.flatnonzero(counts).tolist()})


def stamp(entries: NDArray[Any], seqs: I64, mono_ns: I64, mono_to_epoch: MonoToEpoch) -> None:
    """Set the sequence numbers and the time of day of contiguous rows, in place."""
    words = head_words(entries)
    if not len(words):
        return
    epoch_us = mono_to_epoch(mono_ns) // 1000
    seconds: Any = int(epoch_us[0]) // 1_000_000
    microseconds = epoch_us - seconds * 1_000_000
    # Nearly always, all are of one second.
    if microseconds.view(np.uint64).max() >= 1_000_000:
        seconds = epoch_us // 1_000_000
        microseconds = epoch_us - seconds * 1_000_000
    words[:, _SECONDS] = seconds
    words[:, _MICROSECONDS] = microseconds
    _number(entries, seqs)


def stamp_control(
    entries: NDArray[Any], seqs: I64, mono_ns: int, mono_to_epoch: MonoToEpoch
) -> None:
    """Set the numbers of control entries, and one time for all, in place."""
    stamp(entries, seqs, np.full(len(entries), mono_ns, np.int64), mono_to_epoch)
    if "time_ns" in (entries.dtype.names or ()):
        entries["time_ns"] = mono_ns


def _number(entries: NDArray[Any], seqs: I64) -> None:
    head_words(entries)[:, _SEQ] = seqs.astype(np.uint32)
    if "seq" in (entries.dtype.names or ()):
        entries["seq"] = seqs


def fill_losses(
    raw: NDArray[np.uint32], rows: I64, cpus: NDArray[np.uint16], first_serial: I64, count: I64
) -> None:
    """Write many formats.base.control.Loss of cause 0, in rows of u32 words."""
    raw[rows] = 0
    raw[rows, _CALLVALUE] = cpus
    raw[rows, LOCATION_WORD] = Loss.location
    for word, value in ((_W, first_serial), (_W + 2, count)):
        raw[rows, word] = value & 0xFFFFFFFF
        raw[rows, word + 1] = value >> 32


def opaque(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Rows as bytes without fields. numpy copies structured rows field by field: that is slower,
    and omits the bytes of no column, which a LOSS entry may use."""
    return np.dtype(("V", dtype.itemsize))
