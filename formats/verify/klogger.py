# SPDX-License-Identifier: Apache-2.0
"""Klogger logs: the tape of a log, and what verify checks besides the ledger."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.causes import KILLED
from tcpkmon.formats.base.control import EXISTING
from tcpkmon.formats.base.errors import DamagedError, FileError
from tcpkmon.formats.base.facts import EVENTS
from tcpkmon.formats.base.limits import MOST_PROBLEMS
from tcpkmon.formats.base.reconciled import WORDS as RECONCILED_WORDS
from tcpkmon.formats.base.settings import setting
from tcpkmon.formats.base.text import text_of
from tcpkmon.formats.klogger.batch import LogBatch, facts_of
from tcpkmon.formats.klogger.logs import LOG_NAME, PREFIX, find_logs
from tcpkmon.formats.klogger.overlap import BASE, base_numbers
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.klogger.table import NUMBERS, PLACED, RECORD_HEAD_BYTES, SNAPSHOT, LogFormat
from tcpkmon.formats.klogger.walk import list_bytes
from tcpkmon.formats.verify.clock import ClockPairs, runs_back
from tcpkmon.formats.verify.ledger import (
    COLLECTED,
    COUNTERS,
    CPU_COUNTERS,
    CPUS_PART,
    IN_FLIGHT,
    LATE_STAGE,
    NUMBERED,
    PROGRAM_COUNTERS,
    PROGRAMS_PART,
    TEXTS,
    Ledger,
    NamedPrograms,
    sorted_table,
)
from tcpkmon.formats.verify.report import (
    I64,
    LISTED_AT_ONCE,
    UNKNOWN,
    Mask,
    Part,
    Problem,
    Problems,
    Report,
)
from tcpkmon.formats.verify.run import (
    Decoder,
    End,
    Found,
    Item,
    Opening,
    Records,
    Told,
    evicted_words,
    prove,
)

# The ledger events of one log: gathers those of a dump, makes a Ledger of them, checks their form.
#
# One dump holds a whole ledger: a LEDGER for each event, a CPU_LEDGER, PROGRAM_LEDGERs.

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


# What a log's header says of its events: which the collector makes, and what points are called.

BEGIN, DUMP_FINISH = "DUMP_BEGIN", "DUMP_FINISH"
TEXT_FIELDS = frozenset({
    "kernel", "comm", "cmdline", "name", "saddr", "daddr", "program", "text", "function",
})  # fmt: skip
"""Fields of these that are text."""
LOCATION = "location"
WORDS = {
    "entries": "records",
    "entry": "record",
    "checkpoint": "ledger",
    "location": "event",
    "snapshot": "record",
    "numbers": "serials",
}
"""What a person knows as something else in a log: the words of a report."""


def check_table(log: LogFormat) -> None:
    """Raise DamagedError where the header has what verify counts with as something else."""
    for event in log.events:
        if event.name not in BASE:
            continue
        for one in event.fields:
            if one.kind not in ("int", "enum") and one.name not in TEXT_FIELDS:
                raise DamagedError(f"the header has {event.name}.{one.name} as {one.kind}")


def find_unreadable(log: LogFormat) -> list[str]:
    """The parts of the header that cannot be read, although the collector writes them."""
    found = [] if log.clock else ["the header has no good clock pair"]
    try:
        log.schema  # noqa: B018 - it is parsed
    except DamagedError as error:
        found.append(error.message)
    return found


class Events:
    """What the header says of the events. is_base: (NUMBERS,) which the collector makes; snapshot:
    the number of SNAPSHOT, whose points are its locations, or -1."""

    def __init__(self, log: LogFormat) -> None:
        snapshot = log.find_event(SNAPSHOT)
        self.snapshot = -1 if snapshot is None else snapshot.number
        self.has_location = snapshot is not None and snapshot.find_field(LOCATION) is not None
        self.is_base = base_numbers(log)
        self._names = {event.number: event.name for event in log.events}
        self._locations = log.enums.get(LOCATION, {}) if snapshot is not None else {}

    def text(self, point: int) -> str:
        """Its name, or its number."""
        return self.name(point) or str(point)

    def name(self, point: int) -> str | None:
        """Of an event, or of a location of SNAPSHOT."""
        if point != self.snapshot and point in self._names:
            return self._names[point]
        if self.snapshot < 0 or self._locations:
            return self._locations.get(point)
        return f"location {point}"  # the schema cannot be read

    def points(self, batch: LogBatch, kernel: I64) -> tuple[I64, Mask]:
        """The points of the kernel's records, and which of these cannot be."""
        points = batch.numbers[kernel].astype(np.int64)
        snapshots = np.flatnonzero(points == self.snapshot) if self.has_location else kernel[:0]
        if not len(snapshots):
            return points, np.zeros(len(points), np.bool_)
        points[snapshots] = integers(batch, SNAPSHOT, (LOCATION,))[:, 0]
        return points, (points < 0) | (points >= NUMBERS)


# A log's CLOCK events: each pair of readings follows from the one before and the step it tells.

CLOCK = "CLOCK"
_MOST = 50


class ClockEvents:
    """Follows the CLOCK events of a log. `wrong`: what does not fit, with the record it is."""

    def __init__(self) -> None:
        self.pairs = ClockPairs()
        self.wrong: list[tuple[int, str]] = []

    def feed(self, batch: LogBatch, first: int) -> None:
        """The CLOCK events of a batch, one at least; `first`: number of its first record."""
        rows = integers(batch, CLOCK, ("mono_ns", "realtime_ns", "uncertainty_ns", "step_ns"))
        mono, real = rows[:, 0].astype(np.uint64), rows[:, 1].astype(np.uint64)
        room, step = rows[:, 2], rows[:, 3]
        every = np.ones(len(rows), np.bool_)
        found = self.pairs.feed(mono, real, step, room, every, every)
        at = batch.where(CLOCK)
        for pair in np.flatnonzero(found.off | found.back)[: _MOST - len(self.wrong)].tolist():
            if found.back[pair]:
                what = f"the monotonic clock of this pair runs back by {found.back_ns[pair]} ns"
            else:
                what = f"the clock pair says a step of {step[pair]} ns"
                what = f"{what}, its values one of {found.found[pair]} ns"
            self.wrong.append((first + int(at[pair]), what))


# When logging was on: a log's KLOGGER_START and KLOGGER_FINISH events, and what lies between.

START, FINISH = "KLOGGER_START", "KLOGGER_FINISH"
DISABLED = 5
"""Value of KLOGGER_FINISH.reason: logging was only switched off."""


class Pauses:
    """Follows a log. begun: it begins with KLOGGER_START; end_reason, end_at, end_ns: the
    KLOGGER_FINISH that is no pause, by name, which record it is, its time.
    """

    def __init__(self, log: LogFormat) -> None:
        self.begun = False
        self.end_reason: str | None = None
        self.end_at = self.end_ns = -1
        self.wrong: list[tuple[int, str]] = []
        event = log.find_event(FINISH)
        field = event.find_field("reason") if event is not None else None
        self._reasons = {} if field is None else log.enums.get(field.type, {})
        self._off_ns: int | None = None
        self._pauses = 0
        self._paused_ns = 0
        self._records_off = 0

    def feed(
        self, batch: LogBatch, present: Set[str], kernel: NDArray[np.int64], first: int
    ) -> None:
        """A batch; present: the names of its events; `kernel`: places of the kernel's records;
        first: number of its first record."""
        changes: list[tuple[int, int | None]] = []
        if START in present:
            changes += [(at, None) for at in batch.where(START).tolist()]
        if FINISH in present:
            reasons = integers(batch, FINISH, ("reason",))[:, 0].tolist()
            changes += list(zip(batch.where(FINISH).tolist(), reasons, strict=True))
        done = 0
        for at, reason in sorted(changes, key=lambda change: change[0]):
            self._off(kernel, done, at, first)
            done = at
            time_ns = int(batch.times_ns[at])
            if reason is None:
                self._start(first + at, time_ns)
            else:
                self._finish(first + at, time_ns, reason)
        self._off(kernel, done, len(batch), first)

    def _start(self, record: int, time_ns: int) -> None:
        # The first record of all is DUMP_BEGIN.
        self.begun = self.begun or record == 1
        if self._off_ns is not None:
            self._paused_ns += max(0, time_ns - self._off_ns)
            self._off_ns = None

    def _finish(self, record: int, time_ns: int, reason: int) -> None:
        if reason == DISABLED:
            if self._off_ns is None:
                self._pauses += 1
                self._off_ns = time_ns
            return
        if self.end_reason is not None:
            self.wrong.append((record, "a second KLOGGER_FINISH that ends the log"))
        self.end_reason = self._reasons.get(reason, str(reason)).lower().replace("_", " ")
        self.end_at, self.end_ns = record, time_ns

    def _off(self, kernel: NDArray[np.int64], start: int, stop: int, first: int) -> None:
        """The kernel's records between two places while logging is off: there should be none."""
        if self._off_ns is None:
            return
        begin, end = np.searchsorted(kernel, (start, stop)).tolist()
        if end > begin and not self._records_off:
            what = "records of the kernel while logging was switched off"
            self.wrong.append((first + int(kernel[begin]), what))
        self._records_off += end - begin

    def notes(self) -> list[str]:
        """For people: how often logging was off."""
        if not self._pauses:
            return []
        still = " and is still" if self._off_ns is not None else ""
        return [f"logging was{still} switched off {self._pauses} time(s), "
                f"{self._paused_ns / 1e9:.3f} s in all"]  # fmt: skip


def verify_log(path: str | os.PathLike[str]) -> Report:
    """Check the log at `path` from the file alone. Damage of any kind is in the report.

    Raises FileError if the file cannot be opened or read.
    """
    try:
        with LogReader(path) as reader:
            check_table(reader.format)
            return prove(_Decoder(reader))
    except DamagedError as error:
        message = error.message.removeprefix(f"{path}: ")
        return Report(str(path), error=message, format="klogger", words=WORDS)


class _Decoder(Decoder):
    """The tape of a log."""

    end = "KLOGGER_FINISH"
    has_all = False
    damaged = KILLED
    """Only a process that was killed makes a log's CPU count damaged records."""

    def __init__(self, reader: LogReader) -> None:
        report = Report(
            str(reader.path),
            size_bytes=reader.walked.size,
            ledger=reader.format.find_event("LEDGER") is not None,
            format="klogger", words=WORDS,
        )  # fmt: skip
        settings = reader.header.get("settings")
        super().__init__(report, Problems(reader.walked.begin, 0), settings)
        self._reader = reader
        self._events = Events(reader.format)
        self.existing = EXISTING if self._events.snapshot >= 0 else None
        mono_ns, realtime_ns, _ = reader.format.clock or (0, 0, 0)
        self.ahead_ns = realtime_ns - mono_ns
        self._clock = ClockEvents()
        self._pauses = Pauses(reader.format)
        self._serial = self.before.serials.get(reader.cpu, 0)
        self._serials = Serials(base=-self._serial, highest=self._serial)
        self._dump: Dump | None = None
        self._programs = NamedPrograms()
        self._ledgers = 0
        self._last: LogLedger | None = None
        self._earlier = 0
        """How many of the CPU's records earlier segments hold, as the first ledger says."""
        self._is_broken = False
        """Some dump so far cannot be read."""
        self._is_placed = isinstance(settings, dict) and settings.get(PLACED) is True

    def name(self, point: int) -> str:
        return self._events.text(point)

    @property
    def serials(self) -> Mapping[int, int]:
        return {0: self._serial}

    @property
    def lost(self) -> Mapping[int, int]:
        return {0: self.before.lost.get(self._reader.cpu, 0)}

    def tape(self) -> Iterator[Item]:
        for what in find_unreadable(self._reader.format):
            self.problems.add_header(what)
        for batch in self._reader.batches():
            if self._dump is None or batch.dump != self._dump.index:
                yield from self._end_dump()
                self._dump = self._begin_dump(batch)
            yield from self._feed(batch, self._dump)
        yield from self._end_dump()
        self.problems.data_offset = self._reader.walked.end
        if (reason := self._pauses.end_reason) is not None:
            at, end_ns = self._pauses.end_at, self._pauses.end_ns
            is_last = at == self.report.entries - 2
            if not is_last:
                self.problems.add(at, "records follow KLOGGER_FINISH")
            yield End(at, reason, is_last, end_ns, end_ns)

    # Dumps.

    def _begin_dump(self, batch: LogBatch) -> Dump:
        expected = 0 if self._dump is None else self._dump.index + 1
        self._is_broken = self._is_broken or batch.dump != expected
        self.problems.data_offset = self._reader.walked.found[-1].offset
        dump = Dump(batch.dump, self.report.entries)
        begin = batch.format.find_event(BEGIN)
        if begin is not None and begin.number == batch.numbers[0]:
            index = int(integers(batch, BEGIN, ("index",))[0, 0])
            if index != batch.dump:
                self.problems.add(dump.first, f"DUMP_BEGIN {index} begins dump {batch.dump}")
        return dump

    def _end_dump(self) -> Iterator[Item]:
        dump = self._dump
        if dump is None:
            return
        body = dump.size + list_bytes(dump.records)
        if dump.told_bytes != [body]:
            told = ", ".join(str(number) for number in dump.told_bytes[:LISTED_AT_ONCE])
            what = f"DUMP_FINISH tells {told} bytes, not {body}"
            self.problems.add(self.report.entries - 1, what)
        if dump.skipped and (dump.ledger is None or dump.ledger.finals != {1}):
            what = f"{dump.skipped} serial(s) missing before a base event"
            self.problems.add(dump.first, what)
        if dump.ledger is not None:
            yield self._make_ledger(dump, dump.ledger)

    def _make_ledger(self, dump: Dump, gathered: Gathered) -> LogLedger:
        problems = self.problems
        # The end that is in the same dump directly follows it.
        stop = self._pauses.end_at if len(gathered.cpu) else -1
        ledger = LogLedger(gathered, stop, self._ledgers, self._events.name, self._programs)
        ledger.stamp_ns = dump.ledger_ns
        ledger.is_sound = ledger.check_form(problems)
        ledger.is_counted = not self._is_broken
        ledger.is_base = self.previous is not None and dump.index == 0
        if ledger.is_base and ledger.is_sound:
            self._serials.kernel += int(ledger.points["in_file"].sum())
            self._earlier = ledger.kernel = self._serials.kernel
        if dump.kernel:
            what = "a dump that holds ledgers holds records of the kernel too"
            problems.add(ledger.index, what)
        if ledger.is_sound and ledger.lacks_cpu:
            problems.add(ledger.index, "ledgers without a CPU_LEDGER")
        if ledger.is_sound and ledger.is_counted:
            ledger.check_serials(problems, self._is_placed)
        self._ledgers, self._last = self._ledgers + 1, ledger
        return ledger

    # Records.

    def _feed(self, batch: LogBatch, dump: Dump) -> Iterator[Item]:
        first = self.report.entries
        present = {event.name for event in batch.events()}
        is_base = self._events.is_base[batch.numbers]
        kernel = np.flatnonzero(~is_base)
        self._feed_serials(batch, is_base, kernel, dump)
        self._feed_times(batch, kernel, first)
        if not present.isdisjoint(LEDGERS):
            if dump.ledger is None:
                yield Opening()
                dump.ledger = Gathered(first, self._serials.kernel, self._serials.highest)
                at = next(batch.where(name)[0] for name in LEDGERS if name in present)
                dump.ledger_ns = int(batch.times_ns[at])
            dump.ledger.feed(batch, present)
        if CLOCK in present:
            self._clock.feed(batch, first)
        if DUMP_FINISH in present:
            dump.told_bytes += integers(batch, DUMP_FINISH, ("bytes",))[:, 0].tolist()
        yield from self._told(batch, present, first)
        self._pauses.feed(batch, present, kernel, first)
        yield Records(self._points(batch, kernel, first))
        dump.size += int(batch.format.payload_sizes[batch.numbers].sum())
        dump.size += RECORD_HEAD_BYTES * len(batch)
        dump.records += len(batch)
        dump.kernel += len(kernel)
        self._serials.kernel += len(kernel)
        self.report.entries += len(batch)

    def _told(self, batch: LogBatch, present: set[str], first: int) -> Iterator[Told]:
        for name, kind in EVENTS.items():
            if name in present:
                yield from (Told(first + at, fact) for at, fact in facts_of(batch, kind))

    def _feed_serials(self, batch: LogBatch, is_base: Mask, kernel: I64, dump: Dump) -> None:
        """Gaps are before the kernel's records; base events are numbered without any, but for
        those of the dump with the final ledger."""
        serials, first = self._serials, self.report.entries
        steps = np.diff(batch.serials, prepend=np.uint64(serials.last)).astype(np.int64)
        gap = steps != 1
        self.report.seq_gaps += int(gap.sum())
        self.report.seq_lost += int(steps.sum()) - len(batch)
        wrong = np.flatnonzero(gap & is_base)
        if len(wrong) and wrong[0] == 0:
            if self._is_broken:
                wrong = wrong[1:]
            elif first == dump.first and steps[0] > 1:
                wrong = wrong[1:]
                dump.skipped = int(steps[0]) - 1
                serials.highest += dump.skipped
        what = "{} serial(s) missing before a base event"
        self.problems.add_each(wrong, first, lambda at: what.format(steps[at] - 1), rest=True)
        if len(kernel):
            base = serials.base + int(np.count_nonzero(is_base[: kernel[-1]]))
            serials.highest = int(batch.serials[kernel[-1]]) - base
        serials.base += int(np.count_nonzero(is_base))
        serials.last = int(batch.serials[-1])

    def _feed_times(self, batch: LogBatch, kernel: I64, first: int) -> None:
        if not len(kernel):
            return
        times = batch.times_ns[kernel].astype(np.int64)
        places, by_ns = runs_back(times, self._serials.last_ns)
        self.problems.add_each(
            np.arange(len(places)),
            first + kernel[places],
            lambda at: f"time runs back by {by_ns[at]} ns",
            rest=True,
        )
        self._serials.last_ns = int(times[-1])

    def _points(self, batch: LogBatch, kernel: I64, first: int) -> I64:
        """The points of the kernel's records."""
        points, strange = self._events.points(batch, kernel)
        if not strange.any():
            return points
        self.problems.add_each(
            np.flatnonzero(strange), first + kernel, lambda at: f"no location {points[at]}"
        )
        return points[~strange]

    # The end.

    @property
    def needs_no_ledger(self) -> bool:
        return self._last is None or self._last.is_quiet

    def conclude(self, found: Found) -> None:
        report, last, end = self.report, self._last, found.end
        if end is not None and last is not None and not last.is_quiet and self._dump is not None:
            is_known = last.final or end.is_early
            if end.is_last and is_known and last.index < self._dump.first:
                self.problems.add(end.entry, "the final ledger is not in the last dump")
        if self._serial and last is None and report.entries:
            what = "the segment does not begin with the ledger of those before it"
            self.problems.add(0, what)
        if report.entries and not self._pauses.begun:
            self.problems.add(0, "the log does not begin with KLOGGER_START")
        self._judge_damage()
        report.clock_pairs, report.clock_steps = self._clock.pairs.pairs, self._clock.pairs.steps
        for row in report.rows:
            row.cpu = self._reader.cpu
        if last is not None and not found.is_early:  # else some come in the next segment
            lost_before = self._serial - self._earlier
            missing = last.of_cpu("serials") - last.kernel - lost_before
            report.seq_lost = max(report.seq_lost, missing)
        self._judge_aside()
        report.notes += self._pauses.notes()

    def describe(self, part: Part, found: Found) -> None:
        part.serials = {self._reader.cpu: self._serials.highest}
        part.entries = self._serials.kernel - self._earlier
        told = [one for one in (found.last, found.base) if one is not None]
        dropped = [int(one.points.sum(*LATE_STAGE).sum()) for one in told]
        part.unsure = bool(dropped) and dropped[0] != sum(dropped[1:])

    def _judge_aside(self) -> None:
        """What is wrong, but for what a full disk or queue may have kept out of the file."""
        last = self._last
        refused = last is not None and bool(last.points.sum(*LATE_STAGE).any())
        for entry, what in (*self._clock.wrong, *self._pauses.wrong):
            if refused:
                self.report.notes.append(f"{what}; events of the collector may be missing")
            else:
                self.problems.add(entry, what)

    def _judge_damage(self) -> None:
        """What the reader found; a cut end is none where the capture did not end in order."""
        walked, report = self._reader.walked, self.report
        is_cut = walked.is_cut and report.end_reason is None
        for problem in self._reader.problems:
            if is_cut and problem.offset is not None and problem.offset >= walked.end:
                continue
            self.problems.data_offset = walked.end if problem.offset is None else problem.offset
            self.problems.add(report.entries, problem.message)
        if is_cut:
            report.notes.append(f"the last dump is cut off: {walked.size - walked.end} bytes")
        if not walked.found:
            report.notes.append("no dump is whole")


# All logs of one capture, a file for each CPU: each alone, then what only all can tell.

_SAME = ("schema", "host", "kernel", "settings", "events")


def verify_logs(path: str | os.PathLike[str]) -> list[Report]:
    """The report of a log, or those of a folder of logs. Raises FileError."""
    return verify_folder(path) if os.path.isdir(path) else [verify_log(path)]


def verify_folder(folder: str | os.PathLike[str]) -> list[Report]:
    """The report of each log in a folder, and last that of all together. Raises FileError."""
    paths = find_logs(folder)
    reports = []
    for path in paths:
        try:
            reports.append(verify_log(path))
        except FileError as error:
            error_exit = error.exit_code
            reports.append(Report(str(path), error=error.message, error_exit=error_exit))
    return [*reports, _join(str(folder), paths, reports)]


def _join(folder: str, paths: Sequence[Path], reports: Sequence[Report]) -> Report:
    whole = Report(folder, ledger=all(one.ledger for one in reports), format="klogger", words=WORDS)
    for one in reports:
        whole.add(one, per_cpu=False)
        whole.ring_lost += one.ring_lost
        whole.after_checkpoint += one.after_checkpoint
        whole.problems_total += one.problems_total
    whole.clock_steps = max(one.clock_steps for one in reports)
    whole.proven_end = all(one.proven_end for one in reports)
    reasons = {one.end_reason for one in reports}
    whole.end_reason = reasons.pop() if len(reasons) == 1 else None
    whole.notes.append(f"{len(reports)} log(s), one for each CPU")
    for one in reports:
        if one.error is not None:
            _add(whole, f"{one.path}: {one.error}")
        elif one.problems_total:
            whole.notes.append(f"{one.path} does not add up: see above")
    if len({reason for reason in reasons if reason}) > 1:
        _add(whole, "the logs say that the capture ended for different reasons")
    _compare(whole, paths)
    whole.part = _join_parts(reports)
    _join_windows(whole, reports)
    told = [note for one in reports for note in one.notes]
    whole.notes += [note for note in told if note.startswith(RECONCILED_WORDS)]
    whole.notes += whole.about_unseen(told)
    for one in reports:  # the time is in one of the logs
        one.details |= whole.details
    return whole


def _compare(whole: Report, paths: Sequence[Path]) -> None:
    """The headers are of one capture, and each file is that of the CPU in its name."""
    first: Mapping[str, Any] | None = None
    told_programs = False
    for path in paths:
        try:
            with LogReader(path) as reader:
                header, cpu = reader.header, reader.cpu
                program = reader.format.find_event("PROGRAM_LEDGER")
                if program is None or program.number in reader.present():
                    told_programs = True
        except (DamagedError, FileError):
            continue
        match = LOG_NAME.match(path.name)
        if match is not None and int(match[1]) != cpu:
            _add(whole, f"{path.name} is the log of CPU {cpu}")
        first = header if first is None else first
        for key in _SAME:
            if header.get(key) != first.get(key):
                _add(whole, f"{path.name} is of another capture: its {key} is another")
    if first is not None and not told_programs and whole.proven_end:
        _add(whole, "no log tells what the programs missed: the lowest CPU's log is not there")
    if first is not None:
        _count(whole, first.get("settings"), paths)


def _count(whole: Report, settings: object, paths: Sequence[Path]) -> None:
    """No log is missing of those that were begun together, as the headers say."""
    cpus = setting(settings, "logs")
    if not isinstance(cpus, list):
        whole.unchecked.append("whether a CPU's log is missing (the headers do not say)")
        return
    names = {path.name for path in paths}
    for name in [f"{PREFIX}{cpu}" for cpu in cpus[:MOST_PROBLEMS] if type(cpu) is int]:
        if name not in names:
            _add(whole, f"{name} is missing")


def _add(whole: Report, what: str) -> None:
    whole.problems.append(Problem(0, -1, what))
    whole.problems_total += 1


def _join_parts(reports: Sequence[Report]) -> Part | None:
    """The segment whose logs have these reports; None where they are none."""
    parts = [one.part for one in reports if one.part is not None]
    if not parts:
        return None
    previous = parts[0].previous
    serials = dict(previous.serials) if previous is not None else {}
    for part in parts:
        serials |= part.serials
    unsure = any(part.unsure for part in parts)
    return replace(
        parts[0],
        entries=sum(part.entries for part in parts) + (previous.entries if previous else 0),
        last_seq=UNKNOWN if unsure else sum(serials.values()),
        goes_on=all(part.goes_on for part in parts),
        unsure=unsure,
        serials=serials,
        first="".join(part.first for part in parts),
        last="".join(part.last for part in parts),
    )


def _join_windows(whole: Report, reports: Sequence[Report]) -> None:
    """What all logs of a dump hold."""
    lines = list(dict.fromkeys(line for one in reports for line in one.window))
    spans = [line for line in lines if line.startswith(("complete from", "not complete from"))]
    worst = next((line for line in spans if line.startswith("not")), spans[0] if spans else "")
    whole.evicted = sum(one.evicted for one in reports)
    if worst:
        evicted = f"{worst}; {evicted_words(whole.evicted)}"
        whole.window = [evicted, *(line for line in lines if line not in spans)]
