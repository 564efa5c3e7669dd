# SPDX-License-Identifier: Apache-2.0
"""Keeps a curve's points few: per pixel column the first, last, least and greatest."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_KEPT_PER_BIN = 4
_SLACK = 6


def reduce_points(times: Array, values: Array, limits: tuple[float, float], bins: int) -> Array:
    """Return the indices, in order, of the points that draw the same in `bins` pixel columns.

    Per column these are the first, the last, the smallest and the greatest. `times` rises.
    """
    begin, end = limits
    span = max(end - begin, 1e-12)
    columns = np.clip((times - begin) * (bins / span), 0, bins - 1).astype(np.int64)
    starts = np.flatnonzero(np.r_[True, columns[1:] != columns[:-1]])
    lengths = np.diff(np.r_[starts, len(times)])
    keep = [starts, starts + lengths - 1]
    for extreme in (np.minimum, np.maximum):
        at_extreme = np.flatnonzero(values == np.repeat(extreme.reduceat(values, starts), lengths))
        owner = np.searchsorted(starts, at_extreme, side="right")
        keep.append(at_extreme[np.r_[True, owner[1:] != owner[:-1]]])
    return np.unique(np.concatenate(keep))


class Curve:
    """The points of one column of one connection, added chunk by chunk and thinned as they grow."""

    def __init__(self, limits: tuple[float, float], bins: int) -> None:
        self._limits = limits
        self._bins = bins
        self._pieces: list[tuple[Array, Array]] = []
        self._held = 0
        self.records = 0

    def add(self, times: Array, values: Array) -> None:
        """Add points; both arrays of the same length, in the order of the file."""
        if not len(times):
            return
        self.records += len(times)
        self._pieces.append((times, values.astype(np.float64)))
        self._held += len(times)
        if self._held > self._bins * _KEPT_PER_BIN * _SLACK:
            self._thin()

    def points(self) -> tuple[Array, Array]:
        """Times and values to draw, by time; at most four points per pixel column, if many."""
        if self._held > self._bins * _KEPT_PER_BIN:
            self._thin()
        return self._joined()

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
        times, values = self._joined()
        kept = reduce_points(times, values, self._limits, self._bins)
        self._pieces = [(times[kept], values[kept])]
        self._held = len(kept)
