# SPDX-License-Identifier: Apache-2.0
"""A log of a dump of the flight recorder: the window that it holds completely, and its triggers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from formats.base.control import Trigger
from formats.klogger.batch import LogBatch
from formats.verify.klogger.books import LEDGER, integers
from formats.verify.klogger.segment import LogSegment
from formats.verify.ledger import NUMBERED
from formats.verify.psc.dump import MORE, describe, iso
from formats.verify.report import Problems, Report

TRIGGER, FINISH = "TRIGGER", "KLOGGER_FINISH"
DUMPED = "dumped"
_FIELDS = ("number", "mono_ns", "conn_id", "told_ns", "count", "pid")
_LISTED = 10


class LogWindow:
    """Fed with all batches of a log; for others than dumps it does nothing."""

    def __init__(self, settings: object, problems: Problems) -> None:
        found = settings.get("recorder") if isinstance(settings, dict) else None
        self._settings: Mapping[str, Any] = found if isinstance(found, dict) else {}
        self._problems = problems
        texts = self._settings.get("triggers")
        self._texts = [str(text) for text in texts] if isinstance(texts, list) else []
        self._fired: list[Trigger] = []
        self._untold = 0
        self._end_ns: int | None = None

    def feed(self, batch: LogBatch, first: int) -> None:
        """first: the number of the batch's first record."""
        present = {event.name for event in batch.events()}
        if FINISH in present:
            self._end_ns = int(batch.times_ns[batch.where(FINISH)[-1]])
        if TRIGGER not in present:
            return
        places = (first + batch.where(TRIGGER)).tolist()
        for at, row in zip(places, integers(batch, TRIGGER, _FIELDS).tolist(), strict=True):
            entry = Trigger(*row)
            if not 0 <= entry.number <= len(self._texts) and entry.number != MORE:
                what = f"trigger {entry.number} of {len(self._texts)} that the header has"
                self._problems.add(at, what)
            elif len(self._fired) < _LISTED and entry.number != MORE:
                self._fired.append(entry)
            else:
                self._untold += max(1, entry.count)

    def conclude(
        self, report: Report, segment: LogSegment, cpu: int, epoch_ns: Callable[[int], int]
    ) -> None:
        """Say what the log holds. epoch_ns: the time of day of a monotonic time."""
        previous = segment.part.previous if segment.part is not None else None
        if previous is None or not previous.evicted:
            if report.end_reason == DUMPED:
                self._problems.add_header("KLOGGER_FINISH of a dump in a log that is none")
            return
        before, base = 0, segment.base
        lost = previous.lost.get(cpu, 0)
        if base is not None:
            records = int(base.parts[LEDGER]["in_file"].sum())
            report.evicted = records
            before = max(0, int(base.points.sum(*NUMBERED).sum()) - lost)
        before = min(report.seq_lost, before)
        report.seq_lost -= before
        from_ns = self._settings.get("from_ns")
        if type(from_ns) is not int or not 0 <= from_ns < 1 << 62:
            self._problems.add_header("the header's description of this dump cannot be read")
            return
        until = "the last record"
        if report.proven_end and self._end_ns is not None:
            until = iso(epoch_ns(self._end_ns))
        report.window.append(f"complete from {iso(epoch_ns(from_ns))} to {until}")
        if before:
            report.window.append(f"{before:,} serials missing here are of records lost before it")
        report.window += [describe(entry, self._texts, epoch_ns) for entry in self._fired]
        if self._untold:
            report.window.append(f"and {self._untold:,} more triggers")


def join_windows(whole: Report, reports: Sequence[Report]) -> None:
    """What all logs of a dump hold."""
    lines = list(dict.fromkeys(line for one in reports for line in one.window))
    spans = [line for line in lines if line.startswith(("complete from", "not complete from"))]
    worst = next((line for line in spans if line.startswith("not")), spans[0] if spans else "")
    whole.evicted = sum(one.evicted for one in reports)
    if worst:
        evicted = f"{worst}; {whole.evicted:,} records before that are evicted"
        whole.window = [evicted, *(line for line in lines if line not in spans)]
