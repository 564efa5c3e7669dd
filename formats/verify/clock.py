# SPDX-License-Identifier: Apache-2.0
"""A log's CLOCK events: each pair of readings follows from the one before and the step it tells."""

from __future__ import annotations

from formats.klogger import LogBatch
from formats.verify.clock import STEP_NS, STEP_TOLERANCE_NS
from formats.verify.log_books import integers

CLOCK = "CLOCK"
_MOST = 50


class ClockPairs:
    """Follows the CLOCK events of a log. `wrong`: what does not fit, with the record it is."""

    def __init__(self) -> None:
        self.pairs = 0
        self.steps = 0
        self.wrong: list[tuple[int, str]] = []
        self._last: tuple[int, int] | None = None

    def feed(self, batch: LogBatch, first: int) -> None:
        """The CLOCK events of a batch; `first`: number of its first record in the log."""
        rows = integers(batch, CLOCK, ("mono_ns", "realtime_ns", "uncertainty_ns", "step_ns"))
        for at, row in zip(batch.where(CLOCK).tolist(), rows.tolist(), strict=True):
            what = self._judge(*row)
            if what and len(self.wrong) < _MOST:
                self.wrong.append((first + at, what))

    def _judge(self, mono: int, real: int, uncertainty: int, step: int) -> str:
        self.pairs += 1
        self.steps += abs(step) > STEP_NS
        before, self._last = self._last, (mono, real - mono)
        if before is None:
            return ""
        if mono < before[0]:
            return f"the monotonic clock of this pair runs back by {before[0] - mono} ns"
        found = real - mono - before[1]
        if abs(step - found) > STEP_TOLERANCE_NS + uncertainty:
            return f"the clock pair says a step of {step} ns, its values one of {found} ns"
        return ""
