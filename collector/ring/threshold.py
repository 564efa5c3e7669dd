# SPDX-License-Identifier: Apache-2.0
"""When a ring wakes this process: at the low-water mark, or later while records come slowly."""

from __future__ import annotations

import time

CALM_NS, IDLE_NS = 20_000_000, 200_000_000


class Threshold:
    """The wake-up threshold of a ring, in records; rows: the size of the ring in records.

    A wake-up costs as much as a thousand records, so the threshold rises to half a ring while the
    other half would last more than CALM_NS. It falls back when the ring needs more than IDLE_NS to
    reach the low-water mark: a burst may come next.
    """

    def __init__(self, rows: int, low_water: int) -> None:
        self._half = max(1, rows // 2)
        self._low_water = max(1, min(self._half, low_water))
        self._read, self._then_ns = 0, time.monotonic_ns()
        self.due_at = self._low_water
        """The position, in records, at which the ring is to be read."""

    def move(self, read: int) -> int:
        """The next due_at, now that so many records were read."""
        now_ns = time.monotonic_ns()
        rows, passed_ns = read - self._read, now_ns - self._then_ns
        self._read, self._then_ns = read, now_ns
        calm = (
            rows * CALM_NS <= self._half * passed_ns
            and rows * IDLE_NS >= self._low_water * passed_ns
        )
        self.due_at = read + (self._half if calm else self._low_water)
        return self.due_at
