# SPDX-License-Identifier: Apache-2.0
"""Throughput and goodput of a connection: means of equal times, none where records are missing.

What was sent or acknowledged between two records is spread evenly over the time between them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis import why
from tcpkmon.formats.base.sequence import ahead_of, has_numbers
from tcpkmon.formats.base.tcp import Location

Array = NDArray[Any]
NAMES = ("sent, new and again", "goodput: acknowledged or SACKed", "goodput: received")
_COLUMNS = ("snd_max", "snd_una", "rcv_nxt")
_MOST, _LEAST_NS = 250, 1_000_000


class Rates:
    """The bytes of one connection between two times, in at most 250 times of at least 1 ms."""

    def __init__(self, begin_ns: int, end_ns: int) -> None:
        span = max(end_ns - begin_ns, 1)
        count = min(max(span // _LEAST_NS, 1), _MOST)
        self.width_ns = span / count
        self._edges = np.arange(count + 1) * self.width_ns
        self._begin = begin_ns
        self._unknown = np.zeros(count, np.bool_)
        self._bytes = np.zeros((len(NAMES), count + 1))  # until each edge
        self._sums = np.zeros((len(NAMES), 1))
        self._numbers: list[Array] | None = None
        self._acked = self._delivered = 0.0
        self._time = 0.0

    def add(self, piece: why.Snapshots, begins: Array, ends: Array) -> None:
        """The connection's next snapshots; between these times records are missing."""
        missing = np.bincount(self._place(begins), minlength=len(self._edges))
        missing -= np.bincount(self._place(ends) + 1, minlength=len(self._edges))
        self._unknown |= np.cumsum(missing[:-1]) > 0
        rows = np.flatnonzero(has_numbers(piece.columns))
        if not len(rows):
            return
        now = [piece[name][rows].astype(np.uint32) for name in _COLUMNS]
        before = self._numbers or [values[:1] for values in now]
        self._numbers = [values[-1:] for values in now]
        steps = np.stack([ahead_of(values, np.r_[last, values[:-1]])
                          for values, last in zip(now, before, strict=True)])  # fmt: skip
        steps = np.maximum(steps, 0).astype(np.int64)
        # With SACK, or one ACK would have all that was delivered during a recovery.
        acked = self._acked + np.cumsum(steps[1])
        sacked = piece["sacked_out"][rows].astype(np.int64) * piece["mss"][rows]
        delivered = np.maximum.accumulate(np.r_[self._delivered, acked + sacked])
        steps[1] = np.diff(delivered)
        self._acked, self._delivered = float(acked[-1]), float(delivered[-1])
        again = piece["location"][rows] == Location.RETRANSMIT
        steps[0] += np.where(again, piece["seg_len"][rows], 0)
        times = np.maximum.accumulate(np.r_[self._time, piece.times_ns[rows] - self._begin])
        sums = np.cumsum(np.concatenate([self._sums, steps], axis=1), axis=1)
        later = np.flatnonzero(self._edges > self._time)
        for found, of in zip(self._bytes, sums, strict=True):
            found[later] = np.interp(self._edges[later], times, of)
        self._time, self._sums = float(times[-1]), sums[:, -1:]

    def megabits(self) -> list[list[float | None]]:
        """For each of NAMES Mbit/s for each time; None where it is not known."""
        found = np.diff(self._bytes) * (8e3 / self.width_ns)
        found[:, self._unknown] = np.nan
        return [[None if math.isnan(one) else float(f"{one:.5g}") for one in row]
                for row in found.tolist()]  # fmt: skip

    def _place(self, times: Array) -> Array:
        place = (times - self._begin) / self.width_ns
        return np.clip(place.astype(np.int64), 0, len(self._unknown) - 1)
