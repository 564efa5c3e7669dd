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

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from tcpkmon.formats.base.causes import COLLECTOR_CAUSES, KERNEL_CAUSES
from tcpkmon.formats.base.limits import MOST_CPUS
from tcpkmon.formats.verify.report import I64, U64, Missed

ASIDE = ("filtered", "unchanged", "limited", "shed")
KERNEL, COLLECTED = tuple(KERNEL_CAUSES), tuple(COLLECTOR_CAUSES)
"""Losses in the kernel, and in the collector."""
NUMBERED = ("ring_full", "no_ring", "other")
"""Those of the kernel that had taken a serial."""
LATE_STAGE = ("queue_full", "disk_full", "write_error")
"""Those of the collector of which a capture does not know the CPU."""
COUNTERS = ("attempts", *ASIDE, "written", *KERNEL, *COLLECTED, "in_file")
CPU_COUNTERS = ("serials", "read", "damaged", "late", "ring_lost")
PROGRAM_COUNTERS = ("missed", "kprobe_missed")
POINTS_PART, CPUS_PART, PROGRAMS_PART = "points", "cpus", "programs"

IN_FLIGHT = 64
"""Events that may be half counted when a ledger before the last reads the kernel's counters."""
POINTS = 256
"""Points are 0 to 255."""
TEXTS = MappingProxyType(
    {
        "attempts": "{where}: {told} attempts, but what became of them adds up to {found}",
        "serials": "CPU {cpu}: {told} serials given out, but its events add up to {found}",
        "came out": "{where}: {told} written into the ring, but {found} came out",
        "damaged": "CPU {cpu}: {found} records left the ring and are nowhere, {told} damaged",
        "read": "CPU {cpu}: {told} records read, but its events add up to {found}",
        "ring_lost": "CPU {cpu}: its ring itself counts {told} that found no room, "
        "the ledger {found}",
        "late": "CPU {cpu}: {told} records late, but its events add up to {found}",
        "in file": "{where}: {found} records in the file before ledger {number}, "
        "which counts {told}",
        "fell": "{what} falls from {then} to {now}",
    }
)
"""Where a format has no other words."""


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

    index: the entry number that its problems name; stop: that of the entry behind it; number: which
    ledger of the file it is. points: COUNTERS by cpu << 16 | point, a file without CPUs has cpu 0.
    cpus: CPU_COUNTERS by CPU; None where the file lacks them, although it should not. programs:
    PROGRAM_COUNTERS and others, by a key that program() knows. No counter of these ever falls.
    counts: records in the file before this ledger, by cpu * POINTS + point.
    """

    texts: ClassVar[Mapping[str, str]] = TEXTS
    """The words for each of the balance's checks; `told` is in the ledger, `found` in the file or
    in other counters of the ledger."""
    slack: ClassVar[Mapping[str, int]] = MappingProxyType(
        dict.fromkeys(("attempts", "serials", "came out", "read", "late"), IN_FLIGHT)
    )
    """How far off a ledger may be that is not final, by check: one that is not here is made of the
    final ledger alone."""
    lasting: ClassVar[frozenset[str]] = frozenset()
    """Parts that a ledger may leave out."""
    is_base = False
    """It is the first of a later segment: it counts what the segments before hold."""
    is_sound = True
    """Its numbers can be."""
    is_counted = True
    """Nothing before it is damaged, so that its records can be counted."""
    repaired = 0
    """So many records that it counts a repair left out of the file."""
    stamp_ns: int | None = None
    """Its time; None: unknown."""

    def __init__(
        self,
        index: int,
        stop: int,
        number: int,
        final: bool,
        points: Table,
        cpus: Table | None,
        programs: Table,
    ) -> None:
        self.index = index
        self.stop = stop
        self.number = number
        self.final = final
        self.counts: I64 = np.zeros(0, np.int64)
        self.points = points
        self.cpus = cpus
        self.cpu_rows = Table(CPU_COUNTERS) if cpus is None else cpus
        self.programs = programs
        self.parts = {POINTS_PART: points, CPUS_PART: self.cpu_rows, PROGRAMS_PART: programs}

    @abstractmethod
    def where(self, key: int, has_cpu: bool = True) -> str:
        """The name of a key of `points` for a person; has_cpu: its CPU is known."""

    @abstractmethod
    def program(self, key: int) -> tuple[int, str]:
        """The point and the name of a key of `programs`."""

    def cpu(self, key: int) -> str:
        """What comes before a counter of a CPU."""
        return f"CPU {key}: "

    def entry(self, counter: str, key: int) -> int:
        """The entry that holds a counter of a key of `points`."""
        return self.index

    def cpu_entry(self, cpu: int) -> int:
        """The entry that holds the counters of a CPU."""
        return self.cpu_rows.entry(cpu, self.index)

    def fell(self, part: str, key: int, counter: str, then: int, now: int) -> tuple[int, str]:
        """Entry and words for a counter that is smaller than in the ledger before."""
        if part == POINTS_PART:
            entry, what = self.entry(counter, key), f"{self.where(key)}: {counter}"
        elif part == CPUS_PART:
            entry, what = self.cpu_entry(key), f"{self.cpu(key)}{counter}"
        else:
            entry = self.programs.entry(key, self.index)
            what = f"the program of {self.program(key)[1]}"
        return entry, self.texts["fell"].format(what=what, then=then, now=now)

    def room(self, check: str) -> int | None:
        """How far off this ledger may be in a check; None where it is not made."""
        return 0 if self.final else self.slack.get(check)

    @property
    def digest(self) -> str:
        """Of all its counters: two with the same rows have the same. Empty where it has none."""
        tables, found = (self.points, self.cpu_rows), hashlib.sha256()
        if not len(self.programs.keys) and not any(one.values.any() for one in tables):
            return ""
        for one in tables:
            found.update(one.keys.tobytes() + one.values.tobytes())
        names = [self.program(key) for key in self.programs.keys.tolist()]
        for at in sorted(range(len(names)), key=names.__getitem__):  # keys differ between files
            found.update(self.programs.values[at].tobytes())
        return found.hexdigest()

    def missed(self, since: Ledger | None = None) -> list[Missed]:
        """What the programs never saw, of those that missed any. since: after this ledger."""
        keys, counts = self.programs.keys, self.programs.values[:, : len(PROGRAM_COUNTERS)]
        if since is not None:
            counts = counts - since.programs.at(keys).values[:, : len(PROGRAM_COUNTERS)]
        return [
            Missed(*self.program(key), *row)
            for key, row in zip(keys.tolist(), counts.tolist(), strict=True)
            if any(row)
        ]


class NamedPrograms:
    """The keys of programs that a file tells by name, the same in all of its ledgers."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._keys: dict[str, int] = {}

    def table(self, found: Mapping[str, Sequence[int]]) -> Table:
        """Of what each missed, by its name."""
        keys = [self._keys.setdefault(name, len(self._keys)) for name in found]
        self.names = [*self._keys]
        missed = np.array([*found.values()], np.int64).astype(np.uint64)
        return sorted_table(PROGRAM_COUNTERS, np.array(keys, np.int64), missed)


def sorted_table(names: Sequence[str], keys: I64, values: U64) -> Table:
    """A table of rows in any order. values: (n, names)."""
    order = np.argsort(keys, kind="stable")
    return Table(names, keys[order], values.reshape(len(keys), len(names))[order])


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


def of_point(counts: I64, point: int) -> int:
    """How many of a point there are, on all CPUs."""
    return int(counts[point::POINTS].sum())


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
