# SPDX-License-Identifier: Apache-2.0
"""The ledger of a capture as tables of counters, and its checks, the same for every record format.

A capture holds its ledger many times: at the start, once a second, at the end. For each of them a
decoder (formats/verify/psc.py, formats/verify/klogger.py) makes a Ledger:

    points     (cpu, point): attempts filtered unchanged limited shed written | ring_full ... |
                             in_file
    cpus       (cpu):        serials read damaged late ring_lost
    programs   (program):    what it missed, and other counts that only grow
    counts     what the file itself holds before this ledger, counted record by record

A point is what a record is of: a location or an event.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from tcpkmon.formats.base import causes
from tcpkmon.formats.base.limits import MOST_CPUS
from tcpkmon.formats.verify.report import (
    COLLECTOR_CAUSES,
    COUNTS,
    DAMAGED,
    I64,
    KERNEL_CAUSES,
    LISTED_AT_ONCE,
    U64,
    Mask,
    Missed,
    Problems,
    Row,
)

ASIDE = ("filtered", "unchanged", "limited", "shed")
KERNEL, COLLECTED = tuple(causes.KERNEL_CAUSES), tuple(causes.COLLECTOR_CAUSES)
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


# The checks of a ledger, the same for every record format; docs/verify.md lists all of verify's.
#
#     check_sums     attempts   = filtered + unchanged + limited + shed + written + losses in the
#                                 kernel
#                    serials    = written + ring full + no ring + other, over a CPU's points
#                    came out   : in file + losses in the collector are at most what was written
#                    damaged    = written - in file - losses in the collector, over a CPU's points
#                    read       = written - damaged, over a CPU's points
#                    late       : the same by CPU and by point
#     check_counts   in file    = the records that the file holds before the ledger
#     check_rise     no counter is smaller than in the ledger before
#     check_before   serials before a segment = records in earlier files + losses, as its header
#                    and its first ledger tell them
#     compare_rings  ring full  = what a CPU's ring itself counted; where not, a note; where the
#                    ring counts more, it is not proven that the ledger has all losses
#
# Exactly so in the final ledger. Of an earlier one Ledger.slack says how far off each may be.

def check_sums(problems: Problems, ledger: Ledger) -> None:
    """What the kernel and the collector counted adds up."""
    points = ledger.points
    written, out = points["written"], points.sum(*COLLECTED, "in_file")
    parts = points.sum(*ASIDE, "written", *KERNEL)
    _check_points(problems, ledger, "attempts", "attempts", points["attempts"], parts)
    _check_cpus(problems, ledger, "serials", written + points.sum(*NUMBERED))
    _check_points(problems, ledger, "came out", COLLECTED[0], written, out, at_least=True)
    nowhere = np.maximum((written - out).view(np.int64), 0).astype(np.uint64)
    _check_cpus(problems, ledger, "damaged", nowhere)
    _check_cpus(problems, ledger, "read", written)
    _check_cpus(problems, ledger, "late", points["late"])


def _check_points(
    problems: Problems,
    ledger: Ledger,
    check: str,
    counter: str,
    told: U64,
    found: U64,
    at_least: bool = False,
) -> None:
    """Each point's `told` is `found` (or at_least that), both (points,)."""
    keys, wrong = ledger.points.keys, _wrong(ledger.room(check), told, found, at_least)
    for at in np.flatnonzero(wrong)[:LISTED_AT_ONCE].tolist():
        key = int(keys[at])
        text = ledger.texts[check].format(where=ledger.where(key), told=told[at], found=found[at])
        problems.add(ledger.entry(counter, key), text)


def _check_cpus(problems: Problems, ledger: Ledger, counter: str, of_points: U64) -> None:
    """A counter of each CPU is what its points add up to; of_points: (points,).

    What was read is what was written and not damaged; before the end some may not be read yet.
    """
    if ledger.cpus is None:
        return
    cpus, sums = by_cpu(ledger.points.keys, of_points)
    if counter == "read":
        sums = sums - ledger.cpus.at(cpus)["damaged"]
    every = np.unique(np.concatenate((ledger.cpus.keys, cpus)))
    found = np.zeros(len(every), np.uint64)
    found[np.searchsorted(every, cpus)] = sums
    cpu_rows = ledger.cpus.at(every)
    told, damaged = cpu_rows[counter], cpu_rows["damaged"]
    at_least = counter == "read" and not ledger.final
    wrong = _wrong(ledger.room(counter), found, told, at_least)
    written = found + damaged
    for at in np.flatnonzero(wrong)[:LISTED_AT_ONCE].tolist():
        text = ledger.texts[counter].format(
            cpu=every[at],
            told=told[at],
            found=found[at],
            damaged=damaged[at],
            written=written[at],
        )
        problems.add(ledger.cpu_entry(int(every[at])), text)


def _wrong(room: int | None, more: U64, less: U64, at_least: bool) -> Mask:
    """Where two counters differ by more than `room`; with at_least only where `more` is less."""
    off = (more - less).view(np.int64)
    if room is None:
        return np.zeros(len(off), np.bool_)
    wrong: Mask = off < -room
    return wrong if at_least else wrong | (off > room)


def check_counts(
    problems: Problems, ledger: Ledger, has_cpu: bool = True, repaired: int = 0
) -> None:
    """The file holds what the ledger counts, of each point; less by what a repair left out."""
    keys, told = ledger.points.keys, ledger.points["in_file"].view(np.int64)
    if not has_cpu:
        keys, told = sum_by_point(keys, told)
    every = np.unique(np.concatenate((keys, counted_keys(ledger.counts))))
    if not len(every):
        return
    expected = np.zeros(len(every), np.int64)
    expected[np.searchsorted(every, keys)] = told
    found = counted(ledger.counts, every)
    short = expected - found
    if np.all(short >= 0) and int(short.sum()) <= repaired:
        return
    for at in np.flatnonzero(short)[:LISTED_AT_ONCE].tolist():
        key = int(every[at])
        text = ledger.texts["in file"].format(
            where=ledger.where(key, has_cpu),
            number=ledger.number,
            told=expected[at],
            found=found[at],
        )
        problems.add(ledger.entry("in_file", key), text)


def sum_by_point(keys: I64, values: I64) -> tuple[I64, I64]:
    """Counts of all CPUs together: for a file that does not tell of which CPU a record is."""
    different, place = np.unique(keys & 0xFFFF, return_inverse=True)
    sums = np.zeros(len(different), np.int64)
    np.add.at(sums, place, values)
    return different, sums


def check_rise(problems: Problems, before: Ledger, after: Ledger) -> None:
    """No counter falls from one ledger to the next."""
    for part in before.parts:
        for entry, what in islice(_fallen(part, before, after), LISTED_AT_ONCE):
            problems.add(entry, what)


def _fallen(part: str, before: Ledger, after: Ledger) -> Iterator[tuple[int, str]]:
    """Entry and words of each counter that fell; no words twice for one row."""
    old, new = before.parts[part], after.parts[part]
    now = new.at(old.keys).values
    fell = now < old.values
    if part in after.lasting:
        fell &= np.isin(old.keys, new.keys)[:, None]
    last = None
    for at, column in np.argwhere(fell).tolist():
        told = int(old.values[at, column]), int(now[at, column])
        found = after.fell(part, int(old.keys[at]), old.names[column], *told)
        if found != last:
            yield found
        last = found


def check_before(
    problems: Problems, base: Ledger, serials: Mapping[int, int], lost: Mapping[int, int]
) -> None:
    """What the header says of earlier files is what the first ledger says.

    serials: by CPU, the last one before the file; lost: how many of them were lost before the
    writer had them.
    """
    points = base.points
    cpus, held = by_cpu(points.keys, points.sum("in_file", *LATE_STAGE))
    records = dict(zip(cpus.tolist(), held.tolist(), strict=True))
    for cpu in sorted(records.keys() | serials.keys()):
        found = serials.get(cpu, 0), records.get(cpu, 0), lost.get(cpu, 0)
        if found[0] != found[1] + found[2]:
            what = "{} serials before this file, but {} records of earlier files and {} lost"
            problems.add(base.cpu_entry(cpu), f"CPU {cpu}: " + what.format(*found))


def compare_rings(ledger: Ledger) -> tuple[list[str], int]:
    """A note for each CPU whose ring itself counted other losses than the programs did; and how
    many more the rings counted."""
    found = Problems(0, 0)
    _check_cpus(found, ledger, "ring_lost", ledger.points["ring_full"])
    if not found.total:
        return [], 0
    cpus, told = by_cpu(ledger.points.keys, ledger.points["ring_full"])
    rings = ledger.cpu_rows
    more = dict(zip(rings.keys.tolist(), rings["ring_lost"].tolist(), strict=True))
    for cpu, count in zip(cpus.tolist(), told.tolist(), strict=True):
        more[cpu] = more.get(cpu, 0) - count
    return [problem.what for problem in found.listed], sum(max(0, n) for n in more.values())


def build_rows(
    ledger: Ledger, has_cpu: bool, name: Callable[[int], str], damaged: str = DAMAGED
) -> list[Row]:
    """The table's rows: per CPU and point, or per point where the CPU is not recorded.

    damaged: the cause of what a CPU's row counts as damaged.
    """
    file_keys = counted_keys(ledger.counts) if has_cpu else np.zeros(0, np.int64)
    keys = np.unique(np.concatenate((ledger.points.keys, file_keys)))
    points = ledger.points.at(keys)
    found = counted(ledger.counts, keys) if has_cpu else points["in_file"]
    rows = []
    for key, values, here in zip(
        keys.tolist(), points.values.tolist(), found.tolist(), strict=True
    ):
        told = dict(zip(points.names, values, strict=True))
        row = Row(key >> 16, key & 0xFFFF, name(key & 0xFFFF), in_file=here)
        for counter in ("attempts", *ASIDE, "written"):
            setattr(row, counter, told[counter])
        named = zip((*KERNEL_CAUSES, *COLLECTOR_CAUSES), (*KERNEL, *COLLECTED), strict=True)
        row.lost = {cause: told[counter] for cause, counter in named if told[counter]}
        row.pending = row.written - here - sum(told[counter] for counter in COLLECTED)
        rows.append(row)
    _attribute_damaged(rows, ledger, damaged)
    return rows if has_cpu else _merge(rows)


def subtract(rows: list[Row], before: list[Row]) -> None:
    """Take from the rows what a segment's first ledger had counted: what is left is its own.

    `pending` is then what was under way at its end, less what was at its beginning.
    """
    places = {(row.cpu, row.location): row for row in before}
    for row in rows:
        if (old := places.get((row.cpu, row.location))) is None:
            continue
        for name in COUNTS:
            setattr(row, name, getattr(row, name) - getattr(old, name))
        lost = {cause: n - old.lost.get(cause, 0) for cause, n in row.lost.items()}
        row.lost = {cause: n for cause, n in lost.items() if n}
    rows[:] = [row for row in rows if row.attempts or row.in_file or row.pending or row.lost]


def _attribute_damaged(rows: list[Row], ledger: Ledger, damaged: str) -> None:
    """Take from `pending` what is lost for good: all of it in the end, as a file that was repaired
    lacks what is damaged too; before, as much as the row's CPU knows to be damaged."""
    cpus = ledger.cpu_rows
    left = dict(zip(cpus.keys.tolist(), cpus["damaged"].tolist(), strict=True))
    for row in rows:
        told = min(max(row.pending, 0), left.get(row.cpu or 0, 0))
        left[row.cpu or 0] = left.get(row.cpu or 0, 0) - told
        lost = max(row.pending, 0) if ledger.final else told
        for cause, count in ((damaged, told), (DAMAGED, lost - told)):
            if count:
                row.lost[cause] = row.lost.get(cause, 0) + count
        row.pending -= lost


def _merge(rows: list[Row]) -> list[Row]:
    merged: dict[int, Row] = {}
    for row in rows:
        into = merged.setdefault(row.location, Row(None, row.location, row.name))
        into.add(row)
    return sorted(merged.values(), key=lambda row: row.location)
