# SPDX-License-Identifier: Apache-2.0
"""Clock pairs: for the sequencer, convert the kernel's monotonic stamps to the time of day."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from tcpkmon.formats.base.control import Clock

STEP_NS = 1_000_000
_READINGS = 5

Reader = Callable[[], int]


def read_pair(
    mono: Reader = time.monotonic_ns, real: Reader = time.time_ns, readings: int = _READINGS
) -> Clock:
    """Both clocks at one moment, to within uncertainty_ns: the best of several readings, the one
    with the shortest time between its monotonic stamps."""
    pairs = []
    for _ in range(readings):
        before, now, after = mono(), real(), mono()
        pairs.append(Clock((before + after) // 2, now, (after - before + 1) // 2, 0))
    return min(pairs, key=lambda pair: pair.uncertainty_ns)


def offset_of(pair: Clock) -> int:
    """Time of day less monotonic time."""
    return pair.realtime_ns - pair.mono_ns


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
        self._offset_ns = offset_of(self.start)

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
        step_ns = offset_of(entry) - self._offset_ns
        if abs(step_ns) <= STEP_NS + entry.uncertainty_ns:
            return None
        self._offset_ns += step_ns
        return replace(entry, step_ns=step_ns)

    def read(self) -> Clock:
        """Read the clocks for an entry; the offset stays."""
        previous, self.latest = self.latest, read_pair(self._mono, self._real)
        return replace(self.latest, step_ns=offset_of(self.latest) - offset_of(previous))
