# SPDX-License-Identifier: Apache-2.0
"""Reads one capture from start to end, a segment at a time, and runs all of verify's checks."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from formats.base import control
from formats.base.causes import KILLED
from formats.base.errors import DamagedError, UnprovenError
from formats.base.limits import MOST_CPUS
from formats.base.reconciled import Reconciled, What, from_words
from formats.base.shedding import steps_of
from formats.psc.header import HEADER_DAMAGED
from formats.psc.reader import Capture, open_capture
from formats.verify.balance import build_rows, check_before, compare_rings, subtract
from formats.verify.changes import ChangeCheck
from formats.verify.ledger import POINTS
from formats.verify.psc.checkpoints import Checkpoint
from formats.verify.psc.clock import ClockCheck
from formats.verify.psc.cuts import tell_cuts
from formats.verify.psc.dump import DumpCheck, Window, tell_states
from formats.verify.psc.entries import (
    NO_ROWS,
    ControlRows,
    Segment,
    has_our_header,
    is_number,
    is_ours,
)
from formats.verify.psc.landmarks import EARLY, Landmarks
from formats.verify.psc.losses import LossSums, check_losses, check_serials
from formats.verify.psc.sequence import SequenceCheck, SequenceReader, is_unsure
from formats.verify.psc.serials import SerialCheck
from formats.verify.report import (
    DAMAGED,
    I64,
    LISTED_AT_ONCE,
    LOSSES,
    NOT_CLOSED,
    Mask,
    Problems,
    Report,
    find_unproven,
    find_unseen,
)  # fmt: skip
from formats.verify.segment import Part, Previous, find_part

SEGMENT_ROWS = 1 << 16


def verify_file(path: str | os.PathLike[str]) -> Report:
    """Check the capture at `path` from the file alone. Damage of any kind is in the report.

    Raises FileError if the file cannot be opened or read.
    """
    try:
        with open_capture(path) as capture:
            return verify_capture(capture)
    except DamagedError as error:
        return Report(str(path), error=error.message.removeprefix(f"{path}: "))
    except UnprovenError as error:
        return Report(str(path), error=f"not proven: {error.message}", error_exit=LOSSES)


def verify_capture(capture: Capture) -> Report:
    """Check an open capture."""
    size_bytes = os.stat(capture.path).st_size
    count, entry_size = len(capture), capture.header.entry_size
    # The reader takes every whole entry from the header's end on.
    offset = int(getattr(capture.array, "offset", size_bytes))
    problems = Problems(offset, entry_size)
    report = Report(str(capture.path), count, size_bytes, is_ours(capture))
    if report.ledger:
        try:
            report.part = find_part(capture.settings)
        except ValueError as error:
            problems.add_header(str(error))
        _LedgerRun(capture, problems, report).run()
    elif has_our_header(capture):
        report.error = "the header describes no ledger, although tcpkmon wrote it: it is damaged"
    elif capture.seq_column is None:
        report.error = "the file has no sequence numbers: nothing can be checked"
    else:
        sequence = SequenceCheck(problems, ledger=False)
        for piece in capture.chunks(SEGMENT_ROWS):
            sequence.feed(piece.start, capture.seq(piece.start, piece.stop), NO_ROWS)
        report.seq_lost, report.seq_gaps = sequence.lost, sequence.gaps
    for what in capture.find_unreadable():
        problems.add_header(what)
    if capture.is_cut:
        _judge_cut(capture, report, problems, offset)
    if not capture.header.is_intact:
        problems.add_header(HEADER_DAMAGED)
    report.unproven = find_unproven(capture.settings)
    report.notes += find_unseen(capture.settings)
    report.unchecked += _unchecked(capture, report.ledger)
    report.settle(problems)
    report.notes.extend(text for text in capture.warnings if text != HEADER_DAMAGED)
    return report


def _unchecked(capture: Capture, has_ledger: bool) -> Iterator[str]:
    """What this file does not let verify check."""
    if not capture.header.has_checksum:
        yield "the header (it has no checksum)"
    if not has_ledger:
        return
    lacking = [name for name in ("cpu", "serial", "time_ns") if not is_number(capture, name)]
    without = {"cpu": "each CPU's counts", "serial": "serials", "time_ns": "times to the ns"}
    for name in lacking:
        yield f"{without[name]} (no column {name})"


def _judge_cut(capture: Capture, report: Report, problems: Problems, offset: int) -> None:
    """A last entry cut short is damage, but for a capture that was killed: part of its tail."""
    if report.ledger and report.end_reason is None:
        return
    problems.add(len(capture), "the file is cut short within an entry")


class _LedgerRun:
    """One pass over a file that has control entries."""

    def __init__(self, capture: Capture, problems: Problems, report: Report) -> None:
        self._capture = capture
        self._problems = problems
        self._report = report
        previous = report.part.previous if report.part is not None else None
        self._has_cpu = is_number(capture, "cpu")
        self._has_serial = self._has_cpu and is_number(capture, "serial")
        self._has_mono = is_number(capture, "time_ns")
        time = capture.columns_by_name.get("time")
        self._has_time = time is not None and time.is_time
        self._reader = SequenceReader(capture, problems)
        last_seq = previous.last_seq if previous else 0
        self._sequence = SequenceCheck(problems, ledger=True, before=last_seq)
        self._serials = SerialCheck(problems, previous.serials if previous else None)
        self._clock = ClockCheck(problems)
        self._sums = LossSums(before=previous or Previous())
        self._changes = ChangeCheck(problems)
        self._marks = Landmarks(problems, self._has_cpu, self._sums, previous)
        self._dump = DumpCheck(capture.settings, problems)
        self._unsure_at = -1
        self._locations: int | None = None
        self._offset_ns = 0

    def run(self) -> None:
        for piece in self._capture.chunks(SEGMENT_ROWS):
            self._segment(Segment(self._capture, piece.start, piece.stop))
        self._finish()

    def _segment(self, segment: Segment) -> None:
        location = segment.wide("location")
        mask = self._control_mask(segment, location)
        rows = segment.control_rows(mask)
        what = "a control entry with bytes that should be zero"
        self._problems.add_each(segment.strange_tails(rows), 0, lambda _: what)
        seq = self._reader.read(segment)
        self._sequence.feed(segment.start, seq, rows)
        self._sums.feed(rows)
        loss = rows.take(rows.location == control.Loss.location)
        unsure_at = np.concatenate(
            (np.array([self._unsure_at]), loss.index[is_unsure(loss)])
        ).astype(np.int64)
        self._starts(segment, rows)
        self._clock.feed(rows, unsure_at)
        for at in np.flatnonzero(rows.location == control.Change.location).tolist():
            change = rows.decode(at)
            assert isinstance(change, control.Change)
            self._changes.feed(int(rows.index[at]), change)
        self._dump.feed(rows, segment, self._has_mono)
        self._reconciled(rows)
        plain = np.flatnonzero((location > 0) & (location < POINTS) & ~mask)
        cpu = self._cpus(segment, plain)
        self._times(segment, plain)
        self._marks.feed(segment, rows, seq, plain + segment.start, location[plain], cpu, unsure_at)
        if self._has_serial:
            self._feed_serials(segment, rows, plain, cpu)
        self._unsure_at = int(unsure_at[-1])

    def _reconciled(self, rows: ControlRows) -> None:
        """What the kernel's sockets said: a summary, and differences that no loss explains."""
        for at in np.flatnonzero(rows.location == Reconciled.location).tolist():
            found = from_words(int(rows.callvalue[at]), rows.words[at].tolist())
            if found.what == What.SUMMARY:
                self._report.notes.append(found.describe())
            else:
                self._problems.add(int(rows.index[at]), found.describe())

    def _control_mask(self, segment: Segment, location: I64) -> Mask:
        """Control entries; complains of locations that cannot be."""
        mask = control.is_control(location)
        high = np.flatnonzero(mask)
        ports = segment.rows["lport"][high] | segment.rows["rport"][high]
        strange = (ports != 0) | (location[high] > Reconciled.location)
        self._problems.add_each(
            high[strange],
            segment.start,
            lambda at: f"no control entry has location {location[at]} and these ports",
        )
        self._problems.add_each(
            np.flatnonzero(location <= 0),
            segment.start,
            lambda at: f"no entry has location {location[at]}",
        )
        mask[high[strange]] = False
        return mask

    def _starts(self, segment: Segment, rows: ControlRows) -> None:
        starts = np.flatnonzero(rows.location == control.Start.location)
        for at in starts[:LISTED_AT_ONCE]:
            if rows.index[at]:
                self._problems.add(rows.index[at], "a second START entry")
        if segment.start:
            return
        if len(starts) and rows.index[starts[0]] == 0:
            start = rows.decode(int(starts[0]))
            assert isinstance(start, control.Start)
            self._marks.cpu_limit = min(start.cpus, 0xFFFF) or MOST_CPUS
            self._locations = start.locations
            self._offset_ns = start.realtime_ns - start.mono_ns
            if start.version == 2 and not self._capture.header.has_checksum:
                self._problems.add_header("the header has lost its checksum")
            if start.version not in (1, control.FORMAT_VERSION):
                self._problems.add(0, f"format version {start.version} is not known")
        elif not (rows.index[:1].tolist() == [0] and is_unsure(rows)[0]):
            self._problems.add(0, "the file does not begin with a START entry")

    def _cpus(self, segment: Segment, plain: I64) -> I64:
        if not self._has_cpu:
            return np.zeros(len(plain), np.int64)
        cpu = segment.wide("cpu")[plain]
        beyond = np.flatnonzero((cpu < 0) | (cpu >= self._marks.cpu_limit))
        entries = segment.start + plain
        what = "CPU {} is not possible here"
        self._problems.add_each(beyond, entries, lambda at: what.format(cpu[at]), rest=True)
        cpu[beyond] = 0
        return cpu

    def _times(self, segment: Segment, plain: I64) -> None:
        if not self._has_time:
            return
        time = segment.time_ns()
        if self._has_mono:
            mono = segment.wide("time_ns")
            there = np.flatnonzero(mono)
            self._clock.feed_both(there + segment.start, time[there], mono[there])
        else:
            self._clock.feed_time(plain + segment.start, time[plain])

    def _feed_serials(self, segment: Segment, rows: ControlRows, plain: I64, cpu: I64) -> None:
        serial = segment.numbers("serial").astype(np.uint64)[plain]
        mono = segment.wide("time_ns")[plain] if self._has_mono else None
        index = plain + segment.start
        cut, row_cut = 0, 0
        if self._marks.checkpoint_at >= segment.start:
            cut = int(np.searchsorted(index, self._marks.checkpoint_at))
            row_cut = int(np.searchsorted(rows.index, self._marks.checkpoint_at))
        at = np.arange(len(rows))
        for part, here in (
            (slice(0, cut), rows.take(at[:row_cut])),
            (slice(cut, None), rows.take(at[row_cut:])),
        ):
            time = None if mono is None else mono[part]
            self._serials.feed(index[part], cpu[part], serial[part], time, here)
            if part.start == 0 and row_cut:
                self._serials.mark()

    def _finish(self) -> None:
        report, problems, marks = self._report, self._problems, self._marks
        self._marks.finish()
        self._clock.finish()
        last, entry = self._marks.last, -1
        if self._marks.end is not None:
            entry, end = self._marks.end
            reasons = {reason.value: reason.name.lower() for reason in control.EndReason}
            report.end_reason = reasons.get(end.reason, str(end.reason)).replace("_", " ")
            if entry != report.entries - 1:
                problems.add(entry, "entries follow END")
            final = last is not None and last.final
            report.proven_end = self._marks.is_closed and entry == report.entries - 1
            early = end.reason in (control.EndReason.ERROR, *EARLY)
            if not final and not early and not self._sums.unsure:
                problems.add(entry, "END without a final checkpoint before it")
        rotated = self._marks.is_rotated
        if rotated and report.part is None:
            problems.add(report.entries - 1, "END says that another file follows this one")
        if self._marks.end is not None and not report.proven_end:
            report.notes.append(NOT_CLOSED)
        if self._has_serial:
            entries = max(report.entries - 1, 0)
            check_serials(problems, last, self._serials, self._sums, entries, rotated)
        report.seq_lost, report.seq_gaps = self._sequence.lost, self._sequence.gaps
        report.checkpoints = self._marks.number - self._marks.previous.checkpoints
        pairs = self._clock.pairs
        report.clock_pairs, report.clock_steps = pairs.pairs, pairs.steps
        report.existing = self._marks.tally.of_point(control.EXISTING) - self._marks.existing_before
        tell_states(self._capture, report)
        snapshots = int(self._marks.tally.counts.sum())
        report.after_checkpoint = snapshots - (int(last.counts.sum()) if last else 0)
        if last is not None:
            self._conclude(last)
        tell_cuts(self._capture.settings, report, problems)
        name, offset_ns = self._capture.location_name, self._offset_ns
        steps = steps_of(self._capture.settings)
        self._changes.conclude(report, name, lambda mono_ns: mono_ns + offset_ns, steps)
        dumped = marks.end is not None and marks.end[1].reason == control.EndReason.DUMPED
        window = Window(marks.previous, marks.base, entry if dumped else None)
        if marks.base is not None:
            check_before(problems, marks.base, marks.previous.serials, marks.previous.lost)
        self._dump.conclude(report, window, lambda mono_ns: mono_ns + offset_ns)
        if report.part is not None:
            self._describe(report.part)
        if self._marks.broken:
            report.notes.append(f"{self._marks.broken} checkpoint(s) lost in part")

    def _describe(self, part: Part) -> None:
        """Where this segment of a capture ends."""
        marks, before = self._marks, self._marks.previous
        part.last_seq = self._sequence.last
        part.entries = before.entries + self._report.entries
        part.goes_on, part.unsure = marks.is_rotated, self._sums.unsure > 0 or not self._has_serial
        part.serials = {cpu: one.highest for cpu, one in self._serials.cpus.items()}
        part.first = marks.base.digest if marks.base is not None else ""
        part.last = marks.last.digest if marks.last is not None else ""

    def _conclude(self, last: Checkpoint) -> None:
        report, name = self._report, self._capture.location_name
        if last.final:
            check_losses(self._problems, last, self._sums)
            if report.after_checkpoint:
                self._problems.add(last.index, "snapshots follow the final checkpoint")
        # A capture that went on where it was killed counts as damaged what was lost by that.
        went_on = self._sums.killed or self._capture.settings.get("went_on") is True
        damaged = KILLED if went_on else DAMAGED
        report.rows = build_rows(last, self._has_cpu, name, damaged)
        if self._marks.base is not None:
            subtract(report.rows, build_rows(self._marks.base, self._has_cpu, name, damaged))
        report.missed = last.missed(name, self._marks.base)
        report.ring_lost = int(last.cpu_rows["ring_lost"].sum())
        report.notes += compare_rings(last)
        points = {row.location for row in report.rows if row.location != control.EXISTING}
        if self._locations is not None and len(points) > self._locations:
            self._problems.add(
                last.index, f"{len(points)} locations where START enabled {self._locations}"
            )
