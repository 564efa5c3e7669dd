# SPDX-License-Identifier: Apache-2.0
"""Reads one capture from start to end, a segment at a time: the tape of a PSC file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import numpy as np

from tcpkmon.formats.base import control, facts
from tcpkmon.formats.base.causes import KILLED
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.limits import MOST_CPUS
from tcpkmon.formats.psc.header import HEADER_DAMAGED
from tcpkmon.formats.psc.reader import Capture, open_capture
from tcpkmon.formats.psc.states import described, find_states
from tcpkmon.formats.verify.ledger import POINTS
from tcpkmon.formats.verify.psc.clock import ClockCheck
from tcpkmon.formats.verify.psc.cuts import tell_cuts
from tcpkmon.formats.verify.psc.entries import (
    NO_ROWS,
    ControlRows,
    Segment,
    has_our_header,
    is_number,
    is_ours,
)
from tcpkmon.formats.verify.psc.landmarks import Landmarks
from tcpkmon.formats.verify.psc.losses import LossSums, check_losses, check_serials
from tcpkmon.formats.verify.psc.sequence import SequenceCheck, SequenceReader, is_unsure
from tcpkmon.formats.verify.psc.serials import SerialCheck
from tcpkmon.formats.verify.report import (
    I64,
    LISTED_AT_ONCE,
    Mask,
    Problems,
    Report,
)
from tcpkmon.formats.verify.run import Run
from tcpkmon.formats.verify.segment import Part
from tcpkmon.formats.verify.tape import Decoder, End, Found, Item, Told, reason_of
from tcpkmon.formats.verify.unnamed import Unnamed

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


def verify_capture(capture: Capture) -> Report:
    """Check an open capture."""
    size_bytes = os.stat(capture.path).st_size
    count, entry_size = len(capture), capture.header.entry_size
    problems = Problems(capture.data_offset, entry_size)
    report = Report(str(capture.path), count, size_bytes, is_ours(capture))
    if report.ledger:
        Run(_Decoder(capture, problems, report)).run()
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
    # A last entry cut short is damage, but for a capture that was killed: part of its tail.
    if capture.is_cut and not (report.ledger and report.end_reason is None):
        problems.add(count, "the file is cut short within an entry")
    if not capture.header.is_intact:
        problems.add_header(HEADER_DAMAGED)
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


class _Decoder(Decoder):
    """The tape of a file that has control entries."""

    def __init__(self, capture: Capture, problems: Problems, report: Report) -> None:
        super().__init__(report, problems, capture.settings)
        self._capture = capture
        self.has_cpu = is_number(capture, "cpu")
        self._unnamed = Unnamed(capture.settings)
        self._has_group = is_number(capture, "cgroup")
        self._has_serial = self.has_cpu and is_number(capture, "serial")
        self._has_mono = is_number(capture, "time_ns")
        time = capture.columns_by_name.get("time")
        self._has_time = time is not None and time.is_time
        self._reader = SequenceReader(capture, problems)
        self._sequence = SequenceCheck(problems, ledger=True, before=self.before.last_seq)
        self._serials = SerialCheck(problems, self.before.serials)
        self._clock = ClockCheck(problems)
        self._sums = LossSums(before=self.before)
        self._marks = Landmarks(problems, self._sums, self.previous, self.name)
        self._unsure_at = -1
        self._locations: int | None = None

    def name(self, point: int) -> str:
        return self._capture.location_name(point)

    def tape(self) -> Iterator[Item]:
        for piece in self._capture.chunks(SEGMENT_ROWS):
            yield from self._segment(Segment(self._capture, piece.start, piece.stop))
        yield from self._marks.finish()
        self._clock.finish()
        # A capture that went on where it was killed counts as damaged what was lost by that.
        if self._sums.killed or self._capture.settings.get("went_on") is True:
            self.damaged = KILLED
        if self._marks.end is None:
            return
        entry, end = self._marks.end
        is_last = entry == self.report.entries - 1
        if not is_last:
            self.problems.add(entry, "entries follow END")
        end_ns = self._marks.end_ns
        mono_ns = end_ns if self._has_mono else None
        yield End(entry, reason_of(end.reason), is_last, end_ns, mono_ns)

    def _segment(self, segment: Segment) -> Iterator[Item]:
        location = segment.wide("location")
        mask = self._control_mask(segment, location)
        rows = segment.control_rows(mask)
        what = "a control entry with bytes that should be zero"
        self.problems.add_each(segment.strange_tails(rows), 0, lambda _: what)
        seq = self._reader.read(segment)
        self._sequence.feed(segment.start, seq, rows)
        self._sums.feed(rows)
        loss = rows.take(rows.location == control.Loss.location)
        unsure_at = np.concatenate(
            (np.array([self._unsure_at]), loss.index[is_unsure(loss)])
        ).astype(np.int64)
        self._starts(segment, rows)
        self._clock.feed(rows, unsure_at)
        yield from self._told(rows)
        plain = np.flatnonzero((location > 0) & (location < POINTS) & ~mask)
        cpu = self._cpus(segment, plain)
        self._times(segment, location, plain)
        if self._has_group:
            self._unnamed.feed(segment.numbers("cgroup")[plain])
        index, keys = plain + segment.start, cpu * POINTS + location[plain]
        yield from self._marks.feed(segment, rows, seq, index, keys, unsure_at)
        if self._has_serial:
            self._feed_serials(segment, rows, plain, cpu)
        self._unsure_at = int(unsure_at[-1])

    def _told(self, rows: ControlRows) -> Iterator[Told]:
        for at in np.flatnonzero(rows.location >= control.Change.location).tolist():
            entry = rows.decode(at)
            self._unnamed.tell(entry)
            yield Told(int(rows.index[at]), entry)

    def _control_mask(self, segment: Segment, location: I64) -> Mask:
        """Control entries; complains of locations that cannot be."""
        mask = control.is_control(location)
        high = np.flatnonzero(mask)
        ports = segment.rows["lport"][high] | segment.rows["rport"][high]
        strange = (ports != 0) | (location[high] > max(facts.NAMES))
        self.problems.add_each(
            high[strange],
            segment.start,
            lambda at: f"no control entry has location {location[at]} and these ports",
        )
        self.problems.add_each(
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
                self.problems.add(rows.index[at], "a second START entry")
        if segment.start:
            return
        if len(starts) and rows.index[starts[0]] == 0:
            start = rows.decode(int(starts[0]))
            assert isinstance(start, control.Start)
            self._marks.cpu_limit = min(start.cpus, 0xFFFF) or MOST_CPUS
            self._locations = start.locations
            self.ahead_ns = start.realtime_ns - start.mono_ns
            if start.version == 2 and not self._capture.header.has_checksum:
                self.problems.add_header("the header has lost its checksum")
            if start.version not in (1, control.FORMAT_VERSION):
                self.problems.add(0, f"format version {start.version} is not known")
        elif not (rows.index[:1].tolist() == [0] and is_unsure(rows)[0]):
            self.problems.add(0, "the file does not begin with a START entry")

    def _cpus(self, segment: Segment, plain: I64) -> I64:
        if not self.has_cpu:
            return np.zeros(len(plain), np.int64)
        cpu = segment.wide("cpu")[plain]
        beyond = np.flatnonzero((cpu < 0) | (cpu >= self._marks.cpu_limit))
        entries = segment.start + plain
        what = "CPU {} is not possible here"
        self.problems.add_each(beyond, entries, lambda at: what.format(cpu[at]), rest=True)
        cpu[beyond] = 0
        return cpu

    def _times(self, segment: Segment, location: I64, plain: I64) -> None:
        if not self._has_time:
            return
        time = segment.time_ns()
        if self._has_mono:
            mono = segment.wide("time_ns")
            there = np.flatnonzero(mono)
            self._clock.feed_both(there + segment.start, time[there], mono[there])
            # What a file repeats of its connections, and what it lists, has times of its own.
            merged = plain[location[plain] != control.EXISTING]
            self._clock.feed_merged(merged + segment.start, mono[merged])
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

    @property
    def needs_no_ledger(self) -> bool:
        return self._sums.unsure > 0

    def conclude(self, found: Found) -> None:
        report, problems, marks, last = self.report, self.problems, self._marks, found.last
        if self._has_serial:
            entries = max(report.entries - 1, 0)
            check_serials(problems, last, self._serials, self._sums, entries, found.is_early)
        report.seq_lost, report.seq_gaps = self._sequence.lost, self._sequence.gaps
        report.notes += self._unnamed.notes()
        report.checkpoints = marks.number - self.before.checkpoints
        if marks.end is not None:
            report.claimed = marks.end[1].checkpoints - self.before.checkpoints
        pairs = self._clock.pairs
        report.clock_pairs, report.clock_steps = pairs.pairs, pairs.steps
        _tell_states(self._capture, report)
        if last is not None and last.final:
            check_losses(problems, last, self._sums)
        points = {row.location for row in report.rows if row.location != control.EXISTING}
        if last is not None and self._locations is not None and len(points) > self._locations:
            what = f"{len(points)} locations where START enabled {self._locations}"
            problems.add(last.index, what)
        tell_cuts(self._capture.settings, report, problems)
        if marks.broken:
            report.notes.append(f"{marks.broken} checkpoint(s) lost in part")

    def describe(self, part: Part, found: Found) -> None:
        part.last_seq = self._sequence.last
        part.entries = self.before.entries + self.report.entries
        part.unsure = self._sums.unsure > 0 or not self._has_serial
        part.serials = {cpu: one.highest for cpu, one in self._serials.cpus.items()}


def _tell_states(capture: Capture, report: Report) -> None:
    """What a later segment repeats is no connection that was open before the capture."""
    if report.part is None or not capture.controls_fit:
        return
    _, count = find_states(capture.header, len(capture), partial(capture.column, "location"))
    if count:
        known = described(capture.header).get("known")
        of = f" of {known}" if isinstance(known, int) and known > count else ""
        report.existing -= count
        what = f"the last record before it of {count}{of} connections that were open"
        report.window.append(f"it repeats {what}")
