# SPDX-License-Identifier: Apache-2.0
"""Proves a tape: balance of its ledgers, changes, windows of dumps, the rules of an end."""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.base.control import Change, Trigger
from tcpkmon.formats.base.reconciled import Reconciled, What
from tcpkmon.formats.base.shedding import steps_of
from tcpkmon.formats.base.unseen import Unseen
from tcpkmon.formats.verify.balance import (
    build_rows,
    check_before,
    check_counts,
    check_rise,
    check_sums,
    compare_rings,
    subtract,
    sum_by_point,
)
from tcpkmon.formats.verify.changes import ChangeCheck
from tcpkmon.formats.verify.ledger import Ledger, Tally, of_point
from tcpkmon.formats.verify.report import (
    I64,
    NOT_CLOSED,
    Report,
    find_anonymised,
    find_unproven,
    find_unseen,
)
from tcpkmon.formats.verify.tape import FAILED, Decoder, End, Found, Item, Opening, Records, Told
from tcpkmon.formats.verify.window import Window


def prove(decoder: Decoder) -> Report:
    """The report of a file, whose decoder was made with it."""
    Run(decoder).run()
    decoder.report.settle(decoder.problems)
    return decoder.report


class Run(Found):
    """One pass over a tape. tally: the records so far."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder
        self.report = decoder.report
        self.problems = decoder.problems
        self.tally = Tally()
        self._opened: I64 | None = None
        self._changes = ChangeCheck(self.problems)
        self._window = Window(decoder.settings, self.problems)
        self._unseen: Unseen | None = None

    def run(self) -> None:
        """Read the tape, and fill the report."""
        for item in self.decoder.tape():
            self._feed(item)
        self._finish()

    def _feed(self, item: Item) -> None:
        if isinstance(item, Records):
            self.tally.add(item.keys)
        elif isinstance(item, Told):
            self._tell(item)
        elif isinstance(item, Opening):
            self._opened = self.tally.counts.copy()
        elif isinstance(item, Ledger):
            self._check(item)
        else:
            self.end = item

    def _tell(self, told: Told) -> None:
        match told.what:
            case Change() as change:
                self._changes.feed(told.entry, change)
            case Trigger() as trigger:
                self._window.fired(told.entry, trigger)
            case Unseen() as unseen:
                self._count_unseen(told.entry, unseen)
            case Reconciled(what=What.SUMMARY) as summary:
                self.report.notes.append(summary.describe())
            case Reconciled() as difference:  # that no loss explains
                self.problems.add(told.entry, difference.describe())

    def _count_unseen(self, entry: int, now: Unseen) -> None:
        """What process 1 had of the CPUs since the entry before."""
        before, self._unseen = self._unseen or now, now
        span_ns, cpu_ns = now.mono_ns - before.mono_ns, now.cpu_ns - before.cpu_ns
        if span_ns < 0 or cpu_ns < 0:
            self.problems.add(entry, "the CPU time of process 1 runs back")
        else:
            self.report.add_unseen(cpu_ns, span_ns)

    def _check(self, ledger: Ledger) -> None:
        """The next ledger adds up."""
        problems, before, decoder = self.problems, self.last, self.decoder
        counts, self._opened = self._opened, None
        self.last, self.report.checkpoints = ledger, self.report.checkpoints + 1
        if before is None and decoder.previous is not None:
            if ledger.is_base:
                self.base = ledger
                keys, held = ledger.points.keys, ledger.points["in_file"].view(np.int64)
                self.tally.begin(*((keys, held) if decoder.has_cpu else sum_by_point(keys, held)))
                counts = None
            elif decoder.has_all or any(decoder.serials.values()):
                what = "the segment does not begin with the ledger of those before it"
                problems.add(ledger.index, what)
        ledger.counts = self.tally.counts.copy() if counts is None else counts
        if not ledger.is_sound:
            return
        if before is not None:
            if before.final:
                what = f"a {self.report.word('checkpoint')} follows the final one"
                problems.add(ledger.index, what)
            check_rise(problems, before, ledger)
        check_sums(problems, ledger)
        if ledger.is_counted:
            check_counts(problems, ledger, decoder.has_cpu, ledger.repaired)

    def _finish(self) -> None:
        report, decoder, last, base = self.report, self.decoder, self.last, self.base
        settings = decoder.settings
        self._judge_end()
        if last is not None:
            self._tabulate(last)
        if (point := decoder.existing) is not None:
            before = of_point(base.counts, point) if base is not None else 0
            report.existing = of_point(self.tally.counts, point) - before
        counted = int(last.counts.sum()) if last is not None else 0
        report.after_checkpoint = int(self.tally.counts.sum()) - counted
        if last is not None and last.final and report.after_checkpoint:
            what = f"{report.word('snapshot')}s follow the final {report.word('checkpoint')}"
            self.problems.add(last.index, what)
        decoder.conclude(self)
        report.unproven = find_unproven(settings)
        report.notes += find_unseen(settings)
        report.notes += report.about_unseen() + find_anonymised(settings)

        def epoch_ns(mono_ns: int) -> int:
            return mono_ns + decoder.ahead_ns

        self._changes.conclude(report, decoder.name, epoch_ns, steps_of(settings))
        if base is not None:
            check_before(self.problems, base, decoder.serials, decoder.lost)
        self._window.conclude(decoder, base, self.end, epoch_ns)
        if (part := report.part) is not None:
            decoder.describe(part, self)
            part.goes_on = self.is_early
            part.first = base.digest if base is not None else ""
            part.last = last.digest if last is not None else ""

    def _judge_end(self) -> None:
        """It directly follows the ledger that was made for it, and nothing follows it."""
        end, last, report = self.end, self.last, self.report
        if end is None:
            return
        report.end_reason, name = end.reason, self.decoder.end
        is_final = last is not None and last.final
        if not (is_final or end.is_early or end.reason == FAILED or self.decoder.needs_no_ledger):
            what = f"{name} without a final {report.word('checkpoint')} before it"
            self.problems.add(end.entry, what)
        if end.is_early and report.part is None:
            self.problems.add(end.entry, f"{name} says that another file follows this one")
        report.proven_end = end.is_last and self._is_closed(end)
        if not report.proven_end:
            report.notes.append(NOT_CLOSED)

    def _is_closed(self, end: End) -> bool:
        """Whether it directly follows the last ledger, which is final; or, where the capture goes
        on, was made for this end: it has its time, and is not the first one."""
        last = self.last
        if last is None or last is self.base or last.stop != end.entry:
            return False
        return last.final or (end.is_early and last.stamp_ns == end.stamp_ns is not None)

    def _tabulate(self, last: Ledger) -> None:
        """What the last ledger counts, less what it did when the segment began."""
        report, decoder, base = self.report, self.decoder, self.base
        how = decoder.has_cpu, decoder.name, decoder.damaged
        report.rows = build_rows(last, *how)
        if base is not None:
            subtract(report.rows, build_rows(base, *how))
        report.missed = last.missed(base)
        report.ring_lost = int(last.cpu_rows["ring_lost"].sum())
        notes, report.ring_unexplained = compare_rings(last)
        report.notes += notes
