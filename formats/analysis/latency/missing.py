# SPDX-License-Identifier: Apache-2.0
"""When records of a log may be missing: lost, above a limit, or not made as events were off.

A lost record leaves a gap in its CPU's serials. So it was lost between two records that are there:

    serial   5    6    7    .    .   10   11         begin: the earliest of the last DEPTH records,
    time    50   61   60             72   80         as programs nest, and an outer one's time is
                 <-------------------->              later than its serial says
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.causes import COLLECTOR_CAUSES, KERNEL_CAUSES
from tcpkmon.formats.base.changes import Switches
from tcpkmon.formats.base.control import Change
from tcpkmon.formats.klogger.batch import LogBatch, facts_of
from tcpkmon.formats.klogger.source import Source
from tcpkmon.formats.klogger.table import NUMBERS, LogFormat

DEPTH = 4
NEVER = np.iinfo(np.int64).max
ALWAYS = np.iinfo(np.int64).min
_SLACK_NS = 10_000_000
"""A checkpoint's time is at most so far from that of its counts."""
_SILENT = ("table_full", "no_slot", "limited")
"""Counters of LEDGER whose records took no serial."""
_SHED = "shed"
"""Another one, which logs of earlier versions do not have."""
_GAPS = [name for name in (*KERNEL_CAUSES, *COLLECTOR_CAUSES) if name not in _SILENT]
_PAUSE, _START = "KLOGGER_FINISH", "KLOGGER_START"

Array = NDArray[np.int64]
Span = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """Spans of CLOCK_MONOTONIC [ns] that do not touch. begins, ends: (n,) int64, ascending."""

    begins: Array
    ends: Array

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Windows:
        """The union of the spans."""
        ordered = np.array(sorted(spans), np.int64).reshape(-1, 2)
        if not len(ordered):
            return cls(ordered[:, 0], ordered[:, 1])
        last = np.maximum.accumulate(ordered[:, 1])
        first = np.concatenate(([True], ordered[1:, 0] > last[:-1]))
        ends = last[np.concatenate((np.flatnonzero(first)[1:] - 1, [len(last) - 1]))]
        return cls(ordered[first, 0], ends)

    def touch(self, begins: Array, ends: Array) -> NDArray[np.bool_]:
        """(n,) whether a window has a moment in common with begins[i] to ends[i]."""
        if not len(self.begins):
            return np.zeros(len(begins), np.bool_)
        at = np.searchsorted(self.ends, begins)
        near = np.minimum(at, len(self.begins) - 1)
        return (at < len(self.begins)) & (self.begins[near] <= ends)


class Missing:
    """Collects the spans of one CPU's log, whose batches are added in file order.

    events: the names of the events that matter. lost: how many of them are missing, by the last
    ledger; unknown, so at least 1, where the log has no end.
    """

    def __init__(self, reader: Source, events: Iterable[str]) -> None:
        self._numbers = {
            event.number for name in events if (event := reader.format.find_event(name))
        }
        self._matters = np.zeros(NUMBERS, np.bool_)
        self._matters[list(self._numbers)] = True
        self._spans: list[Span] = []
        self._gaps: list[Span] = []
        self._recent = np.empty(0, np.int64)
        self._records = self._absent_then = 0
        self._ledger: dict[object, tuple[int, int]] = {}
        self._counted: dict[int, int] = {}
        self._damaged = 0
        self._paused_ns: int | None = None
        self._switches = Switches()
        self._books = {
            name: _has_numbers(reader.format, name, fields)
            for name, fields in (
                ("LEDGER", ("number", *_GAPS, *_SILENT)),
                ("CPU_LEDGER", ("damaged",)),
                ("PROGRAM_LEDGER", ("program", "missed", "kprobe_missed")),
            )
        }
        sheds = _has_numbers(reader.format, "LEDGER", (_SHED,))
        self._silent = (*_SILENT, _SHED) if sheds else _SILENT

    def add(self, batch: LogBatch) -> None:
        """The next records of the log."""
        if not len(batch):
            return
        ordinals = np.arange(self._records + 1, self._records + 1 + len(batch))
        absent = batch.serials.astype(np.int64) - ordinals
        self._records += len(batch)
        at = np.flatnonzero(self._matters[batch.numbers])
        if len(at):
            self._find_gaps(absent[at], batch.times_ns[at].astype(np.int64))
        present = {event.name for event in batch.events()}
        if books := {name for name in present if self._books.get(name)}:
            self._read_ledgers(batch, books)
        if present & {_PAUSE, _START}:
            self._find_pauses(batch, present)
        for _, change in facts_of(batch, Change):
            self._switches.feed(change)

    def _find_gaps(self, absent: Array, times_ns: Array) -> None:
        before = np.concatenate(([self._absent_then], absent[:-1]))
        known = np.concatenate((self._recent, times_ns))
        for place in np.flatnonzero(absent != before).tolist():
            at = place + len(self._recent)
            earlier = known[max(at - DEPTH, 0) : at]
            begin = int(earlier.min()) if len(earlier) else ALWAYS
            self._gaps.append((begin, int(known[at])))
        self._absent_then = int(absent[-1])
        self._recent = known[-DEPTH:]

    def _read_ledgers(self, batch: LogBatch, present: set[str]) -> None:
        if "LEDGER" in present:
            at, rows = batch.where("LEDGER"), batch.rows("LEDGER")
            for time_ns, row in zip(batch.times_ns[at].tolist(), rows, strict=True):
                number = int(row["number"])
                self._counted[number] = sum(int(row[name]) for name in _GAPS)
                if number in self._numbers:
                    silent = sum(int(row[name]) for name in self._silent)
                    self._note_count(number, silent, int(time_ns))
        if "CPU_LEDGER" in present:
            self._damaged = int(batch.rows("CPU_LEDGER")["damaged"][-1])
        if "PROGRAM_LEDGER" in present:
            at, rows = batch.where("PROGRAM_LEDGER"), batch.rows("PROGRAM_LEDGER")
            for time_ns, row in zip(batch.times_ns[at].tolist(), rows, strict=True):
                missed = int(row["missed"]) + int(row["kprobe_missed"])
                self._note_count(str(row["program"]), missed, int(time_ns))

    def _note_count(self, key: object, count: int, time_ns: int) -> None:
        """Records without a serial were lost between the checkpoints where their count rose."""
        then_ns, before = self._ledger.get(key, (ALWAYS, 0))
        if count != before:
            begin = then_ns if then_ns == ALWAYS else then_ns - _SLACK_NS
            self._spans.append((begin, time_ns + _SLACK_NS))
        self._ledger[key] = (time_ns, count)

    def _find_pauses(self, batch: LogBatch, present: set[str]) -> None:
        found = []
        for name in present & {_PAUSE, _START}:
            found += [(int(t), name) for t in batch.times_ns[batch.where(name)]]
        for time_ns, name in sorted(found):
            if name == _PAUSE:
                self._paused_ns = time_ns
            elif self._paused_ns is not None:
                self._spans.append((self._paused_ns - _SLACK_NS, time_ns + _SLACK_NS))
                self._paused_ns = None

    def spans(self, complete: bool) -> list[Span]:
        """All of them. complete: the log ended in order, so its last ledger is true.

        A gap does not matter if the ledger says that no event that matters was lost.
        """
        found = list(self._spans)
        last = int(self._recent.min()) if len(self._recent) else ALWAYS
        if not complete:
            found.append((last, NEVER))
        counted = [self._counted.get(number, 0) for number in self._numbers]
        if not complete or self._damaged or any(counted) or not self._counted:
            found += self._gaps
            # No record follows those that were lost last: only the ledger has them.
            if sum(self._counted.values()) + self._damaged > self._absent_then:
                found.append((last, NEVER))
        for off in self._switches.all():
            if off.point in self._numbers:
                found.append((off.begin_ns, NEVER if off.end_ns is None else off.end_ns))
        return found


def _has_numbers(log: LogFormat, name: str, fields: Iterable[str]) -> bool:
    """Whether the log has an event with these fields, all numbers but `program`."""
    event = log.find_event(name)
    found = [None if event is None else event.find_field(field) for field in fields]
    return all(
        field is not None and (field.kind in ("int", "enum") or field.name == "program")
        for field in found
    )
