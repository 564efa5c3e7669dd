# SPDX-License-Identifier: Apache-2.0
"""Reads one MAGNeT file from start to end, and runs all of its checks.

formats/magnet/walk.py checks that the records are as they were written; here is what they sum to.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

import numpy as np

from formats.base.control import Change, EndReason, LossCause, Trigger
from formats.base.errors import DamagedError
from formats.base.shedding import steps_of
from formats.klogger.table import NUMBERS
from formats.magnet.control import CHANGE, CHECK, END, LEDGER, TRIGGER, number
from formats.magnet.header import OWN, MagnetFile
from formats.magnet.layout import CLOCK, FIRST_EVENT, LOST
from formats.magnet.walk import Entry, Piece, Walk
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
from formats.verify.clock import STEP_NS
from formats.verify.ledger import IN_FLIGHT, Tally
from formats.verify.magnet.books import MagnetLedger
from formats.verify.psc.dump import DumpCheck, Window
from formats.verify.psc.landmarks import EARLY
from formats.verify.report import NOT_CLOSED, Problems, Report, find_unproven, find_unseen
from formats.verify.segment import Part, Previous, find_part

WORDS = {
    "entries": "records",
    "entry": "record",
    "checkpoint": "ledger",
    "location": "event",
    "snapshot": "record",
}
"""What a person knows as something else in such a file: the words of a report."""


def verify_magnet(path: str | os.PathLike[str]) -> Report:
    """Check the file at `path` from the file alone. Damage of any kind is in the report.

    Raises FileError if the file cannot be opened or read.
    """
    try:
        with MagnetFile(path) as file:
            return _Run(file).run()
    except DamagedError as error:
        message = error.message.removeprefix(f"{path}: ")
        return Report(str(path), error=message, format="magnet", words=WORDS)


class _Run:
    """One pass over a file."""

    def __init__(self, file: MagnetFile) -> None:
        self._file = file
        self._walk = Walk(file)
        self._problems = Problems(0, file.layout.size)
        self._report = Report(
            str(file.path), size_bytes=file.size, ledger=True, format="magnet", words=WORDS
        )
        self._names = {kind.code: kind.name for kind in file.kinds}
        self._events = {k: name for k, name in self._names.items() if k >= FIRST_EVENT}
        self._changes = ChangeCheck(self._problems)
        self._dump = DumpCheck(file.header.get("settings"), self._problems)
        self._tally = Tally()
        self._last: MagnetLedger | None = None
        self._programs: dict[str, int] = {}
        self._end: tuple[int, int] | None = None
        self._is_closed = False
        self._closed_at: int | None = None
        """The record behind the last ledger."""
        self._ledger_ns: int | None = None
        self._repaired = 0
        self._base: MagnetLedger | None = None
        """What earlier files held: the first ledger of a later segment."""
        try:
            self._report.part = find_part(file.header.get("settings"))
        except ValueError as error:
            self._problems.add_header(str(error))
        part = self._report.part
        self._previous = part.previous if part is not None else None
        self._before = self._previous or Previous()
        self._ahead_ns, self._real_ns = self._read_clock()

    def run(self) -> Report:
        for found in self._walk:
            if isinstance(found, Piece):
                self._records(found)
                continue
            try:
                self._entry(found)
            except DamagedError as error:
                self._problems.add(found.start, error.message)
        self._finish()
        return self._report

    def _read_clock(self) -> tuple[int, int]:
        """The time of day less the monotonic time, twice."""
        pair = self._file.header.get("clock")
        values = [number(pair, name, 1 << 63) for name in ("mono_ns", "realtime_ns")] if (
            isinstance(pair, dict)
        ) else [None]
        if None in values:
            self._problems.add_header("the header has no clock")
            return 0, 0
        mono_ns, real_ns = values
        assert mono_ns is not None and real_ns is not None
        return real_ns - mono_ns, real_ns - mono_ns

    def _records(self, piece: Piece) -> None:
        codes, sizes = piece.rows["event"], piece.rows["size"]
        self._report.entries += len(codes)
        known = codes[(codes >= FIRST_EVENT) & (codes < NUMBERS)].astype(np.int64)
        self._tally.add(known)
        lost = np.flatnonzero(codes == LOST)
        if len(lost):
            causes, counts = piece.rows["sockid"][lost], sizes[lost].astype(np.int64)
            strange = np.flatnonzero((counts <= 0) | (causes > max(LossCause)))
            what = "LOST counts {} of cause {}"
            self._problems.add_each(
                strange, piece.start + lost, lambda at: what.format(counts[at], causes[at]), True
            )
            self._report.seq_gaps += len(lost)
            self._repaired += int(counts[causes == LossCause.DAMAGED].sum())
        has_clock = self._file.layout.bits == 64  # a smaller sockid does not hold the time
        for at in np.flatnonzero(codes == CLOCK).tolist() if has_clock else ():
            row = piece.rows[at]
            ahead_ns = int(row["sockid"]) - int(row["timestamp"])
            self._report.clock_pairs += 1
            self._report.clock_steps += abs(ahead_ns - self._ahead_ns) > STEP_NS
            self._ahead_ns = ahead_ns

    def _entry(self, entry: Entry) -> None:
        values, at = entry.values, entry.start
        if entry.kind == LEDGER:
            self._ledger(entry)
            self._closed_at = at + entry.count
            self._ledger_ns = number(values, "time_ns", 1 << 62)
        elif entry.kind == CHANGE:
            self._changes.feed(at, _change_of(values))
        elif entry.kind == END:
            reason = number(values, "reason", max(EndReason))
            if reason is None or reason not in {*EndReason}:
                raise DamagedError("END has no known reason")
            self._end = at, reason
            self._dump.end_ns = number(values, "time_ns", 1 << 62)
            self._is_closed = self._follows_its_ledger(at, reason)
        elif entry.kind == TRIGGER:
            self._dump.fired(at, _trigger_of(values))
        elif entry.kind != CHECK:
            raise DamagedError(f"a control entry of unknown kind {entry.kind!r:.40}")

    def _follows_its_ledger(self, at: int, reason: int) -> bool:
        """Whether the entry before END is the ledger that was made for it."""
        if self._last is None or self._last is self._base or at != self._closed_at:
            return False
        is_its_own = self._ledger_ns is not None and self._ledger_ns == self._dump.end_ns
        return self._last.final or (reason in EARLY and is_its_own)

    def _ledger(self, entry: Entry) -> None:
        problems, before = self._problems, self._last
        if self._previous is not None and before is None:
            self._begin(entry)
        ledger = self._read_ledger(entry)
        if self._previous is not None and before is None:
            self._base = ledger
        expected = before.number + 1 if before else self._before.checkpoints
        if ledger.number != expected:
            problems.add(entry.start, f"ledger {ledger.number} where {expected} is due")
        self._last = ledger
        self._report.checkpoints += 1
        check_sums(problems, ledger)
        check_counts(problems, ledger, False, self._repaired)
        lost_before = self._before.last_seq - self._before.entries
        lost, missing = lost_before + self._walk.lost, ledger.missing()
        room = 0 if ledger.final else IN_FLIGHT
        if lost > missing + room + self._repaired:
            what = f"LOST counts {lost} so far, more than the {missing} that are missing"
            problems.add(entry.start, what)
        elif ledger.final and lost < missing and not self._repaired:
            what = f"{missing} records are missing, LOST counts {lost} of them"
            problems.add(entry.start, what)
        if before is not None:
            if before.final:
                problems.add(entry.start, "a ledger follows the final one")
            check_rise(problems, before, ledger)

    def _read_ledger(self, entry: Entry) -> MagnetLedger:
        counts = self._tally.counts.copy()
        return MagnetLedger(entry.start, entry.values, counts, self._events, self._programs)

    def _begin(self, entry: Entry) -> None:
        """Count what earlier files held, as the first ledger tells it."""
        if self._tally.counts.any():
            self._problems.add(entry.start, "records of events are before the first ledger")
        points = self._read_ledger(entry).points
        codes, place = np.unique(points.keys & 0xFFFF, return_inverse=True)
        counts = np.zeros(len(codes), np.int64)
        np.add.at(counts, place, points["in_file"].astype(np.int64))
        self._tally.begin(codes, counts)

    def _describe(self, part: Part, is_rotated: bool) -> None:
        """Where this segment of a capture ends."""
        before = self._before
        part.entries = before.entries + self._report.entries
        part.last_seq = before.last_seq + self._report.entries + self._walk.lost
        part.goes_on, part.unsure = is_rotated, True
        part.first = self._base.digest if self._base is not None else ""
        part.last = self._last.digest if self._last is not None else ""

    def _finish(self) -> None:
        report, last, walk = self._report, self._last, self._walk
        problems = self._problems
        for at, what in walk.problems:
            if self._end is None and at in (self._file.count, walk.cut_at):
                report.notes.append(what)  # part of the tail of a capture that was killed
            else:
                problems.add(at, what)
        problems.count(max(0, walk.total - len(walk.problems)))
        report.seq_lost = walk.lost
        settings = self._file.header.get("settings")
        report.unproven = find_unproven(settings)
        report.notes += find_unseen(settings)
        if self._end is not None:
            at, reason = self._end
            report.end_reason = EndReason(reason).name.lower().replace("_", " ")
            final = last is not None and last.final
            is_rotated = reason in EARLY
            is_whole = walk.ended and not self._file.cut_bytes
            report.proven_end = is_whole and self._is_closed
            if not report.proven_end:
                report.notes.append(NOT_CLOSED)
            if not final and reason not in (EndReason.ERROR, *EARLY):
                problems.add(at, "END without a final ledger before it")
            if is_rotated and report.part is None:
                problems.add(at, "END says that another file follows this one")
        if walk.open:
            report.unchecked.append(f"the last {walk.open} records (no control entry follows them)")
        name = self._name
        if last is not None:
            report.rows = build_rows(last, False, name)
            if self._base is not None:
                subtract(report.rows, build_rows(self._base, False, name))
            report.missed = last.missed(self._base)
            report.ring_lost = int(last.cpu_rows["ring_lost"].sum())
            report.notes += compare_rings(last)
        if report.part is not None:
            is_rotated = self._end is not None and self._end[1] in EARLY
            self._describe(report.part, is_rotated)
        dumped_at = None
        if self._end is not None and self._end[1] == EndReason.DUMPED:
            dumped_at = self._end[0]
        window = Window(self._before, self._base, dumped_at)
        if self._base is not None:
            check_before(problems, self._base, self._before.serials, self._before.lost)
        self._dump.conclude(report, window, lambda mono_ns: mono_ns + self._real_ns)
        before = int(last.counts.sum()) if last else 0
        report.after_checkpoint = int(self._tally.counts.sum()) - before
        if last is not None and last.final and report.after_checkpoint:
            problems.add(last.index, "records of events follow the final ledger")
        steps = steps_of(settings)
        self._changes.conclude(report, name, lambda mono_ns: mono_ns + self._real_ns, steps)
        report.settle(problems)

    def _name(self, code: int) -> str:
        return self._names.get(code, str(code))


def _trigger_of(values: dict[str, Any]) -> Trigger:
    told = values.get("trigger")
    names = [field.name for field in fields(Trigger)]
    if not isinstance(told, dict) or set(told) != set(names):
        raise DamagedError("a TRIGGER has no good values")
    found = {name: number(told, name) for name in names}
    if None in found.values():
        raise DamagedError("a TRIGGER has no good values")
    return Trigger(**found)  # type: ignore[arg-type]


def _change_of(values: dict[str, Any]) -> Change:
    told = values.get("change")
    names = {field.name for field in fields(Change)}
    if not isinstance(told, dict) or {*told, "why"} != names:
        raise DamagedError("a CHANGE has no good values")
    found = {name: number(told, name) for name in told}
    if None in found.values():
        raise DamagedError("a CHANGE has no good values")
    return Change(**found)  # type: ignore[arg-type]


assert len(OWN) == FIRST_EVENT
