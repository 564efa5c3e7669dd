# SPDX-License-Identifier: Apache-2.0
"""The ledger events of one log: gathers those of a dump, makes a Ledger of them, checks their form.

One dump holds a whole ledger: a LEDGER for each event, a CPU_LEDGER, PROGRAM_LEDGERs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import numpy as np

from formats.klogger.batch import LogBatch
from formats.klogger.table import NUMBERS
from formats.verify.ledger import (
    COLLECTED,
    COUNTERS,
    CPU_COUNTERS,
    IN_FLIGHT,
    NUMBERED,
    Ledger,
    Table,
)
from formats.verify.report import I64, LISTED_AT_ONCE, Missed, Problems, missed_since
from formats.verify.segment import digest_of

LEDGER, CPU_LEDGER, PROGRAM_LEDGER = LEDGERS = ("LEDGER", "CPU_LEDGER", "PROGRAM_LEDGER")
_TOO_MANY = np.uint64(1 << 63)
PROGRAM_COUNTERS = ("missed", "kprobe_missed")
Name = Callable[[int], "str | None"]


def integers(batch: LogBatch, name: str, fields: tuple[str, ...]) -> I64:
    """(n, fields) the numbers of an event's records; 0 for what the log's event lacks."""
    event = batch.format.event(name)
    at = batch.where(event)
    rows = batch.rows(event, at)
    found = np.zeros((len(at), len(fields)), np.int64)
    for column, wanted in enumerate(fields):
        told = event.find_field(wanted)
        if told is not None and told.kind in ("int", "enum"):
            found[:, column] = rows[wanted].astype(np.int64)
    return found


def _programs(batch: LogBatch, count: int) -> list[str]:
    event = batch.format.event(PROGRAM_LEDGER)
    told = event.find_field("program")
    if told is None or told.kind != "string":
        return [str(number) for number in range(count)]
    rows = batch.rows(event)["program"].tolist()
    return [bytes(text).split(b"\0", 1)[0].decode("utf-8", "backslashreplace") for text in rows]


@dataclass(frozen=True)
class SoFar:
    """What the file holds before a ledger.

    entry: the ledger's first record; counts: (NUMBERS,) records by point; kernel: how many of them
    are the kernel's; highest: the serial of the last of these, as the kernel gave it out.
    """

    entry: int
    counts: I64
    kernel: int
    highest: int


class Gathered:
    """The ledger's records of one dump, as numbers.

    events: (n, 1 + counters) the event's number, COUNTERS; cpu: (n, counters) CPU_COUNTERS;
    programs: PROGRAM_COUNTERS by name; finals: what they say of being the last of the log.
    """

    def __init__(self, before: SoFar) -> None:
        self.before = before
        self.events: I64 = np.zeros((0, 1 + len(COUNTERS)), np.int64)
        self.cpu: I64 = np.zeros((0, len(CPU_COUNTERS)), np.int64)
        self.programs: dict[str, list[int]] = {}
        self.finals: set[int] = set()

    def feed(self, batch: LogBatch) -> None:
        """The ledger's records of a batch of the dump."""
        present = {event.name for event in batch.events()}
        if LEDGER in present:
            rows = self._rows(batch, LEDGER, ("number", *COUNTERS))
            self.events = np.concatenate((self.events, rows))
        if CPU_LEDGER in present:
            rows = self._rows(batch, CPU_LEDGER, CPU_COUNTERS)
            self.cpu = np.concatenate((self.cpu, rows))
        if PROGRAM_LEDGER in present:
            rows = self._rows(batch, PROGRAM_LEDGER, PROGRAM_COUNTERS)
            self.programs.update(zip(_programs(batch, len(rows)), rows.tolist(), strict=True))

    def _rows(self, batch: LogBatch, name: str, counters: tuple[str, ...]) -> I64:
        rows = integers(batch, name, ("final", *counters))
        self.finals.update(rows[:, 0].tolist())
        return rows[:, 1:]


@dataclass
class Dump:
    """The dump that is being read: its index, its first record, what was read of it so far.

    size: bytes of its records; kernel: how many of them are the kernel's; told_bytes: what its
    DUMP_FINISHes say; ledger: the records of the ledger in it, and ledger_ns their time.
    """

    index: int
    first: int
    size: int = 0
    records: int = 0
    kernel: int = 0
    told_bytes: list[int] = field(default_factory=list)
    ledger: Gathered | None = None
    ledger_ns: int = -1

    def closes(self, end_ns: int | None) -> bool:
        """Whether it holds the ledger of the log's CPU that was made for the log's end: a final
        one, or one of the time end_ns."""
        ledger = self.ledger
        if ledger is None or not len(ledger.cpu):
            return False
        return ledger.finals == {1} or self.ledger_ns == end_ns


@dataclass
class Serials:
    """The serials so far: of the last record; how many records are the kernel's and the
    collector's; the highest that the kernel gave out, which numbers its own records alone."""

    last: int = 0
    kernel: int = 0
    base: int = 0
    highest: int = 0
    last_ns: int | None = None


class LogLedger(Ledger):
    """The ledger that one dump holds. The file is of one CPU, so the keys are the points alone."""

    texts = MappingProxyType(
        {
            "attempts": "{where}: {told} attempts, but what became of them adds up to {found}",
            "serials": "the kernel gave out {told} serials, its ledger accounts for {found}",
            "came out": "{where}: {told} written into the ring, but {found} came out",
            "damaged": "{found} records left the ring and are nowhere, {told} were damaged",
            "read": "{told} records read and {damaged} damaged of {written} written into the ring",
            "ring_lost": "the ring itself counts {told} that found no room, the ledger {found}",
            "late": "{told} records late on the CPU, {found} by event",
            "in file": "{where}: {found} records in the file before a ledger that counts {told}",
        }
    )
    slack = MappingProxyType(
        dict.fromkeys(("attempts", "serials", "came out", "read"), IN_FLIGHT) | {"late": 0}
    )
    lasting = frozenset({CPU_LEDGER, PROGRAM_LEDGER})

    def __init__(
        self, gathered: Gathered, number: int, name: Name, programs: dict[str, int]
    ) -> None:
        """programs: the keys of all programs of the log so far; new ones are added."""
        self.gathered = gathered
        self._name = name
        self._programs = programs
        events, cpu = gathered.events, gathered.cpu[-1:]
        is_known = np.array([name(point) is not None for point in range(NUMBERS)])
        inside = events[(events[:, 0] >= 0) & (events[:, 0] < NUMBERS)]
        points = inside[is_known[inside[:, 0]]]
        keys = [programs.setdefault(program, len(programs)) for program in gathered.programs]
        missed = np.array([*gathered.programs.values()], np.int64)
        parts = {
            LEDGER: _table(COUNTERS, points[:, 0], points[:, 1:]),
            CPU_LEDGER: _table(CPU_COUNTERS, np.zeros(len(cpu), np.int64), cpu),
            PROGRAM_LEDGER: _table(PROGRAM_COUNTERS, np.array(keys, np.int64), missed),
        }
        before = self.before = gathered.before
        self.lacks_cpu = not len(cpu) and bool(before.kernel or parts[LEDGER]["written"].any())
        final, cpus = gathered.finals == {1}, None if self.lacks_cpu else parts[CPU_LEDGER]
        super().__init__(before.entry, number, final, before.counts, parts[LEDGER], cpus, parts)

    def where(self, key: int, has_cpu: bool = True) -> str:
        return self._name(key) or f"event {key}"

    def fell(self, part: str, key: int, counter: str, then: int, now: int) -> tuple[int, str]:
        if part == PROGRAM_LEDGER:
            part = list(self._programs)[key]
        elif part == LEDGER:
            part = f"{self.where(key)}: {counter}"
        elif part == CPU_LEDGER:
            part = counter
        return self.index, f"{part} fell from {then} to {now}"

    def of_cpu(self, counter: str) -> int:
        """A counter of the CPU; 0 where the ledger has none."""
        return int(self.parts[CPU_LEDGER][counter].sum())

    @property
    def lost_numbered(self) -> int:
        """Losses that had taken a serial, of all causes."""
        return int(self.points.sum(*NUMBERED, *COLLECTED).sum()) + self.of_cpu("damaged")

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was ever attempted on this CPU."""
        told = self.points.values.any() or self.parts[CPU_LEDGER].values.any()
        return not (told or self.before.kernel)

    def check_form(self, problems: Problems) -> bool:
        """The dump holds one ledger of each event that there is; False if its numbers cannot be."""
        events, say = self.gathered.events, partial(problems.add, self.index)
        points = np.sort(events[:, 0], kind="stable")
        if len(self.gathered.finals) > 1:
            say("some ledgers of this dump are final, some are not")
        if len(self.gathered.cpu) > 1:
            say(f"{len(self.gathered.cpu)} CPU_LEDGERs in one dump")
        for point in np.unique(points[1:][points[1:] == points[:-1]])[:LISTED_AT_ONCE]:
            say(f"two ledgers of event {point} in one dump")
        for point in points[~np.isin(points, self.points.keys)][:NUMBERS]:
            say(f"a ledger of event {point}, which the log does not know")
        if any((self.parts[part].values >= _TOO_MANY).any() for part in (LEDGER, CPU_LEDGER)):
            say("a counter of the ledger is beyond all measure")
            return False
        return True

    def check_serials(self, problems: Problems) -> None:
        """The kernel's serials that are missing from the file are the losses that had taken one."""
        serials, lost = self.of_cpu("serials"), self.lost_numbered
        if self.before.highest > serials:
            highest = self.before.highest
            what = f"serial {highest} of the kernel in the file, but only {serials} given out"
            problems.add(self.index, what)
        missing = serials - self.before.kernel
        if self.final and missing != lost:
            what = f"{missing} serials are missing, the ledger counts {lost} of them lost"
            problems.add(self.index, what)
        elif missing < lost - (0 if self.final else IN_FLIGHT):
            what = f"{missing} serials are missing so far, fewer than the {lost} lost"
            problems.add(self.index, what)

    @property
    def digest(self) -> str:
        """Of all its counters: see formats/verify/segment.py; empty where it has none."""
        told = self.gathered.programs
        programs = np.array([row for _, row in sorted(told.items())], np.uint64)
        tables = [self.parts[part] for part in (LEDGER, CPU_LEDGER)]
        if not len(programs) and not any(one.values.any() for one in tables):
            return ""
        return digest_of(*(a for one in tables for a in (one.keys, one.values)), programs)

    def missed(self, since: LogLedger | None = None) -> list[Missed]:
        """What the programs never saw, of those that missed any; their places are not numbered.
        since: after this ledger."""
        before = {} if since is None else since.gathered.programs
        return missed_since(self.gathered.programs, before)


def _table(names: Sequence[str], keys: I64, values: I64) -> Table:
    order = np.argsort(keys, kind="stable")
    return Table(names, keys[order], values[order].astype(np.uint64))
