# SPDX-License-Identifier: Apache-2.0
"""Percentiles of the values of each connection, and of its rates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.why.intervals import Steps

BIN_NS = 100_000_000
"""Rates are those of such times, which begin with the connection."""


def percentiles(
    of: Array, values: Array, count: int, shares: Sequence[int], zeros: Array | None = None
) -> list[NDArray[np.float64]]:
    """(count,) each: the value of each connection that so many of its values [%] do not exceed; NaN
    without values.

    of: (n,) the connection of each value, below count. values: (n,) of at least 0. zeros: (count,)
    how many more values were 0.
    """
    bits = 63 - max(count - 1, 0).bit_length()
    keys = of.astype(np.int64) << bits | np.minimum(values, (1 << bits) - 1).astype(np.int64)
    keys.sort()
    counts = np.bincount(of, minlength=count)
    starts = np.cumsum(counts) - counts
    none = np.zeros(count, np.int64) if zeros is None else zeros
    totals = counts + none
    found = []
    for share in shares:
        at = np.maximum(-(-share * totals // 100), 1) - 1 - none
        place = np.clip(starts + at, 0, max(len(keys) - 1, 0))
        those = keys[place] & ((1 << bits) - 1) if len(keys) else np.zeros(count, np.int64)
        found.append(np.where(totals > 0, np.where(at >= 0, those, 0), np.nan))
    return found


def rates(block: Block, moved: Array, steps: Steps) -> dict[str, Array]:
    """The columns goodput_p50, p99 and max: bytes a second in each BIN_NS of each connection, of
    both directions the larger. NaN of a connection without a whole one.

    moved: the rows of steps with bytes.
    """
    count = len(block.groups)
    start = block.times_ns[block.groups]
    bins = (block.times_ns[block.lasts] - start) // BIN_NS
    place = block.of_row[moved]
    number = (steps.end_ns[moved] - start[place]) // BIN_NS
    begins = np.append(True, (place[1:] != place[:-1]) | (number[1:] != number[:-1]))[: len(moved)]
    firsts = np.flatnonzero(begins)
    place, number = place[firsts], number[firsts]
    most = np.zeros(0, np.int64)
    if len(firsts):
        most = np.maximum(*(np.add.reduceat(one[moved], firsts)
                            for one in (steps.acked, steps.received)))  # fmt: skip
    # A last one that is not whole does not count.
    whole = (number < bins[place]) & (most > 0)
    place, rate = place[whole], most[whole] * (10**9 // BIN_NS)
    zeros = np.maximum(bins - np.bincount(place, minlength=count), 0)
    half, p99 = percentiles(place, rate, count, (50, 99), zeros)
    largest = np.zeros(count, np.int64)
    np.maximum.at(largest, place, rate)
    found = {"goodput_p50": half, "goodput_p99": p99, "goodput_max": largest.astype(np.float64)}
    return {name: np.where(bins <= 0, np.nan, values) for name, values in found.items()}
