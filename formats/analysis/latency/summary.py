# SPDX-License-Identifier: Apache-2.0
"""Statistics of measured ranges in bounded memory: of each flow, of all over time, the slowest.

Percentiles are weighted by bytes. They come from histograms with classes of 1.6 % width, so they
are right within 0.8 %; the greatest values and the means are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.latency.parts import Measured
from tcpkmon.formats.analysis.latency.stages import PARTS, TIMES, State

COLUMNS = (*PARTS, "whole")
QUANTILES = (0.5, 0.95, 0.99, 0.999)
MOST_BINS = 2048
_CLASSES = 1 << 12
"""Of a histogram: 64 for each power of two."""
_MOST_CELLS = 1 << 21
_FIRST_BIN_NS = 1 << 10

Array = NDArray[np.int64]
Floats = NDArray[np.float64]

STORY = np.dtype(
    [
        ("flow", "<i8"), ("lo", "<i8"), ("hi", "<i8"), ("sent_again", "<i8"), ("chain", "u1"),
        ("whole", "<i8"), *((name, "<i8") for name in TIMES),
    ]
)  # fmt: skip
"""A slow range: its sequence numbers, and when it was where [CLOCK_MONOTONIC ns], -1: not known."""


def class_of(values_ns: Array) -> Array:
    """(n,) the class of a histogram for each time >= 0."""
    mantissa, exponent = np.frexp(values_ns.astype(np.float64))
    classes = exponent.astype(np.int64) * 64 + ((mantissa - 0.5) * 128).astype(np.int64)
    return np.where(values_ns <= 0, 0, classes)


def middle_of(classes: Array) -> Floats:
    """(n,) the middle of each class [ns]."""
    power, step = np.divmod(classes, 64)
    return np.where(classes == 0, 0.0, np.ldexp(0.5 + (step + 0.5) / 128, power))


@dataclass(frozen=True)
class Spread:
    """How a part's times are spread over n bytes; classes and weights: its histogram."""

    total_ns: float
    mean_ns: float
    quantiles_ns: tuple[float, ...]
    most_ns: int
    classes: Array
    weights: Array


class Summary:
    """Adds up the ranges of f flows. wanted: (f,) which of them count.

    size: (f, states) bytes of each State. again: (f,) measured bytes that were sent again.
    """

    def __init__(self, wanted: NDArray[np.bool_], begin_ns: int, slowest: int = 3) -> None:
        count = len(wanted)
        self.size = np.zeros((count, len(State)), np.int64)
        self.again = np.zeros(count, np.int64)
        self.stories = np.empty(0, STORY)
        self.bins = np.zeros((0, len(PARTS)))
        self.bin_bytes = np.zeros(0)
        self.bin_ns = _FIRST_BIN_NS
        self.wanted = wanted
        self._begin_ns, self._slowest = begin_ns, slowest
        self._sums = np.zeros((2 * count, len(COLUMNS)))
        self._most = np.zeros((2 * count, len(COLUMNS)), np.int64)
        self._least = np.full(count, -1, np.int64)
        self._cells: list[tuple[Array, Array]] = []

    def add(self, some: Measured) -> None:
        """The next ranges."""
        flow, sizes = some.ranges.flow, some.sizes
        np.add.at(self.size, (flow, some.state), sizes)
        at = np.flatnonzero((some.state == State.MEASURED) & self.wanted[flow])
        if not len(at):
            return
        flow, sizes = flow[at], sizes[at]
        again = some.ranges.sent_again[at] > 0
        np.add.at(self.again, flow[again], sizes[again])
        values = np.stack([*(some.parts[name][at] for name in PARTS), some.whole[at]])
        self._add_groups(flow * 2 + again, sizes, values)
        self._add_slow(some, at)
        ends = np.stack([some.ranges.times[name][at] for name in ("read", "ack", "inorder")])
        self._add_bins(ends.max(0), sizes, values[:-1])

    def _add_groups(self, groups: Array, sizes: Array, values: Array) -> None:
        present, local = np.unique(groups, return_inverse=True)
        order = np.argsort(local, kind="stable")
        starts = np.flatnonzero(np.diff(local[order], prepend=-1))
        keys = np.empty(values.shape, np.int64)
        for column, times in enumerate(values):
            weighed = np.bincount(local, times.astype(float) * sizes, len(present))
            self._sums[present, column] += weighed
            most = np.maximum.reduceat(times[order], starts)
            self._most[present, column] = np.maximum(self._most[present, column], most)
            keys[column] = (groups * len(COLUMNS) + column) * _CLASSES + class_of(times)
        self._cells.append(_sum_by(keys.ravel(), np.tile(sizes, len(values))))
        if sum(len(cells) for cells, _ in self._cells) > _MOST_CELLS:
            self._tidy()

    def _tidy(self) -> tuple[Array, Array]:
        """All cells of the histograms, in one table."""
        nothing = np.empty(0, np.int64)
        cells = [
            np.concatenate(parts) for parts in zip((nothing, nothing), *self._cells, strict=True)
        ]
        self._cells = [_sum_by(*cells)]
        return self._cells[0]

    def _add_slow(self, some: Measured, at: Array) -> None:
        """Keep the slowest range of each of the slowest writes of each flow."""
        ranges = some.ranges
        at = at[some.whole[at] > self._least[ranges.flow[at]]]
        if not self._slowest or not len(at):
            return
        rows = np.empty(len(at), STORY)
        for name in ("flow", "lo", "hi", "sent_again"):
            rows[name] = getattr(ranges, name)[at]
        for name in TIMES:
            rows[name] = ranges.times[name][at]
        rows["chain"], rows["whole"] = some.chain[at], some.whole[at]
        # The ranges of one segment, or of one write, share their story.
        begin = np.where(rows["write"] >= 0, rows["write"], rows["driver_in"])
        order = np.lexsort((-rows["whole"], begin, rows["flow"]))
        rows, begin = rows[order], begin[order]
        first = (np.diff(rows["flow"], prepend=-1) != 0) | (np.diff(begin, prepend=-1) != 0)
        rows = np.concatenate((self.stories, rows[first]))
        rows = rows[np.lexsort((-rows["whole"], rows["flow"]))]
        starts = np.flatnonzero(np.diff(rows["flow"], prepend=-1))
        place = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
        self.stories = rows[place < self._slowest]
        last = rows[place == self._slowest - 1]
        self._least[last["flow"]] = last["whole"]

    def _add_bins(self, ends_ns: Array, sizes: Array, values: Array) -> None:
        passed = np.maximum(ends_ns - self._begin_ns, 0)
        while int(passed.max()) // self.bin_ns >= MOST_BINS:
            self.bin_ns *= 2
            self.bins, self.bin_bytes = _halve(self.bins), _halve(self.bin_bytes)
        places = passed // self.bin_ns
        count = max(int(places.max()) + 1, len(self.bins))
        more = count - len(self.bins)
        self.bins = np.pad(self.bins, ((0, more), (0, 0)))
        self.bin_bytes = np.pad(self.bin_bytes, (0, more))
        self.bin_bytes += np.bincount(places, sizes, count)
        for column, times in enumerate(values):
            self.bins[:, column] += np.bincount(places, times.astype(float) * sizes, count)

    def spreads(self) -> dict[tuple[int, bool], dict[str, Spread]]:
        """By flow, and whether its bytes were sent again: each part and the whole.

        Parts that a flow's chain does not have are among them, with 0.
        """
        keys, weights = self._tidy()
        groups = keys // _CLASSES
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        found: dict[tuple[int, bool], dict[str, Spread]] = {}
        ends = np.append(starts[1:], len(keys))
        for begin, end in zip(starts.tolist(), ends.tolist(), strict=False):
            group, column = divmod(int(groups[begin]), len(COLUMNS))
            spread = _spread(
                keys[begin:end] % _CLASSES, weights[begin:end],
                float(self._sums[group, column]), int(self._most[group, column]),
            )  # fmt: skip
            found.setdefault((group // 2, bool(group % 2)), {})[COLUMNS[column]] = spread
        return found


def _spread(classes: Array, weights: Array, total: float, most: int) -> Spread:
    reached = np.cumsum(weights)
    places = np.searchsorted(reached, [q * reached[-1] for q in QUANTILES])
    middles = np.minimum(middle_of(classes), most)
    quantiles = tuple(middles[np.minimum(places, len(classes) - 1)].tolist())
    return Spread(total, total / int(reached[-1]), quantiles, most, classes, weights)


def _sum_by(keys: Array, weights: Array) -> tuple[Array, Array]:
    """Distinct keys, ascending, and the sums of their weights."""
    if not len(keys):
        return keys, weights
    order = np.argsort(keys)
    keys, weights = keys[order], weights[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[starts], np.add.reduceat(weights, starts)


def _halve(bins: Floats) -> Floats:
    """Each two neighbours as one."""
    if len(bins) % 2:
        bins = np.concatenate((bins, np.zeros_like(bins[:1])))
    return bins[::2] + bins[1::2]
