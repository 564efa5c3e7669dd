# SPDX-License-Identifier: Apache-2.0
"""A capture file as a tape: what its decoder yields, in the order of the file; and its proof.

    Records | Told Told ... | Opening ... Ledger | Records | ... | End

prove() proves a tape, whatever its format: the balance of its ledgers, changes, windows of dumps,
the rules of an end. What only one format has (sequence numbers, checksums, dumps), its decoder
checks itself, and adds to the same problems.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.base.changes import ChangeKind, Off, Switches, describe, iso
from tcpkmon.formats.base.control import EXISTING, Change, Control, EndReason, Trigger
from tcpkmon.formats.base.reconciled import Reconciled, What
from tcpkmon.formats.base.settings import setting
from tcpkmon.formats.base.shedding import Shed, steps_of
from tcpkmon.formats.base.unseen import Unseen
from tcpkmon.formats.verify.ledger import (
    NUMBERED,
    Ledger,
    Tally,
    build_rows,
    by_cpu,
    check_before,
    check_counts,
    check_rise,
    check_sums,
    compare_rings,
    of_point,
    subtract,
    sum_by_point,
)
from tcpkmon.formats.verify.report import (
    DAMAGED,
    I64,
    NOT_CLOSED,
    Part,
    Previous,
    Problems,
    Report,
    find_anonymised,
    find_part,
    find_unproven,
    find_unseen,
)

EARLY = ("rotated", "dumped")
"""Reasons for an end at which the capture goes on."""
FAILED = "error"


@dataclass(frozen=True)
class Records:
    """Records of events: cpu * POINTS + point of each; a file without CPUs has cpu 0."""

    keys: I64


class Opening:
    """A ledger begins here: it counts the records before. Without one, it does at its end."""


@dataclass(frozen=True)
class Told:
    """Something that the collector tells, and which entry of the file tells it."""

    entry: int
    what: Control


@dataclass(frozen=True)
class End:
    """The end of the capture, or of its segment; the last item. reason: as people read it.

    is_last: nothing follows it in the file. stamp_ns: to compare with that of its ledger, None:
    unknown. mono_ns: CLOCK_MONOTONIC up to which all records are in the file, None: unknown.
    """

    entry: int
    reason: str
    is_last: bool
    stamp_ns: int | None
    mono_ns: int | None

    @property
    def is_early(self) -> bool:
        """Whether the capture goes on."""
        return self.reason in EARLY


Item = Records | Opening | Told | Ledger | End


def reason_of(number: int) -> str:
    """Why a capture ended, as people read it; the number where nobody knows it."""
    known = number in tuple(EndReason)
    return EndReason(number).name.lower().replace("_", " ") if known else str(number)


@dataclass
class Found:
    """What a run found: the last ledger; the base, the first one of a later segment, which counts
    what earlier ones held; the end. None where there is none."""

    last: Ledger | None = None
    base: Ledger | None = None
    end: End | None = None

    @property
    def is_early(self) -> bool:
        """Whether the file ends at a point of its capture, which goes on."""
        return self.end is not None and self.end.is_early


class Decoder(ABC):
    """Reads a file as a tape. part: the segment that it is, if it is one; before: what was in the
    segments before it, previous: the same, None where it is the first."""

    end = "END"
    """What the end is called in such a file."""
    has_cpu = True
    """The file tells of which CPU a record is."""
    has_all = True
    """The file has the records of all CPUs."""
    existing: int | None = EXISTING
    """The point of connections that were open before the start."""
    damaged = DAMAGED
    """The cause of what a CPU counts as damaged."""
    ahead_ns = 0
    """The time of day less CLOCK_MONOTONIC."""

    def __init__(self, report: Report, problems: Problems, settings: object) -> None:
        self.report = report
        self.problems = problems
        self.settings = settings
        try:
            report.part = find_part(settings)
        except ValueError as error:
            problems.add_header(str(error))
        self.previous = report.part.previous if report.part is not None else None
        self.before = self.previous or Previous()

    @abstractmethod
    def tape(self) -> Iterator[Item]:
        """The items of the file."""

    @abstractmethod
    def name(self, point: int) -> str:
        """What a point is called."""

    @property
    def serials(self) -> Mapping[int, int]:
        """By CPU of the ledger's keys, its last serial in the segments before."""
        return self.before.serials

    @property
    def lost(self) -> Mapping[int, int]:
        """By CPU of the ledger's keys, how many of these serials were lost."""
        return self.before.lost

    @property
    def needs_no_ledger(self) -> bool:
        """Whether the end may be without a final ledger: nothing was recorded, or it was lost."""
        return False

    @abstractmethod
    def conclude(self, found: Found) -> None:
        """The tape was read to its end: add what only this format tells, and checks."""

    @abstractmethod
    def describe(self, part: Part, found: Found) -> None:
        """Say where this segment of a capture ends, but for its ledgers."""


# What was changed while a capture ran: the check of its order, the same for every format.

class ChangeCheck:
    """Follows the changes; each begins where the one before it of its kind and number ended."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._switches = Switches()
        self._shed = Shed()
        self._values: dict[tuple[int, int], int] = {}
        self._others: list[str] = []

    def feed(self, entry: int, change: Change) -> None:
        """The next change; entry: its number in the file."""
        key = change.kind, change.which
        told = self._values.get(key, change.old)
        if change.kind > max(ChangeKind):
            self._problems.add(entry, f"CHANGE of unknown kind {change.kind}")
            return
        # A process that goes on where another was killed begins at step 0, whatever was said last.
        begins = change.kind == ChangeKind.SHED and not change.new
        if told != change.old and not begins:
            self._problems.add(entry, f"CHANGE from {change.old}, but {told} was in force")
        if change.before_ns > change.after_ns:
            self._problems.add(entry, "CHANGE ends before it begins")
        if change.why and change.kind != ChangeKind.SHED:
            self._problems.add(entry, "CHANGE with a reason that only the budget has")
        self._values[key] = change.new
        self._shed.feed(change)
        self._switches.feed(change)
        if change.by_others and change.kind != ChangeKind.SWITCH:
            what = f"{ChangeKind(change.kind).name.lower().replace('_', ' ')} {change.which}"
            who = "not tcpkmon changed it"
            self._others.append(f"{what} went from {change.old} to {change.new}; {who}")

    def conclude(
        self,
        report: Report,
        name: Callable[[int], str],
        epoch_ns: Callable[[int], int],
        steps: Sequence[str] = (),
    ) -> None:
        """Put what was found into the report. steps: of the budget, in the file's words."""
        self.off: list[Off] = self._switches.all()
        report.off += describe(self.off, name, epoch_ns)
        report.notes += self._others
        report.shed += self._shed.describe(steps, epoch_ns)


# A dump of the flight recorder: the window that its file holds completely, and its triggers.

MORE = 0xFFFF
"""Trigger.number where the entry counts those that are not named."""
_LISTED = 10
_DUMPED = "dumped"


class Window:
    """Told of each trigger; for other files than dumps it does nothing."""

    def __init__(self, settings: object, problems: Problems) -> None:
        self._problems = problems
        self._from_ns = setting(settings, "recorder", "from_ns")
        texts = setting(settings, "recorder", "triggers")
        self._texts = [str(text) for text in texts] if isinstance(texts, list) else []
        self._fired: list[Trigger] = []
        self._untold = 0

    def fired(self, index: int, trigger: Trigger) -> None:
        """A trigger, in the entry of this number."""
        if not 0 <= trigger.number <= len(self._texts) and trigger.number != MORE:
            what = f"trigger {trigger.number} of {len(self._texts)} that the header has"
            self._problems.add(index, what)
        elif len(self._fired) < _LISTED and trigger.number != MORE:
            self._fired.append(trigger)
        else:
            self._untold += max(1, trigger.count)

    def conclude(
        self, decoder: Decoder, base: Ledger | None, end: End | None, epoch_ns: Callable[[int], int]
    ) -> None:
        """Say what the file holds. epoch_ns: the time of day of a monotonic time."""
        report, previous = decoder.report, decoder.before
        if not previous.evicted:
            if end is not None and end.reason == _DUMPED:
                what = f"{decoder.end} of a dump in a file that is none"
                self._problems.add(end.entry, what)
            return
        report.evicted = previous.entries if decoder.has_all else 0
        before = 0
        if base is not None:
            held = int(base.points["in_file"].sum())
            if decoder.has_all and held != previous.entries:
                what = "the ledger and the header count other records evicted"
                self._problems.add(base.index, what)
            report.evicted = previous.entries if decoder.has_all else held
            before = min(report.seq_lost, _lost_before(base, decoder.lost))
        report.seq_lost -= before
        from_ns = self._from_ns
        if type(from_ns) is not int or not 0 <= from_ns < 1 << 62:
            self._problems.add_header("the header's description of this dump cannot be read")
            return
        until = f"the last {report.word('entry')}"
        if report.proven_end and end is not None and end.mono_ns is not None:
            until = iso(epoch_ns(end.mono_ns))
        more = f"; {evicted_words(report.evicted)}" if decoder.has_all else ""
        report.window.append(f"complete from {iso(epoch_ns(from_ns))} to {until}{more}")
        if before:
            numbers = report.word("numbers")
            what = f"{before:,} {numbers} missing here are of records lost before it"
            report.window.append(what)
        report.window += [describe_trigger(one, self._texts, epoch_ns) for one in self._fired]
        if self._untold:
            report.window.append(f"and {self._untold:,} more triggers")


def evicted_words(count: int) -> str:
    """Of records before a window."""
    return f"{count:,} records before that are evicted"


def _lost_before(base: Ledger, known: Mapping[int, int]) -> int:
    """Losses that the kernel had counted when the window began. Their gap is in the file all the
    same: a gap shows when the next record of its CPU comes."""
    cpus, lost = by_cpu(base.points.keys, base.points.sum(*NUMBERED))
    pairs = zip(cpus.tolist(), lost.tolist(), strict=True)
    return sum(max(0, count - known.get(cpu, 0)) for cpu, count in pairs)


def describe_trigger(
    trigger: Trigger, texts: Sequence[str], epoch_ns: Callable[[int], int]
) -> str:
    """A trigger for people. texts: those of the header; epoch_ns: the time of day of a monotonic
    time."""
    who = f"process {trigger.pid}" if trigger.pid else "SIGUSR2"
    text = f"asked for by {who}"
    if trigger.number and trigger.number <= len(texts):
        text = f"trigger: {texts[trigger.number - 1]}"
    if trigger.conn_id:
        text += f", connection {trigger.conn_id}"
    if trigger.count > 1:
        text += f" ({trigger.count} at once)"
    late_ms = (trigger.told_ns - trigger.mono_ns) / 1e6
    return f"{text}, at {iso(epoch_ns(trigger.mono_ns))}, noticed after {late_ms:.1f} ms"


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
