# SPDX-License-Identifier: Apache-2.0
"""Clock pairs: beside the sequencer, tie the kernel's monotonic stamps to the time of day."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formats.base.control import Clock

STEP_NS = 1_000_000
_READINGS = 5

Reader = Callable[[], int]


@dataclass(frozen=True)
class ClockPair:
    """CLOCK_MONOTONIC and CLOCK_REALTIME of one moment, known to within `uncertainty_ns`."""

    mono_ns: int
    realtime_ns: int
    uncertainty_ns: int

    @property
    def offset_ns(self) -> int:
        """What turns monotonic time into time of day."""
        return self.realtime_ns - self.mono_ns


def read_pair(
    mono: Reader = time.monotonic_ns, real: Reader = time.time_ns, readings: int = _READINGS
) -> ClockPair:
    """The best of several readings: that with the least time between two monotonic ones."""
    best: ClockPair | None = None
    for _ in range(readings):
        before, now, after = mono(), real(), mono()
        pair = ClockPair((before + after) // 2, now, (after - before + 1) // 2)
        if best is None or pair.uncertainty_ns < best.uncertainty_ns:
            best = pair
    assert best is not None
    return best


class Clocks:
    """Follows the time of day while capturing.

    The offset between the clocks is held constant until it is off by more than STEP_NS (both
    clocks are slewed alike, so only a step or a suspend does that). Hence the time of day of
    ordered records never runs back or leaps but at a step, and each step that check() sees gives a
    Clock entry: records sequenced after that have the new offset, even if stamped up to one check
    before it. Their monotonic time tells which.
    """

    def __init__(self, mono: Reader = time.monotonic_ns, real: Reader = time.time_ns) -> None:
        self._mono = mono
        self._real = real
        self.start = read_pair(mono, real)
        self.latest = self.start
        """The last pair that was read."""
        self.steps = 0
        self._offset_ns = self.start.offset_ns

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC now."""
        return self._mono()

    def check(self) -> Clock | None:
        """Read the clocks; an entry to be written if the time of day was set since the last."""
        entry = self.read()
        if abs(self.latest.offset_ns - self._offset_ns) <= STEP_NS + self.latest.uncertainty_ns:
            return None
        entry = Clock(
            entry.mono_ns,
            entry.realtime_ns,
            entry.uncertainty_ns,
            self.latest.offset_ns - self._offset_ns,
        )
        self._offset_ns = self.latest.offset_ns
        self.steps += 1
        return entry

    def read(self) -> Clock:
        """Read the clocks for an entry of its own (it changes no conversion)."""
        previous, self.latest = self.latest, read_pair(self._mono, self._real)
        pair = self.latest
        step_ns = pair.offset_ns - previous.offset_ns
        return Clock(pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns, step_ns)

    def to_epoch(self, mono_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Monotonic ns as ns since the epoch, by the offset that holds now; any shape."""
        epoch_ns: NDArray[np.int64] = mono_ns + np.int64(self._offset_ns)
        return epoch_ns
