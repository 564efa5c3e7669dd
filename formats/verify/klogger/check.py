# SPDX-License-Identifier: Apache-2.0
"""Reads one Klogger log from start to end, a batch at a time, and runs all of its checks."""

from __future__ import annotations

import os

import numpy as np

from formats.base.causes import KILLED
from formats.base.control import EXISTING
from formats.base.errors import DamagedError
from formats.base.shedding import steps_of
from formats.klogger.batch import LogBatch, changes_of
from formats.klogger.reader import LogReader
from formats.klogger.table import RECORD_HEAD_BYTES
from formats.klogger.walk import list_bytes
from formats.verify.balance import (
    build_rows,
    check_before,
    check_counts,
    check_rise,
    check_sums,
    compare_rings,
    subtract,
)
from formats.verify.changes import ChangeCheck
from formats.verify.clock import runs_back
from formats.verify.klogger.books import (
    LEDGERS,
    Dump,
    Gathered,
    LogLedger,
    Serials,
    SoFar,
    integers,
)
from formats.verify.klogger.clock import CLOCK, ClockEvents
from formats.verify.klogger.dump import LogWindow
from formats.verify.klogger.events import (
    BEGIN,
    DUMP_FINISH,
    WORDS,
    Events,
    check_table,
    find_unreadable,
)
from formats.verify.klogger.pauses import Pauses
from formats.verify.klogger.reconciled import feed_reconciled
from formats.verify.klogger.segment import EARLY, LogSegment
from formats.verify.ledger import LATE_STAGE, Tally
from formats.verify.report import (
    I64,
    LISTED_AT_ONCE,
    NOT_CLOSED,
    Mask,
    Problems,
    Report,
    find_unproven,
    find_unseen,
)


def verify_log(path: str | os.PathLike[str]) -> Report:
    """Check the log at `path` from the file alone. Damage of any kind is in the report.

    Raises FileError if the file cannot be opened or read.
    """
    try:
        with LogReader(path) as reader:
            check_table(reader.format)
            return _Run(reader).run()
    except DamagedError as error:
        message = error.message.removeprefix(f"{path}: ")
        return Report(str(path), error=message, format="klogger", words=WORDS)


class _Run:
    """One pass over a log."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._events = Events(reader.format)
        self._problems = Problems(reader.walked.begin, 0)
        self._report = Report(
            str(reader.path),
            size_bytes=reader.walked.size,
            ledger=reader.format.find_event("LEDGER") is not None,
            format="klogger", words=WORDS,
        )
        self._clock = ClockEvents()
        self._pauses = Pauses(reader.format)
        self._changes = ChangeCheck(self._problems)
        self._tally = Tally()
        self._segment = LogSegment(reader, self._problems)
        self._window = LogWindow(reader.header.get("settings"), self._problems)
        self._serials = Serials(base=-self._segment.serial, highest=self._segment.serial)
        self._dump: Dump | None = None
        self._programs: dict[str, int] = {}
        self._last: LogLedger | None = None
        self._is_broken = False
        """Some dump so far cannot be read."""

    def run(self) -> Report:
        for what in find_unreadable(self._reader.format):
            self._problems.add_header(what)
        for batch in self._reader.batches():
            if self._dump is None or batch.dump != self._dump.index:
                self._end_dump()
                self._dump = self._begin_dump(batch)
            self._feed(batch, self._dump)
        self._end_dump()
        self._finish()
        return self._report

    def _add(self, entry: int, what: str) -> None:
        self._problems.add(entry, what)

    # Dumps.

    def _begin_dump(self, batch: LogBatch) -> Dump:
        expected = 0 if self._dump is None else self._dump.index + 1
        self._is_broken = self._is_broken or batch.dump != expected
        self._problems.data_offset = self._reader.walked.found[-1].offset
        dump = Dump(batch.dump, self._report.entries)
        begin = batch.format.find_event(BEGIN)
        if begin is not None and begin.number == batch.numbers[0]:
            index = int(integers(batch, BEGIN, ("index",))[0, 0])
            if index != batch.dump:
                self._add(dump.first, f"DUMP_BEGIN {index} begins dump {batch.dump}")
        return dump

    def _end_dump(self) -> None:
        dump = self._dump
        if dump is None:
            return
        body = dump.size + list_bytes(dump.records)
        if dump.told_bytes != [body]:
            told = ", ".join(str(number) for number in dump.told_bytes[:LISTED_AT_ONCE])
            self._add(self._report.entries - 1, f"DUMP_FINISH tells {told} bytes, not {body}")
        if dump.ledger is not None:
            self._end_ledger(dump, dump.ledger)

    def _end_ledger(self, dump: Dump, gathered: Gathered) -> None:
        problems, before = self._problems, self._last
        number = self._report.checkpoints
        if self._segment.is_later and dump.index == 0:
            gathered = self._read_base(dump, gathered)
        ledger = LogLedger(gathered, number, self._events.name, self._programs)
        if self._segment.is_later and dump.index == 0:
            self._segment.base = ledger
        self._report.checkpoints, self._last = number + 1, ledger
        if dump.kernel:
            what = "a dump that holds ledgers holds records of the kernel too"
            self._add(ledger.index, what)
        if not ledger.check_form(problems):
            return
        check_sums(problems, ledger)
        if ledger.lacks_cpu:
            self._add(ledger.index, "ledgers without a CPU_LEDGER")
        if not self._is_broken:
            check_counts(problems, ledger)
            ledger.check_serials(problems)
        if before is not None:
            if before.final:
                self._add(ledger.index, "a ledger follows the final one")
            check_rise(problems, before, ledger)

    def _read_base(self, dump: Dump, gathered: Gathered) -> Gathered:
        """The first ledger of a later segment: the records of those before count too."""
        ledger = LogLedger(gathered, 0, self._events.name, {})
        if not ledger.check_form(Problems(0, 0)):
            return gathered
        self._serials.kernel += self._segment.begin(ledger, self._tally)
        counts, serials = self._tally.counts.copy(), self._serials
        gathered.before = SoFar(dump.first, counts, serials.kernel, serials.highest)
        return gathered

    # Records.

    def _feed(self, batch: LogBatch, dump: Dump) -> None:
        first = self._report.entries
        is_base = self._events.is_base[batch.numbers]
        kernel = np.flatnonzero(~is_base)
        self._feed_serials(batch, is_base, kernel, first)
        self._feed_times(batch, kernel, first)
        self._feed_base(batch, dump, first)
        self._pauses.feed(batch, kernel, first)
        self._window.feed(batch, first)
        feed_reconciled(batch, first, self._report, self._problems)
        self._count(batch, kernel, first)
        dump.size += int(batch.format.payload_sizes[batch.numbers].sum())
        dump.size += RECORD_HEAD_BYTES * len(batch)
        dump.records += len(batch)
        dump.kernel += len(kernel)
        self._serials.kernel += len(kernel)
        self._report.entries += len(batch)

    def _feed_base(self, batch: LogBatch, dump: Dump, first: int) -> None:
        """The collector's events that verify counts with."""
        present = {event.name for event in batch.events()}
        if not present.isdisjoint(LEDGERS):
            if dump.ledger is None:
                serials, counts = self._serials, self._tally.counts.copy()
                dump.ledger = Gathered(SoFar(first, counts, serials.kernel, serials.highest))
                at = next(batch.where(name)[0] for name in LEDGERS if name in present)
                dump.ledger_ns = int(batch.times_ns[at])
            dump.ledger.feed(batch)
        if CLOCK in present:
            self._clock.feed(batch, first)
        for at, change in changes_of(batch):
            self._changes.feed(first + at, change)
        if DUMP_FINISH in present:
            dump.told_bytes += integers(batch, DUMP_FINISH, ("bytes",))[:, 0].tolist()

    def _feed_serials(self, batch: LogBatch, is_base: Mask, kernel: I64, first: int) -> None:
        """Gaps are before the kernel's records alone; base events are numbered without any."""
        serials = self._serials
        steps = np.diff(batch.serials, prepend=np.uint64(serials.last)).astype(np.int64)
        gap = steps != 1
        self._report.seq_gaps += int(gap.sum())
        self._report.seq_lost += int(steps.sum()) - len(batch)
        wrong = np.flatnonzero(gap & is_base)
        if self._is_broken and len(wrong) and wrong[0] == 0:
            wrong = wrong[1:]
        what = "{} serial(s) missing before a base event"
        self._problems.add_each(wrong, first, lambda at: what.format(steps[at] - 1), rest=True)
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
        self._problems.add_each(
            np.arange(len(places)),
            first + kernel[places],
            lambda at: f"time runs back by {by_ns[at]} ns",
            rest=True,
        )
        self._serials.last_ns = int(times[-1])

    def _count(self, batch: LogBatch, kernel: I64, first: int) -> None:
        """Count the kernel's records by point."""
        points, strange = self._events.points(batch, kernel)
        self._problems.add_each(
            np.flatnonzero(strange), first + kernel, lambda at: f"no location {points[at]}"
        )
        self._tally.add(points[~strange])

    # The end.

    def _finish(self) -> None:
        report, last, segment = self._report, self._last, self._segment
        self._problems.data_offset = self._reader.walked.end
        self._judge_end()
        if segment.serial and segment.base is None and report.entries:
            self._add(0, "the segment does not begin with the ledger of those before it")
        elif segment.base is not None:
            before = {0: segment.serial}, {0: segment.lost_early}
            check_before(self._problems, segment.base, *before)
        if report.entries and not self._pauses.begun:
            self._add(0, "the log does not begin with KLOGGER_START")
        self._judge_damage()
        report.clock_pairs, report.clock_steps = self._clock.pairs.pairs, self._clock.pairs.steps
        if last is not None:
            name = self._events.text
            # Only a process that was killed makes a log's CPU count damaged records.
            report.rows = build_rows(last, True, name, KILLED)
            if segment.base is not None:
                subtract(report.rows, build_rows(segment.base, True, name, KILLED))
            for row in report.rows:
                row.cpu = self._reader.cpu
            report.missed = last.missed(segment.base)
            report.ring_lost = last.of_cpu("ring_lost")
            report.notes += compare_rings(last)
            if report.end_reason not in EARLY:  # else some are on their way into the next segment
                missing = last.of_cpu("serials") - last.before.kernel - segment.lost_before
                report.seq_lost = max(report.seq_lost, missing)
        report.after_checkpoint = self._serials.kernel - (last.before.kernel if last else 0)
        if self._events.snapshot >= 0:
            report.existing = self._tally.of_point(EXISTING)
            if segment.base is not None:
                report.existing -= int(segment.base.before.counts[EXISTING])
        self._judge_aside()
        settings = self._reader.header.get("settings")
        report.unproven = find_unproven(settings)
        report.notes += find_unseen(settings)
        mono_ns, realtime_ns, _ = self._reader.format.clock or (0, 0, 0)
        real_ns = realtime_ns - mono_ns
        steps = steps_of(settings)
        self._changes.conclude(report, self._events.text, lambda ns: ns + real_ns, steps)
        report.notes += self._pauses.notes()
        cpu = self._reader.cpu
        self._window.conclude(report, segment, cpu, lambda ns: ns + real_ns)
        segment.end(report, cpu, last, self._serials.highest, self._serials.kernel)
        report.settle(self._problems)

    def _judge_end(self) -> None:
        """KLOGGER_FINISH is the last but one record, in one dump with the final ledger."""
        report, last, pauses = self._report, self._last, self._pauses
        report.end_reason = pauses.end_reason
        if pauses.end_reason is None:
            return
        is_quiet = last is None or last.is_quiet
        is_early = report.end_reason in EARLY
        is_known = is_quiet or (last is not None and (last.final or is_early))
        if is_early and self._segment.part is None:
            self._add(pauses.end_at, "KLOGGER_FINISH says that another file follows this one")
        is_last = pauses.end_at == report.entries - 2
        if not is_last:
            self._add(pauses.end_at, "records follow KLOGGER_FINISH")
        elif not is_known and not pauses.failed:
            self._add(pauses.end_at, "KLOGGER_FINISH without a final ledger before it")
        elif not is_quiet and is_known and self._dump and last and last.index < self._dump.first:
            self._add(pauses.end_at, "the final ledger is not in the last dump")
        end_ns = pauses.end_ns if is_early else None
        is_closed = self._dump is not None and self._dump.closes(end_ns)
        report.proven_end = is_known and is_last and is_closed
        if is_last and not report.proven_end:
            report.notes.append(NOT_CLOSED)

    def _judge_aside(self) -> None:
        """What is wrong, but for what a full disk or queue may have kept out of the file."""
        last = self._last
        refused = last is not None and bool(last.points.sum(*LATE_STAGE).any())
        for entry, what in (*self._clock.wrong, *self._pauses.wrong):
            if refused:
                self._report.notes.append(f"{what}; events of the collector may be missing")
            else:
                self._add(entry, what)

    def _judge_damage(self) -> None:
        """What the reader found; a cut end is none where the capture did not end in order."""
        walked, report = self._reader.walked, self._report
        is_cut = walked.is_cut and report.end_reason is None
        for problem in self._reader.problems:
            if is_cut and problem.offset is not None and problem.offset >= walked.end:
                continue
            self._problems.data_offset = walked.end if problem.offset is None else problem.offset
            self._add(report.entries, problem.message)
        if is_cut:
            report.notes.append(f"the last dump is cut off: {walked.size - walked.end} bytes")
        if not walked.found:
            report.notes.append("no dump is whole")
