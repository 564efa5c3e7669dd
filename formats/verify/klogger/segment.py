# SPDX-License-Identifier: Apache-2.0
"""A log that is a segment of a capture: what earlier segments held, and where this one ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from formats.klogger.reader import LogReader
from formats.verify.klogger.books import LEDGER, LogLedger
from formats.verify.ledger import LATE_STAGE, Tally
from formats.verify.report import Problems, Report
from formats.verify.segment import UNKNOWN, Part, find_part

ROTATED = "rotated"
EARLY = (ROTATED, "dumped")
"""Reasons why a log ends at a point of its capture, which goes on."""


class LogSegment:
    """part: None for a log that is none. serial: the CPU's last one in earlier segments;
    lost_early: how many of them no batch had; base: the first ledger, of what they held."""

    def __init__(self, reader: LogReader, problems: Problems) -> None:
        self.part: Part | None = None
        try:
            self.part = find_part(reader.header.get("settings"))
        except ValueError as error:
            problems.add_header(str(error))
        previous = self.part.previous if self.part is not None else None
        self.serial = previous.serials.get(reader.cpu, 0) if previous is not None else 0
        self.lost_early = previous.lost.get(reader.cpu, 0) if previous is not None else 0
        self.is_later = previous is not None
        self.base: LogLedger | None = None

    def begin(self, ledger: LogLedger, tally: Tally) -> int:
        """Count in `tally` what the first ledger says that earlier segments held; how many."""
        points = ledger.parts[LEDGER]
        tally.begin(points.keys, points["in_file"].astype("i8"))
        return int(points["in_file"].sum())

    @property
    def lost_before(self) -> int:
        """How many of the CPU's serials no earlier segment has."""
        return self.serial - (self.base.before.kernel if self.base is not None else 0)

    def end(
        self, report: Report, cpu: int, last: LogLedger | None, highest: int, kernel: int
    ) -> None:
        """Describe where it ends. kernel: records so far, with those of earlier segments."""
        part, base = self.part, self.base
        if part is None:
            return
        part.serials = {cpu: highest}
        part.entries = kernel - (base.before.kernel if base is not None else 0)
        part.goes_on = report.end_reason == ROTATED
        told = [one for one in (last, base) if one is not None]
        dropped = [int(one.points.sum(*LATE_STAGE).sum()) for one in told]
        part.unsure = bool(dropped) and dropped[0] != sum(dropped[1:])
        part.first = base.digest if base is not None else ""
        part.last = last.digest if last is not None else ""
        report.part = part


def join_parts(reports: Iterable[Report]) -> Part | None:
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
        first=_join(part.first for part in parts),
        last=_join(part.last for part in parts),
    )


def _join(digests: Iterable[str]) -> str:
    return "".join(digests)
