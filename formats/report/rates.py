# SPDX-License-Identifier: Apache-2.0
"""Throughput and goodput of a connection: means of equal times, none where records are missing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis import why

Array = NDArray[Any]
NAMES = ("sent, new and again", "goodput: acknowledged", "goodput: received")
_COLUMNS = ("snd_max", "snd_una", "rcv_nxt")
_MOST, _LEAST_NS = 500, 1_000_000
_RETRANSMIT, _STATE_CHANGE = 2, 4
_SYN_SENT, _CLOSE = 2, 7


class Rates:
    """The bytes of one connection between two times, in at most 500 times of at least 1 ms."""

    def __init__(self, begin_ns: int, end_ns: int) -> None:
        span = max(end_ns - begin_ns, 1)
        self._count = min(max(span // _LEAST_NS, 1), _MOST)
        self._begin, self.width_ns = begin_ns, span / self._count
        self._bytes = np.zeros((len(NAMES), self._count))
        self._last: list[Array] | None = None

    def add(self, piece: why.Snapshots, begins: Array, ends: Array) -> None:
        """The connection's next snapshots; between these times records are missing."""
        missing = np.bincount(self._place(begins), minlength=self._count + 1)
        missing -= np.bincount(self._place(ends) + 1, minlength=self._count + 1)
        self._bytes[:, np.cumsum(missing[:-1]) > 0] = np.nan
        is_change = piece["location"] == _STATE_CHANGE
        state = np.where(is_change, piece["callvalue"], piece["state"])
        rows = np.flatnonzero((state != _SYN_SENT) & (state != _CLOSE))  # others have no numbers
        if not len(rows):
            return
        now = [piece[name][rows].astype(np.uint32) for name in _COLUMNS]
        if self._last is None:  # what is under way when the first snapshot comes was sent before
            self._last = [values[:1] for values in now]
        place = self._place(piece.times_ns[rows])
        for number, values in enumerate(now):
            steps = why.ahead_of(values, np.r_[self._last[number], values[:-1]])
            self._add(number, place, np.maximum(steps, 0))
        self._last = [values[-1:] for values in now]
        again = np.flatnonzero(piece["location"][rows] == _RETRANSMIT)
        self._add(0, place[again], piece["seg_len"][rows][again])

    def megabits(self) -> list[list[float | None]]:
        """For each of NAMES Mbit/s for each time; None where it is not known."""
        found = self._bytes * (8e3 / self.width_ns)
        return [[None if math.isnan(one) else float(f"{one:.5g}") for one in row]
                for row in found.tolist()]  # fmt: skip

    def _place(self, times: Array) -> Array:
        place = (times - self._begin) / self.width_ns
        return np.clip(place.astype(np.int64), 0, self._count - 1)

    def _add(self, number: int, place: Array, count: Array) -> None:
        self._bytes[number] += np.bincount(place, count.astype(np.float64), self._count)
