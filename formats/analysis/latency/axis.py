# SPDX-License-Identifier: Apache-2.0
"""One axis for the bytes of all flows, so that a join of many connections is one of sorted arrays.

flow                 0               1            2
sequence numbers   | 4294967000 ...|  17 ...    | ...       unwrapped: 64 bits
place on the axis  0               n0           n0 + n1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.latency.records import Events
from tcpkmon.formats.analysis.latency.stages import RANGES, Stage
from tcpkmon.formats.base.sequence import unwrap

_WHOLE = 1 << 32
_AMBIGUOUS = 1 << 30
"""No window is larger: a larger step between neighbours means that bytes were not seen at all."""
_BREAK = 1 << 33
_IS_RANGE = np.isin(np.arange(len(Stage)), RANGES)

Array = NDArray[np.int64]


@dataclass
class Axis:
    """Events by flow and time on one axis, and the flows in it. n events, k flows.

    events: as given, with unwrapped numbers. rank: (n,) the places of the events among those
    given, which are in time order. local: (n,) the flow of each as an index of `flows`. flows: (k,)
    ascending. base: (k,) what to add to an unwrapped number for its place on the axis. floor, ceil:
    (k,) the places where the bytes of interest begin and end.
    """

    events: Events
    rank: Array
    local: Array
    flows: Array
    base: Array
    floor: Array
    ceil: Array

    def place(self, numbers: Array) -> Array:
        """(n,) unwrapped sequence numbers of the events as places on the axis."""
        return numbers + self.base[self.local]


def lay_out(given: Events) -> Axis:
    """Sort events by flow and time, unwrap their numbers, and lay the flows out on an axis."""
    count = len(given)
    bits = max(count - 1, 1).bit_length()
    keys = np.sort((given.flow.astype(np.int64) << bits) | np.arange(count))
    rank = keys & ((1 << bits) - 1)
    events = given.take(rank)
    starts = np.flatnonzero(np.diff(events.flow, prepend=-1))
    local = np.repeat(np.arange(len(starts)), np.diff(starts, append=count))
    present = events.flow[starts].astype(np.int64)
    _unwrap(events, starts, local)
    low = np.minimum.reduceat(events.lo, starts)
    high = np.maximum.reduceat(events.hi, starts)
    ends = np.cumsum(high - low + 1)
    base = ends - (high - low + 1) - low
    is_range = _IS_RANGE[events.stage]
    counts = is_range | (events.stage == Stage.ANCHOR)
    floor = _reduce(np.minimum, events.lo, counts, starts, high)
    ceil = _reduce(np.maximum, events.hi, is_range, starts, low)
    return Axis(events, rank, local, present, base, floor + base, np.maximum(ceil, floor) + base)


def _reduce(
    function: np.ufunc, values: Array, chosen: NDArray[np.bool_], starts: Array, default: Array
) -> Array:
    """The least or greatest of the chosen values of each flow; `default` where none is chosen."""
    local = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    return function.reduceat(np.where(chosen, values, default[local]), starts)


def _unwrap(events: Events, starts: Array, local: Array) -> None:
    """Make sequence numbers of 32 bits to ones of 64."""
    steps = np.diff(unwrap(events.lo, firsts=starts), prepend=0)
    steps[np.abs(steps) > _AMBIGUOUS] += _BREAK
    steps[starts] = 0
    chain = np.cumsum(steps)
    begin = events.lo[starts] + _WHOLE - chain[starts]
    unwrapped = chain + begin[local]
    events.hi = unwrapped + (events.hi - events.lo)
    events.lo = unwrapped
