# SPDX-License-Identifier: Apache-2.0
"""Thins curves: of each bin of time, a pixel, it keeps the first, last, least and greatest point.

    index      0 1 2 3 4 | 5 6 7
    value      2 3 4 1 3 | 2 3 2
    bin        0 0 0 0 0 | 1 1 1      starts: 0, 5
    kept       0   2 3 4 | 5 6 7

A break, a row without values, is where records are missing. Between the first and the last break
of a bin nothing stays, so that a line never joins what is on two sides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def bins_of(times: Array, begin: float, end: float, bins: int) -> Array:
    """(n,) the bins of times; those outside are in the first and the last one."""
    place = (times - begin) * (bins / max(end - begin, 1e-12))
    return np.clip(place, 0, bins - 1).astype(np.int64)


def starts_of(bins: Array) -> Array:
    """The index of the first point of each run of one bin."""
    return np.flatnonzero(np.r_[True, bins[1:] != bins[:-1]])


def thin(bins: Array, values: Array, void: Array | None = None) -> Array:
    """The points that stay. bins: (n,) not falling, n > 0. values: (k, n). void: (k, n) where there
    is no value; None: there is each."""
    rows = np.arange(len(bins))
    keep = []
    if void is not None:
        is_break = np.logical_and.reduce(void)
        breaks = np.flatnonzero(is_break)
        if len(breaks) > 1:
            # Rows that have a break of their bin on both sides go.
            first = breaks[np.r_[True, np.diff(bins[breaks]) > 0]]
            last = breaks[np.r_[np.diff(bins[breaks]) > 0, True]]
            depth = np.zeros(len(bins) + 1, np.int64)
            depth[first + 1] += 1
            depth[last + 1] -= 1
            rows = np.flatnonzero(np.cumsum(depth)[:-1] == 0)
        keep.append(rows[is_break[rows]])
    starts = starts_of(bins[rows])
    keep += [rows[starts], rows[np.r_[starts[1:] - 1, len(rows) - 1]]]
    for number, one in enumerate(values):
        known = rows if void is None else rows[~void[number, rows]]
        if not len(known):
            continue
        starts = starts_of(bins[known])
        counts = np.diff(np.r_[starts, len(known)])
        for extreme in (np.minimum, np.maximum):
            wanted = np.repeat(extreme.reduceat(one[known], starts), counts)
            found = known[one[known] == wanted]
            keep.append(found[starts_of(bins[found])])
    return np.unique(np.concatenate(keep))
