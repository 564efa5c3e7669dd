# SPDX-License-Identifier: Apache-2.0
"""Collects the points of a curve, and thins them: for each pixel column it keeps the first, last,
least and greatest value."""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.base.thinning import bins_of, thin
from tcpkmon.formats.pmgraph.arrays import Array

_KEPT_PER_BIN = 4
_SLACK = 6


def reduce_points(
    times: Array, values: Array, limits: tuple[float, float], bins: int
) -> tuple[Array, Array]:
    """Points in order that look the same as all points in `bins` pixel columns.

    times: (n,) seconds, ascending, within limits. values: (n,).
    """
    kept = thin(bins_of(times, *limits, bins), values[None])
    return times[kept], values[kept]


class Curve:
    """The points of one column of one connection, added by chunk and thinned if they are many.

    window: only points of this time. holds: a value holds until the next one, so the curve begins
    with what it was before, and goes on to the window's end if records follow.
    """

    def __init__(
        self,
        limits: tuple[float, float],
        bins: int,
        window: tuple[float, float] | None = None,
        holds: bool = True,
    ) -> None:
        self._limits = limits
        self._window = window
        self._holds = holds
        self._before: Array | None = None
        self._goes_on = False
        self._bins = bins
        self._pieces: list[tuple[Array, Array]] = []
        self._held = 0
        self.records = 0

    def add(self, times: Array, values: Array) -> None:
        """Add (n,) times and values, in the order of the file."""
        if self._window is not None:
            begin, end = self._window
            if self._holds and (earlier := np.flatnonzero(times < begin)).size:
                self._before = values[earlier[-1:]].astype(np.float64)
            self._goes_on |= self._holds and bool((times > end).any())
            inside = np.flatnonzero((times >= begin) & (times <= end))
            times, values = times[inside], values[inside]
        if not len(times):
            return
        self.records += len(times)
        values = values.astype(np.float64)
        if len(times) > self._bins and not (times[1:] < times[:-1]).any():
            times, values = reduce_points(times, values, self._limits, self._bins)
        self._pieces.append((times, values))
        self._held += len(times)
        if self._held > self._bins * _KEPT_PER_BIN * _SLACK:
            self._thin()

    def points(self) -> tuple[Array, Array]:
        """(n,) times and values to draw, by time; at most four points for each pixel column."""
        if self._held > self._bins * _KEPT_PER_BIN:
            self._thin()
        times, values = self._joined()
        if self._window is not None and self._before is not None:
            times, values = np.r_[self._window[0], times], np.r_[self._before, values]
        if self._window is not None and self._goes_on and len(values):
            times, values = np.r_[times, self._window[1]], np.r_[values, values[-1]]
        return times, values

    def _joined(self) -> tuple[Array, Array]:
        if not self._pieces:
            return np.empty(0), np.empty(0)
        times = np.concatenate([piece[0] for piece in self._pieces])
        values = np.concatenate([piece[1] for piece in self._pieces])
        if np.any(times[1:] < times[:-1]):
            order = np.argsort(times, kind="stable")
            times, values = times[order], values[order]
        return times, values

    def _thin(self) -> None:
        self._pieces = [reduce_points(*self._joined(), self._limits, self._bins)]
        self._held = len(self._pieces[0][0])
