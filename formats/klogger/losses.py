# SPDX-License-Identifier: Apache-2.0
"""Counts what is missing from a Klogger log while it is read, from serials and ledger events."""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpkmon.formats.base.causes import COLLECTOR_CAUSES, KERNEL_CAUSES, KILLED
from tcpkmon.formats.base.control import EndReason
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.source import Missing
from tcpkmon.formats.klogger.table import NUMBERS, LogFormat

START = "KLOGGER_START"
FINISH = "KLOGGER_FINISH"
LEDGER = "LEDGER"
CPU_LEDGER = "CPU_LEDGER"
PROGRAM_LEDGER = "PROGRAM_LEDGER"
ROTATED = EndReason.ROTATED
CAUSES = (*KERNEL_CAUSES, *COLLECTOR_CAUSES)
"""The counters of LEDGER that are losses."""


class Losses(Missing):
    """The losses of one log, whose batches are added in file order.

    missing: missing serials, in `gaps` gaps. follows: it is a segment after others, whose losses
    its first dump counts: they are not its own.
    """

    def __init__(self, log: LogFormat, follows: bool = False) -> None:
        self.missing = 0
        self.gaps = 0
        self._before = Losses(log) if follows else None
        self._last_serial = 0
        self._ledgers: dict[int, dict[str, int]] = {}
        self._damaged = 0
        self._missed: dict[bytes, int] = {}
        self._is_end = np.zeros(NUMBERS, np.bool_)
        for name in (START, FINISH):
            if (event := log.find_event(name)) is not None:
                self._is_end[event.number] = True

    def add(self, batch: LogBatch) -> None:
        """Add the next records of the file."""
        if not len(batch):
            return
        self.records += len(batch)
        before = np.concatenate(([np.uint64(self._last_serial)], batch.serials[:-1]))
        steps = batch.serials - before
        self.missing += int(steps.sum()) - len(batch)
        self.gaps += int(np.count_nonzero(steps != 1))
        self._last_serial = int(batch.serials[-1])
        self._add_ledgers(batch)
        if self._before is not None and batch.dump == 0:
            self._before._add_ledgers(batch)
        ends = np.flatnonzero(self._is_end[batch.numbers])
        if len(ends):
            last = batch.format.event(int(batch.numbers[ends[-1]]))
            self.complete = last.name == FINISH
            self.goes_on = self.complete and _values(batch, FINISH)[-1].get("reason") == ROTATED

    def _add_ledgers(self, batch: LogBatch) -> None:
        for event in batch.events():
            if self._is_end[event.number]:
                continue
            if event.name == LEDGER:
                for row in _values(batch, LEDGER):
                    self._ledgers[row.get("number", 0)] = row
            elif event.name == CPU_LEDGER:
                self._damaged = _values(batch, CPU_LEDGER)[-1].get("damaged", 0)
            elif event.name == PROGRAM_LEDGER:
                for row in _values(batch, PROGRAM_LEDGER):
                    missed = row.get("missed", 0) + row.get("kprobe_missed", 0)
                    self._missed[row.get("program", b"")] = missed

    @property
    def by_cause(self) -> dict[str, int]:
        """The losses in the ledger by cause, without zeros."""
        found = {
            cause: sum(row.get(cause, 0) for row in self._ledgers.values()) for cause in CAUSES
        }
        found[KILLED] = self._damaged
        before = self._before.by_cause if self._before is not None else {}
        own = {cause: number - before.get(cause, 0) for cause, number in found.items()}
        return {cause: number for cause, number in own.items() if number}

    @property
    def missed(self) -> int:
        """Events that the programs never saw, on all CPUs (the lowest CPU's log has them)."""
        before = self._before.missed if self._before is not None else 0
        return sum(self._missed.values()) - before

    @property
    def counted(self) -> tuple[int, int]:
        return self.missing, sum(self.by_cause.values())

    def describe(self) -> str:
        if not self.lost:
            return ""
        causes = self.by_cause | ({"missed by programs": self.missed} if self.missed else {})
        listed = ", ".join(f"{cause.replace('_', ' ')} {n}" for cause, n in causes.items())
        text = f"{self.lost} events lost; {self.missing} serials missing in {self.gaps} gaps"
        return f"{text} ({listed})" if listed else text


def _values(batch: LogBatch, name: str) -> list[dict[str, Any]]:
    """The records of a ledger event, as values by field name."""
    rows = batch.rows(name)
    event = batch.format.event(name)
    # Only numbers and the name: a hostile header may declare a counter as text.
    kept = [f.name for f in event.fields if f.kind in ("int", "enum") or f.name == "program"]
    found: list[dict[str, Any]] = [{} for _ in range(len(rows))]
    for key in kept:
        for row, value in zip(found, rows[key].tolist(), strict=True):
            row[key] = value
    return found
