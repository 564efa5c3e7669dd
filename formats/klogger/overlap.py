# SPDX-License-Identifier: Apache-2.0
"""Records that two dumps of a flight recorder hold are read once.

The kernel's serials tell which they are. A record's serial in the file is the kernel's, less the
last one before the window, plus the number of base events before it in the file:

    dump 1, kernel's serials   5 6 7 8
    dump 2                         7 8 9 10        7 and 8 are left out
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.facts import EVENTS
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.table import NUMBERS, LogFormat

BASE = frozenset({
    "KLOGGER_START", "KLOGGER_FINISH", "DUMP_BEGIN", "DUMP_FINISH", "CLOCK", "LEDGER", "CPU_LEDGER",
    "PROGRAM_LEDGER", "PROCESS_EXISTS", "LOGGING_EVENT", "MARK", "SOCKET_EXISTS", *EVENTS,
})  # fmt: skip
"""Events that the collector makes (bpf/schemata/base.conf); all others are the kernel's."""
_MOST = 1 << 62
LOST = "MAGNET_LOST"
"""An event of MAGNeT files: so many events of the kernel are lost here."""


def base_numbers(log: LogFormat) -> NDArray[np.bool_]:
    """(NUMBERS,) which events the collector makes."""
    found = np.zeros(NUMBERS, np.bool_)
    for event in log.events:
        found[event.number] = event.name in BASE
    return found


class Overlap:
    """Follows the dumps of one CPU, or MAGNeT's of all, in order.

    again: how many lost events the current file counts that an earlier one did.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._before: int | None = None
        self._base = 0

    def begin(self, log: LogFormat, header: Mapping[str, Any]) -> None:
        """The next file."""
        self._is_base, self._base, self.again = base_numbers(log), 0, 0
        self._lost = None if "cpu" in header else log.find_event(LOST)
        try:
            previous = header["settings"]["segment"]["previous"]
            self._before = None
            if previous["evicted"] is True:
                told = previous["last_seq"]
                if self._lost is None:
                    told = previous["serials"].get(str(header["cpu"]), 0)
                self._before = int(told) if 0 <= told < _MOST else None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            self._before = None

    def widths(self, batch: LogBatch) -> NDArray[np.int64]:
        """(n,) how many serials each record of its next batch takes."""
        found = np.ones(len(batch), np.int64)
        if self._lost is not None and len(at := batch.where(self._lost)):
            found[at] = np.maximum(batch.rows(self._lost, at)["count"], 1)
        return found

    def repeated(self, batch: LogBatch, widths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) which records of its next batch an earlier dump holds."""
        if self._before is None:
            return np.zeros(len(batch), np.bool_)
        is_base = self._is_base[batch.numbers]
        base = self._base + np.cumsum(is_base)
        kernel = batch.serials.astype(np.int64) + (widths - 1) - base + self._before
        found: NDArray[np.bool_] = ~is_base & (kernel <= self._seen)
        if self._lost is not None:
            found |= is_base & (kernel < self._seen)
            self.again += int(widths[found & (batch.numbers == self._lost.number)].sum())
        self._base = int(base[-1]) if len(base) else self._base
        self._seen = max(self._seen, int(kernel[~is_base].max(initial=0)))
        return found
