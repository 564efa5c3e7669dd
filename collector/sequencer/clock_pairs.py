# SPDX-License-Identifier: Apache-2.0
"""Clock pairs: for the sequencer, convert the kernel's monotonic stamps to the time of day."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.control import Clock

STEP_NS = 1_000_000
_READINGS = 5

Reader = Callable[[], int]


@dataclass(frozen=True)
class ClockPair:
    """CLOCK_MONOTONIC and CLOCK_REALTIME at one moment, to within `uncertainty_ns`."""

    mono_ns: int
    realtime_ns: int
    uncertainty_ns: int

    @property
    def offset_ns(self) -> int:
        """Time of day less monotonic time."""
        return self.realtime_ns - self.mono_ns


def read_pair(
    mono: Reader = time.monotonic_ns, real: Reader = time.time_ns, readings: int = _READINGS
) -> ClockPair:
    """The best of several readings: the one with the shortest time between its monotonic stamps."""
    best: ClockPair | None = None
    for _ in range(readings):
        before, now, after = mono(), real(), mono()
        pair = ClockPair((before + after) // 2, now, (after - before + 1) // 2)
        if best is None or pair.uncertainty_ns < best.uncertainty_ns:
            best = pair
    assert best is not None
    return best


class Clocks:
    """Keeps the offset between monotonic time and the time of day during a capture.

    The offset stays constant until it is wrong by more than STEP_NS. Only a step or a suspend
    changes it so much, since both clocks are slewed alike. So the time of day of ordered records
    jumps only at a step. For each step, check() returns a Clock entry, and records that are
    ordered later get the new offset. Some of them were stamped before the step, at most one check
    earlier: their monotonic time shows which.
    """

    def __init__(self, mono: Reader = time.monotonic_ns, real: Reader = time.time_ns) -> None:
        self._mono = mono
        self._real = real
        self.start = read_pair(mono, real)
        self.latest = self.start
        """The last pair."""
        self._offset_ns = self.start.offset_ns

    @property
    def offset_ns(self) -> int:
        """Time of day less monotonic time, as records get it now."""
        return self._offset_ns

    def resume(self, offset_ns: int) -> None:
        """Go on with the offset of a process that was killed: check() tells of a step since."""
        self._offset_ns = offset_ns
        self.latest = replace(self.latest, realtime_ns=self.latest.mono_ns + offset_ns)

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC now."""
        return self._mono()

    def check(self) -> Clock | None:
        """Read the clocks; returns an entry for the file if the time of day was set."""
        entry = self.read()
        if abs(self.latest.offset_ns - self._offset_ns) <= STEP_NS + self.latest.uncertainty_ns:
            return None
        entry = replace(entry, step_ns=self.latest.offset_ns - self._offset_ns)
        self._offset_ns = self.latest.offset_ns
        return entry

    def read(self) -> Clock:
        """Read the clocks for an entry; the offset stays."""
        previous, self.latest = self.latest, read_pair(self._mono, self._real)
        pair = self.latest
        step_ns = pair.offset_ns - previous.offset_ns
        return Clock(pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns, step_ns)

    def to_epoch(self, mono_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Monotonic ns to ns since the epoch, with the current offset; arrays of any shape."""
        epoch_ns: NDArray[np.int64] = mono_ns + np.int64(self._offset_ns)
        return epoch_ns
