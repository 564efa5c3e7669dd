# SPDX-License-Identifier: Apache-2.0
"""The ledger of a capture as tables of counters, the same for every record format.

A capture holds its ledger many times: at the start, once a second, at the end. For each of them a
decoder (formats/verify/psc/checkpoints.py, formats/verify/klogger/books.py) makes a Ledger:

    points     (cpu, point): attempts filtered unchanged limited shed written | ring_full ... |
                             in_file
    cpus       (cpu):        serials read damaged late ring_lost
    programs   (program):    what it missed, and other counts that only grow
    counts     what the file itself holds before this ledger, counted record by record

A point is what a record is of: a location or an event. formats/verify/balance.py has the checks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from formats.base.causes import COLLECTOR_CAUSES, KERNEL_CAUSES
from formats.base.limits import MOST_CPUS
from formats.verify.report import I64, U64

ASIDE = ("filtered", "unchanged", "limited", "shed")
KERNEL, COLLECTED = tuple(KERNEL_CAUSES), tuple(COLLECTOR_CAUSES)
"""Losses in the kernel, and in the collector."""
NUMBERED = ("ring_full", "no_ring", "other")
"""Those of the kernel that had taken a serial."""
LATE_STAGE = ("queue_full", "disk_full", "write_error")
"""Those of the collector of which a capture does not know the CPU."""
COUNTERS = ("attempts", *ASIDE, "written", *KERNEL, *COLLECTED, "in_file")
CPU_COUNTERS = ("serials", "read", "damaged", "late", "ring_lost")

IN_FLIGHT = 64
"""Events that may be half counted when a ledger before the last reads the kernel's counters."""
POINTS = 256
"""Points are 0 to 255."""


@dataclass
class Table:
    """Rows of counters: their names, sorted keys (n,), values (n, counters), entry numbers (n,)."""

    names: Sequence[str]
    keys: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    values: U64 = field(default_factory=lambda: np.zeros((0, 0), np.uint64))
    index: I64 = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        self.values = self.values.reshape(-1, len(self.names))

    def __getitem__(self, name: str) -> U64:
        """(n,) a counter of all rows."""
        return self.values[:, self.names.index(name)]

    def sum(self, *names: str) -> U64:
        """(n,) the sum of some counters."""
        total: U64 = self.values[:, [self.names.index(name) for name in names]].sum(axis=1)
        return total

    def at(self, keys: I64) -> Table:
        """The rows of these keys; zeros for a key that has no row."""
        found = np.zeros((len(keys), len(self.names)), np.uint64)
        if len(self.keys):
            place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            same = self.keys[place] == keys
            found[same] = self.values[place[same]]
        return Table(self.names, keys, found)

    def entry(self, key: int, otherwise: int) -> int:
        """The entry number of a key's row, or `otherwise`."""
        place = int(np.searchsorted(self.keys, key))
        here = place < len(self.index) and int(self.keys[place]) == key
        return int(self.index[place]) if here else otherwise


class Ledger(ABC):
    """One ledger of the file. A format's subclass says how to call things, and where they are.

    index: the entry number that its problems name; number: which ledger of the file it is.
    points: COUNTERS by cpu << 16 | point, a file without CPUs has cpu 0. cpus: CPU_COUNTERS by CPU;
    None where the file lacks them. parts: tables of which no counter ever falls, by what a row of
    them is called. counts: records in the file before this ledger, by cpu * POINTS + point.
    """

    texts: ClassVar[Mapping[str, str]]
    """The words for each of the balance's checks; `told` is in the ledger, `found` in the file or
    in other counters of the ledger."""
    slack: ClassVar[Mapping[str, int]]
    """How far off a ledger may be that is not final, by check: one that is not here is made of the
    final ledger alone."""
    lasting: ClassVar[frozenset[str]] = frozenset()
    """Parts that a ledger may leave out."""

    def __init__(
        self,
        index: int,
        number: int,
        final: bool,
        counts: I64,
        points: Table,
        cpus: Table | None,
        parts: Mapping[str, Table],
    ) -> None:
        self.index = index
        self.number = number
        self.final = final
        self.counts = counts
        self.points = points
        self.cpus = cpus
        self.parts = parts

    @abstractmethod
    def where(self, key: int, has_cpu: bool = True) -> str:
        """The name of a key of `points` for a person; has_cpu: its CPU is known."""

    def entry(self, counter: str, key: int) -> int:
        """The entry that holds a counter of a key of `points`."""
        return self.index

    def cpu_entry(self, cpu: int) -> int:
        """The entry that holds the counters of a CPU."""
        return self.index

    @abstractmethod
    def fell(self, part: str, key: int, counter: str, then: int, now: int) -> tuple[int, str]:
        """Entry and words for a counter that is smaller than in the ledger before."""

    def room(self, check: str) -> int | None:
        """How far off this ledger may be in a check; None where it is not made."""
        return 0 if self.final else self.slack.get(check)


class Tally:
    """Counts the records of a file by (cpu, point): `counts`, by cpu * POINTS + point."""

    def __init__(self) -> None:
        self.counts: I64 = np.zeros(POINTS, np.int64)

    def add(self, keys: I64) -> None:
        """Count records; keys: cpu * POINTS + point of each."""
        if not len(keys):
            return
        found = np.bincount(keys, minlength=len(self.counts))
        if len(found) > len(self.counts):
            found = np.append(found, np.zeros(-len(found) % POINTS, np.int64))
            self.counts = np.append(self.counts, np.zeros(len(found) - len(self.counts), np.int64))
        self.counts += found

    def begin(self, keys: I64, counts: I64) -> None:
        """Add what earlier files held; keys: cpu << 16 | point, of each of which a count."""
        inside = (keys >> 16 <= MOST_CPUS) & ((keys & 0xFFFF) < POINTS) & (counts >= 0)
        place = (keys[inside] >> 16) * POINTS + (keys[inside] & 0xFFFF)
        if len(place) and int(place.max()) >= len(self.counts):
            more = (int(place.max()) // POINTS + 1) * POINTS - len(self.counts)
            self.counts = np.append(self.counts, np.zeros(more, np.int64))
        self.counts[place] += counts[inside]

    def of_point(self, point: int) -> int:
        """How many of a point there are, on all CPUs."""
        return int(self.counts[point::POINTS].sum())


def counted_keys(counts: I64) -> I64:
    """The (cpu << 16 | point) of which `counts` has any, sorted."""
    found = np.flatnonzero(counts)
    keys: I64 = ((found // POINTS) << 16) | (found % POINTS)
    return keys


def counted(counts: I64, keys: I64) -> I64:
    """How many records of each key were found in the file."""
    place = (keys >> 16) * POINTS + (keys & 0xFFFF)
    inside = (place < len(counts)) & ((keys & 0xFFFF) < POINTS)
    found: I64 = np.where(inside, counts[np.minimum(place, len(counts) - 1)], 0)
    return found


def by_cpu(keys: I64, values: U64) -> tuple[I64, U64]:
    """Values of sorted keys summed per CPU: the CPUs and their sums."""
    if not len(keys):
        return keys, values
    cpus, starts = np.unique(keys >> 16, return_index=True)
    return cpus, np.add.reduceat(values, starts)
