# SPDX-License-Identifier: Apache-2.0
"""A log's CLOCK events: each pair of readings follows from the one before and the step it tells."""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.verify.clock import ClockPairs
from tcpkmon.formats.verify.klogger.books import integers

CLOCK = "CLOCK"
_MOST = 50


class ClockEvents:
    """Follows the CLOCK events of a log. `wrong`: what does not fit, with the record it is."""

    def __init__(self) -> None:
        self.pairs = ClockPairs()
        self.wrong: list[tuple[int, str]] = []

    def feed(self, batch: LogBatch, first: int) -> None:
        """The CLOCK events of a batch, one at least; `first`: number of its first record."""
        rows = integers(batch, CLOCK, ("mono_ns", "realtime_ns", "uncertainty_ns", "step_ns"))
        mono, real = rows[:, 0].astype(np.uint64), rows[:, 1].astype(np.uint64)
        room, step = rows[:, 2], rows[:, 3]
        every = np.ones(len(rows), np.bool_)
        found = self.pairs.feed(mono, real, step, room, every, every)
        at = batch.where(CLOCK)
        for pair in np.flatnonzero(found.off | found.back)[: _MOST - len(self.wrong)].tolist():
            if found.back[pair]:
                what = f"the monotonic clock of this pair runs back by {found.back_ns[pair]} ns"
            else:
                what = f"the clock pair says a step of {step[pair]} ns"
                what = f"{what}, its values one of {found.found[pair]} ns"
            self.wrong.append((first + int(at[pair]), what))
