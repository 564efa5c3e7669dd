# SPDX-License-Identifier: Apache-2.0
"""Reads one Klogger log from start to end, a batch at a time: the tape of a log."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import numpy as np

from tcpkmon.formats.base.causes import KILLED
from tcpkmon.formats.base.control import EXISTING
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.facts import EVENTS
from tcpkmon.formats.klogger.batch import LogBatch, facts_of
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.klogger.table import PLACED, RECORD_HEAD_BYTES
from tcpkmon.formats.klogger.walk import list_bytes
from tcpkmon.formats.verify.clock import runs_back
from tcpkmon.formats.verify.klogger.books import (
    LEDGERS,
    Dump,
    Gathered,
    LogLedger,
    Serials,
    integers,
)
from tcpkmon.formats.verify.klogger.clock import CLOCK, ClockEvents
from tcpkmon.formats.verify.klogger.events import (
    BEGIN,
    DUMP_FINISH,
    WORDS,
    Events,
    check_table,
    find_unreadable,
)
from tcpkmon.formats.verify.klogger.pauses import Pauses
from tcpkmon.formats.verify.ledger import LATE_STAGE, NamedPrograms
from tcpkmon.formats.verify.report import I64, LISTED_AT_ONCE, Mask, Problems, Report
from tcpkmon.formats.verify.run import prove
from tcpkmon.formats.verify.segment import Part
from tcpkmon.formats.verify.tape import Decoder, End, Found, Item, Opening, Records, Told


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
