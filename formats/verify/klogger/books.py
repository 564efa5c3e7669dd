# SPDX-License-Identifier: Apache-2.0
"""The ledger events of one log: gathers those of a dump, makes a Ledger of them, checks their form.

One dump holds a whole ledger: a LEDGER for each event, a CPU_LEDGER, PROGRAM_LEDGERs.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import numpy as np

from tcpkmon.formats.base.text import text_of
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.table import NUMBERS
from tcpkmon.formats.verify.ledger import (
    COLLECTED,
    COUNTERS,
    CPU_COUNTERS,
    CPUS_PART,
    IN_FLIGHT,
    NUMBERED,
    PROGRAM_COUNTERS,
    PROGRAMS_PART,
    TEXTS,
    Ledger,
    NamedPrograms,
    sorted_table,
)
from tcpkmon.formats.verify.report import I64, LISTED_AT_ONCE, Problems

LEDGER, CPU_LEDGER, PROGRAM_LEDGER = LEDGERS = ("LEDGER", "CPU_LEDGER", "PROGRAM_LEDGER")
_TOO_MANY = np.uint64(1 << 63)
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
    return [text_of(text) for text in rows]


class Gathered:
    """The ledger's records of one dump, as numbers.

    entry: the first of them; kernel: how many records before it are the kernel's; highest: the
    serial of the last of these, as the kernel gave it out.
    events: (n, 1 + counters) the event's number, COUNTERS; cpu: (n, counters) CPU_COUNTERS;
    programs: PROGRAM_COUNTERS by name; finals: what they say of being the last of the log.
    """

    def __init__(self, entry: int, kernel: int, highest: int) -> None:
        self.entry = entry
        self.kernel = kernel
        self.highest = highest
        self.events: I64 = np.zeros((0, 1 + len(COUNTERS)), np.int64)
        self.cpu: I64 = np.zeros((0, len(CPU_COUNTERS)), np.int64)
        self.programs: dict[str, list[int]] = {}
        self.finals: set[int] = set()

    def feed(self, batch: LogBatch, present: Set[str]) -> None:
        """The ledger's records of a batch of the dump. present: the names of its events."""
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

    size: bytes of its records; kernel: how many of them are the kernel's; skipped: serials that are
    missing before its first record, which is the collector's; told_bytes: what its
    DUMP_FINISHes say; ledger: the records of the ledger in it, and ledger_ns their time.
    """

    index: int
    first: int
    size: int = 0
    records: int = 0
    kernel: int = 0
    skipped: int = 0
    told_bytes: list[int] = field(default_factory=list)
    ledger: Gathered | None = None
    ledger_ns: int | None = None


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
        TEXTS
        | {
            "serials": "the kernel gave out {told} serials, its ledger accounts for {found}",
            "damaged": "{found} records left the ring and are nowhere, {told} were damaged",
            "read": "{told} records read and {damaged} damaged of {written} written into the ring",
            "ring_lost": "the ring itself counts {told} that found no room, the ledger {found}",
            "late": "{told} records late on the CPU, {found} by event",
            "in file": "{where}: {found} records in the file before a ledger that counts {told}",
            "fell": "{what} fell from {then} to {now}",
        }
    )
    slack = MappingProxyType(
        dict.fromkeys(("attempts", "serials", "came out", "read"), IN_FLIGHT) | {"late": 0}
    )
    lasting = frozenset({CPUS_PART, PROGRAMS_PART})

    def __init__(
        self, gathered: Gathered, stop: int, number: int, name: Name, programs: NamedPrograms
    ) -> None:
        """stop: the record behind it; programs: all of the log so far; new ones are added."""
        self.gathered = gathered
        self._name = name
        self._names = programs
        self.kernel = gathered.kernel
        events, cpu = gathered.events, gathered.cpu[-1:]
        is_known = np.array([name(point) is not None for point in range(NUMBERS)])
        inside = events[(events[:, 0] >= 0) & (events[:, 0] < NUMBERS)]
        rows = inside[is_known[inside[:, 0]]]
        points = sorted_table(COUNTERS, rows[:, 0], rows[:, 1:].astype(np.uint64))
        self.lacks_cpu = not len(cpu) and bool(self.kernel or points["written"].any())
        cpus = sorted_table(CPU_COUNTERS, np.zeros(len(cpu), np.int64), cpu.astype(np.uint64))
        super().__init__(
            gathered.entry, stop, number, gathered.finals == {1}, points,
            None if self.lacks_cpu else cpus, programs.table(gathered.programs),
        )  # fmt: skip

    def where(self, key: int, has_cpu: bool = True) -> str:
        return self._name(key) or f"event {key}"

    def program(self, key: int) -> tuple[int, str]:
        return 0, self._names.names[key]

    def cpu(self, key: int) -> str:
        return ""

    def of_cpu(self, counter: str) -> int:
        """A counter of the CPU; 0 where the ledger has none."""
        return int(self.cpu_rows[counter].sum())

    @property
    def lost_numbered(self) -> int:
        """Losses that had taken a serial, of all causes."""
        return int(self.points.sum(*NUMBERED, *COLLECTED).sum()) + self.of_cpu("damaged")

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was ever attempted on this CPU."""
        told = self.points.values.any() or self.cpu_rows.values.any()
        return not (told or self.kernel)

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
        if any((one.values >= _TOO_MANY).any() for one in (self.points, self.cpu_rows)):
            say("a counter of the ledger is beyond all measure")
            return False
        return True

    def check_serials(self, problems: Problems, is_placed: bool) -> None:
        """The kernel's serials that are missing from the file are the losses that had taken one.

        is_placed: the gaps are all of them, as what was lost at the end is before the final ledger.
        """
        serials, lost = self.of_cpu("serials"), self.lost_numbered
        if (highest := self.gathered.highest) > serials:
            what = f"serial {highest} of the kernel in the file, but only {serials} given out"
            problems.add(self.index, what)
        elif is_placed and self.final and highest < serials:
            what = f"{serials} serials given out, but records and gaps end with {highest}"
            problems.add(self.index, what)
        missing = serials - self.kernel
        if self.final and missing != lost:
            what = f"{missing} serials are missing, the ledger counts {lost} of them lost"
            problems.add(self.index, what)
        elif missing < lost - (0 if self.final else IN_FLIGHT):
            what = f"{missing} serials are missing so far, fewer than the {lost} lost"
            problems.add(self.index, what)
