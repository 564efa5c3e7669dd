# SPDX-License-Identifier: Apache-2.0
"""Bounds of what clock B has more than clock A: no message arrives before it was sent.

Each message gives a point: a time of A, and the difference of clocks that it allows at most
(A to B) or at least (B to A). The difference is a line, o(t) = a + b t, as long as no clock is
stepped or steered anew: it runs below all points of the one kind and above all of the other. Of
all such lines the bounds are the lowest and the highest at each time (linear programming in two
variables; the corners of the points' convex hulls are all that matters). Where no line fits, each
half is fitted alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.analysis.arrays import Array

Points = tuple[Array, Array]
"""(n,) int64 times of A and (n,) int64 differences, ns."""
STEEPEST = 1e-3
"""No two clocks drift faster apart: NTP steers by 500 ppm at most."""
_DEPTH = 12
_ROUND_NS = 1.0


@dataclass(frozen=True)
class Line:
    """The lines that fit from one time of A to another. slopes, lowest, highest: (m,) at which the
    bounds bend, and between which differences at `origin` (time, difference) they begin there."""

    start: int
    end: int
    origin: tuple[int, int]
    slopes: Array
    lowest: Array
    highest: Array


@dataclass(frozen=True)
class Clocks:
    """lines: in time order; one, unless a clock was stepped or steered."""

    lines: tuple[Line, ...]

    def bounds(self, times: Array) -> tuple[Array, Array]:
        """(n,) float64: B's clock less A's, at least and at most, at times of A [ns]."""
        low, high = np.full(len(times), -np.inf), np.full(len(times), np.inf)
        starts = np.array([line.start for line in self.lines[1:]], np.int64)
        which = np.searchsorted(starts, times, "right")
        for number, line in enumerate(self.lines):
            at = np.flatnonzero(which == number)
            for some in np.array_split(at, len(at) // 65536 + 1):
                from_origin = (times[some] - line.origin[0]).astype(np.float64)
                run = from_origin[:, None] * line.slopes
                low[some] = (line.lowest + run).min(1) + line.origin[1] - _ROUND_NS
                high[some] = (line.highest + run).max(1) + line.origin[1] + _ROUND_NS
        return low, high

    def middle(self, times_b: Array) -> tuple[Array, Array]:
        """(n,) times of A for times of B, and by how much they may be wrong [ns]."""
        at = times_b
        for _ in range(3):  # a line of slope 1e-3 at most: each round leaves a thousandth
            low, high = self.bounds(at)
            if not np.isfinite(low + high).all():
                return times_b, np.full(len(at), np.inf)
            at = times_b - np.rint((low + high) / 2).astype(np.int64)
        return at, (high - low) / 2

    @property
    def drift(self) -> tuple[float, float]:
        """How fast B gains on A, at least and at most [ns/ns]: of all lines together."""
        return (min(float(line.slopes.min()) for line in self.lines),
                max(float(line.slopes.max()) for line in self.lines))  # fmt: skip


def fit(most: Points, least: Points, depth: int = 0) -> Clocks | None:
    """The clocks of messages from A to B (most) and from B to A (least). None: they contradict."""
    times = np.concatenate([most[0], least[0]])
    if not len(times):
        return None
    start, end = int(times.min()), int(times.max())
    differences = np.concatenate([most[1], least[1]])
    origin = ((start + end) // 2, int(np.median(differences)))
    upper, lower = (_near(some, origin) for some in (most, least))
    found = _lines(_hull(upper, 1.0), _hull(lower, -1.0))
    if found is not None:
        return Clocks((Line(start, end, origin, *found),))
    if depth == _DEPTH:
        return None
    lines: list[Line] = []
    for is_late in (False, True):
        halves = [_half(some, origin[0], is_late) for some in (most, least)]
        if (half := fit(halves[0], halves[1], depth + 1)) is None:
            return None
        lines += half.lines
    return Clocks(tuple(lines))


def _half(points: Points, middle: int, is_late: bool) -> Points:
    chosen = (points[0] >= middle) == is_late
    return points[0][chosen], points[1][chosen]


def _near(points: Points, origin: tuple[int, int]) -> Points:
    at, value = (some - zero for some, zero in zip(points, origin, strict=True))
    return at.astype(np.float64), value.astype(np.float64)


def _hull(points: Points, sign: float) -> Points:
    """The lower hull of points (sign 1), or the upper (-1), from left to right."""
    order = np.lexsort((sign * points[1], points[0]))
    x, y = points[0][order], sign * points[1][order]
    first = np.diff(x, prepend=-np.inf) > 0
    x, y = x[first], y[first]
    while len(x) > 2000:  # what is above a neighbours' line is no corner
        above = (y[1:-1] - y[:-2]) * (x[2:] - x[:-2]) >= (y[2:] - y[:-2]) * (x[1:-1] - x[:-2])
        if above.mean() < 0.1:
            break
        keep = np.concatenate([[True], ~above, [True]])
        x, y = x[keep], y[keep]
    corners: list[tuple[float, float]] = []
    for at, value in zip(x.tolist(), y.tolist(), strict=True):
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (y1 - y0) * (at - x0) < (value - y0) * (x1 - x0):
                break
            corners.pop()
        corners.append((at, value))
    found = np.array(corners, np.float64).reshape(-1, 2)
    return found[:, 0], sign * found[:, 1]


def _lines(upper: Points, lower: Points) -> tuple[Array, Array, Array] | None:
    """slopes, lowest and highest of Line at the origin; None where no line fits."""
    bends = [np.array([-STEEPEST, STEEPEST])]
    bends += [np.diff(y) / np.diff(x) for x, y in (upper, lower)]
    slopes = np.unique(np.clip(np.concatenate(bends), -STEEPEST, STEEPEST))
    lowest, highest = _at(slopes, upper, lower)
    room = highest - lowest  # concave: where it is not negative there is one range of slopes
    if np.isinf(room).all():
        return slopes, lowest, highest
    fits = np.flatnonzero(room >= 0)
    if not len(fits):
        return None
    edges = []
    for inside, outside in ((fits[0], fits[0] - 1), (fits[-1], fits[-1] + 1)):
        if 0 <= outside < len(slopes):
            share = room[inside] / (room[inside] - room[outside])
            edges.append(slopes[inside] + share * (slopes[outside] - slopes[inside]))
    slopes = np.unique(np.concatenate([slopes[fits], edges]))
    lowest, highest = _at(slopes, upper, lower)
    return slopes, np.minimum(lowest, highest), np.maximum(lowest, highest)


def _at(slopes: Array, upper: Points, lower: Points) -> tuple[Array, Array]:
    lowest = [np.max(lower[1] - slope * lower[0], initial=-np.inf) for slope in slopes]
    highest = [np.min(upper[1] - slope * upper[0], initial=np.inf) for slope in slopes]
    return np.array(lowest), np.array(highest)
