# SPDX-License-Identifier: Apache-2.0
"""Reads one MAGNeT file from start to end, and runs all of its checks.

formats/magnet/walk.py checks that the records are as they were written; here is what they sum to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np

from tcpkmon.formats.base.causes import KILLED
from tcpkmon.formats.base.control import Control, EndReason, LossCause
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.facts import EVENTS
from tcpkmon.formats.klogger.table import NUMBERS
from tcpkmon.formats.magnet.control import CHANGE, CHECK, END, FACTS, LEDGER, number
from tcpkmon.formats.magnet.header import OWN, MagnetFile
from tcpkmon.formats.magnet.layout import CLOCK, FIRST_EVENT, LOST
from tcpkmon.formats.magnet.walk import Entry, Piece, Walk
from tcpkmon.formats.verify.clock import STEP_NS
from tcpkmon.formats.verify.ledger import IN_FLIGHT, NamedPrograms
from tcpkmon.formats.verify.magnet.books import MagnetLedger
from tcpkmon.formats.verify.report import Problems, Report
from tcpkmon.formats.verify.run import prove
from tcpkmon.formats.verify.segment import Part
from tcpkmon.formats.verify.tape import Decoder, End, Found, Item, Records, Told, reason_of

WORDS = {
    "entries": "records",
    "entry": "record",
    "checkpoint": "ledger",
    "location": "event",
    "snapshot": "record",
}
"""What a person knows as something else in such a file: the words of a report."""
_MAY_LACK = {CHANGE: ("why",)}


def verify_magnet(path: str | os.PathLike[str]) -> Report:
    """Check the file at `path` from the file alone. Damage of any kind is in the report.

    Raises FileError if the file cannot be opened or read.
    """
    try:
        with MagnetFile(path) as file:
            return prove(_Decoder(file))
    except DamagedError as error:
        message = error.message.removeprefix(f"{path}: ")
        return Report(str(path), error=message, format="magnet", words=WORDS)


class _Decoder(Decoder):
    """The tape of a MAGNeT file."""

    has_cpu = False
    damaged = KILLED
    """Only a process that was killed makes a CPU count damaged records."""
    existing = None

    def __init__(self, file: MagnetFile) -> None:
        report = Report(
            str(file.path), size_bytes=file.size, ledger=True, format="magnet", words=WORDS
        )
        super().__init__(report, Problems(0, file.layout.size), file.header.get("settings"))
        self._file = file
        self._walk = Walk(file)
        self._names = {kind.code: kind.name for kind in file.kinds}
        self._events = {k: name for k, name in self._names.items() if k >= FIRST_EVENT}
        self._last: MagnetLedger | None = None
        self._programs = NamedPrograms()
        self._end: tuple[Entry, int] | None = None
        self._repaired = 0
        self._has_records = False
        self.ahead_ns = self._clock_ns = self._read_clock()

    def name(self, point: int) -> str:
        return self._names.get(point, str(point))

    def tape(self) -> Iterator[Item]:
        for found in self._walk:
            if isinstance(found, Piece):
                yield self._records(found)
                continue
            try:
                item = self._item(found)
            except DamagedError as error:
                self.problems.add(found.start, error.message)
                continue
            if item is not None:
                yield item
        self._judge_records()
        if self._end is not None:
            entry, reason = self._end
            end_ns = number(entry.values, "time_ns", 1 << 62)
            is_last = self._walk.ended and not self._file.cut_bytes
            yield End(entry.start, reason_of(reason), is_last, end_ns, end_ns)

    def _read_clock(self) -> int:
        """The time of day less the monotonic time."""
        pair = self._file.header.get("clock")
        pair = pair if isinstance(pair, dict) else {}
        mono_ns, real_ns = (number(pair, name, 1 << 63) for name in ("mono_ns", "realtime_ns"))
        if mono_ns is None or real_ns is None:
            self.problems.add_header("the header has no clock")
            return 0
        return real_ns - mono_ns

    def _records(self, piece: Piece) -> Records:
        codes, sizes = piece.rows["event"], piece.rows["size"]
        self.report.entries += len(codes)
        known = codes[(codes >= FIRST_EVENT) & (codes < NUMBERS)].astype(np.int64)
        self._has_records |= len(known) > 0
        lost = np.flatnonzero(codes == LOST)
        if len(lost):
            causes, counts = piece.rows["sockid"][lost], sizes[lost].astype(np.int64)
            strange = np.flatnonzero((counts <= 0) | (causes > max(LossCause)))
            what = "LOST counts {} of cause {}"
            self.problems.add_each(
                strange, piece.start + lost, lambda at: what.format(counts[at], causes[at]), True
            )
            self.report.seq_gaps += len(lost)
            self._repaired += int(counts[causes == LossCause.DAMAGED].sum())
        has_clock = self._file.layout.bits == 64  # a smaller sockid does not hold the time
        for at in np.flatnonzero(codes == CLOCK).tolist() if has_clock else ():
            row = piece.rows[at]
            ahead_ns = int(row["sockid"]) - int(row["timestamp"])
            self.report.clock_pairs += 1
            self.report.clock_steps += abs(ahead_ns - self._clock_ns) > STEP_NS
            self._clock_ns = ahead_ns
        return Records(known)

    def _item(self, entry: Entry) -> Item | None:
        if entry.kind == LEDGER:
            return self._ledger(entry)
        if entry.kind in FACTS:
            return Told(entry.start, _fact_of(entry))
        if entry.kind == END:
            reason = number(entry.values, "reason", max(EndReason))
            if reason is None or reason not in {*EndReason}:
                raise DamagedError("END has no known reason")
            self._end = entry, reason
        elif entry.kind != CHECK:
            raise DamagedError(f"a control entry of unknown kind {entry.kind!r:.40}")
        return None

    def _ledger(self, entry: Entry) -> MagnetLedger:
        problems, before = self.problems, self._last
        stop = entry.start + entry.count
        ledger = MagnetLedger(entry.start, stop, entry.values, self._events, self._programs)
        ledger.is_base = before is None and self.previous is not None and not self._has_records
        ledger.repaired = self._repaired
        expected = before.number + 1 if before else self.before.checkpoints
        if ledger.number != expected:
            problems.add(entry.start, f"ledger {ledger.number} where {expected} is due")
        self._last = ledger
        lost_before = self.before.last_seq - self.before.entries
        lost, missing = lost_before + self._walk.lost, ledger.missing()
        room = 0 if ledger.final else IN_FLIGHT
        if lost > missing + room + self._repaired:
            what = f"LOST counts {lost} so far, more than the {missing} that are missing"
            problems.add(entry.start, what)
        elif ledger.final and lost < missing and not self._repaired:
            what = f"{missing} records are missing, LOST counts {lost} of them"
            problems.add(entry.start, what)
        return ledger

    def _judge_records(self) -> None:
        """What the walk found: in a capture that was killed, its tail is no damage."""
        report, walk = self.report, self._walk
        for at, what in walk.problems:
            if self._end is None and at in (self._file.count, walk.cut_at):
                report.notes.append(what)
            else:
                self.problems.add(at, what)
        self.problems.count(max(0, walk.total - len(walk.problems)))
        report.seq_lost = walk.lost
        if walk.open:
            report.unchecked.append(f"the last {walk.open} records (no control entry follows them)")

    def conclude(self, found: Found) -> None:
        """There is nothing more."""

    def describe(self, part: Part, found: Found) -> None:
        part.entries = self.before.entries + self.report.entries
        part.last_seq = self.before.last_seq + self.report.entries + self._walk.lost
        part.unsure = True


def _fact_of(entry: Entry) -> Control:
    values = entry.values.get(entry.kind.lower())
    told: dict[str, Any] = values if isinstance(values, dict) else {}
    kind, more = EVENTS[entry.kind], _MAY_LACK.get(entry.kind, ())
    found: dict[str, Any] = {k: n for k in told if (n := number(told, k)) is not None}
    if {*told, *more} != {field.name for field in fields(kind)} or len(found) < len(told):
        raise DamagedError(f"a {entry.kind} has no good values")
    return kind(**found)


assert len(OWN) == FIRST_EVENT
