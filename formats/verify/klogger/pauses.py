# SPDX-License-Identifier: Apache-2.0
"""When logging was on: a log's KLOGGER_START and KLOGGER_FINISH events, and what lies between."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.table import LogFormat
from tcpkmon.formats.verify.klogger.books import integers

START, FINISH = "KLOGGER_START", "KLOGGER_FINISH"
DISABLED = 5
"""Value of KLOGGER_FINISH.reason: logging was only switched off."""


class Pauses:
    """Follows a log. begun: it begins with KLOGGER_START; end_reason, end_at, end_ns: the
    KLOGGER_FINISH that is no pause, by name, which record it is, its time.
    """

    def __init__(self, log: LogFormat) -> None:
        self.begun = False
        self.end_reason: str | None = None
        self.end_at = self.end_ns = -1
        self.wrong: list[tuple[int, str]] = []
        event = log.find_event(FINISH)
        field = event.find_field("reason") if event is not None else None
        self._reasons = {} if field is None else log.enums.get(field.type, {})
        self._off_ns: int | None = None
        self._pauses = 0
        self._paused_ns = 0
        self._records_off = 0

    def feed(
        self, batch: LogBatch, present: Set[str], kernel: NDArray[np.int64], first: int
    ) -> None:
        """A batch; present: the names of its events; `kernel`: places of the kernel's records;
        first: number of its first record."""
        changes: list[tuple[int, int | None]] = []
        if START in present:
            changes += [(at, None) for at in batch.where(START).tolist()]
        if FINISH in present:
            reasons = integers(batch, FINISH, ("reason",))[:, 0].tolist()
            changes += list(zip(batch.where(FINISH).tolist(), reasons, strict=True))
        done = 0
        for at, reason in sorted(changes, key=lambda change: change[0]):
            self._off(kernel, done, at, first)
            done = at
            time_ns = int(batch.times_ns[at])
            if reason is None:
                self._start(first + at, time_ns)
            else:
                self._finish(first + at, time_ns, reason)
        self._off(kernel, done, len(batch), first)

    def _start(self, record: int, time_ns: int) -> None:
        # The first record of all is DUMP_BEGIN.
        self.begun = self.begun or record == 1
        if self._off_ns is not None:
            self._paused_ns += max(0, time_ns - self._off_ns)
            self._off_ns = None

    def _finish(self, record: int, time_ns: int, reason: int) -> None:
        if reason == DISABLED:
            if self._off_ns is None:
                self._pauses += 1
                self._off_ns = time_ns
            return
        if self.end_reason is not None:
            self.wrong.append((record, "a second KLOGGER_FINISH that ends the log"))
        self.end_reason = self._reasons.get(reason, str(reason)).lower().replace("_", " ")
        self.end_at, self.end_ns = record, time_ns

    def _off(self, kernel: NDArray[np.int64], start: int, stop: int, first: int) -> None:
        """The kernel's records between two places while logging is off: there should be none."""
        if self._off_ns is None:
            return
        begin, end = np.searchsorted(kernel, (start, stop)).tolist()
        if end > begin and not self._records_off:
            what = "records of the kernel while logging was switched off"
            self.wrong.append((first + int(kernel[begin]), what))
        self._records_off += end - begin

    def notes(self) -> list[str]:
        """For people: how often logging was off."""
        if not self._pauses:
            return []
        still = " and is still" if self._off_ns is not None else ""
        return [f"logging was{still} switched off {self._pauses} time(s), "
                f"{self._paused_ns / 1e9:.3f} s in all"]  # fmt: skip
