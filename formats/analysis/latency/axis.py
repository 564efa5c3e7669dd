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


class Flows:
    """What is remembered of each of n flows between pieces. All arrays are (n,).

    last: the unwrapped sequence number of the last event. done: all bytes before it were put out;
    both are -1 at first. first_write, first_arrival: the first byte of which a SOCK_SEND, or an
    arrival, is known.
    """

    def __init__(self, count: int) -> None:
        self.last = np.full(count, -1, np.int64)
        self.done = np.full(count, -1, np.int64)
        self.first_write = np.full(count, np.iinfo(np.int64).max)
        self.first_arrival = np.full(count, np.iinfo(np.int64).max)


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


def lay_out(given: Events, flows: Flows) -> Axis:
    """Sort events by flow and time, unwrap their numbers, and lay the flows out on an axis."""
    count = len(given)
    bits = max(count - 1, 1).bit_length()
    keys = np.sort((given.flow.astype(np.int64) << bits) | np.arange(count))
    rank = keys & ((1 << bits) - 1)
    events = given.take(rank)
    starts = np.flatnonzero(np.diff(events.flow, prepend=-1))
    local = np.repeat(np.arange(len(starts)), np.diff(starts, append=count))
    present = events.flow[starts].astype(np.int64)
    _unwrap(events, starts, local, flows)
    done = flows.done[present]
    low = np.minimum.reduceat(events.lo, starts)
    low = np.where(done >= 0, np.minimum(low, done), low)
    high = np.maximum(np.maximum.reduceat(events.hi, starts), done)
    ends = np.cumsum(high - low + 1)
    base = ends - (high - low + 1) - low
    is_range = _IS_RANGE[events.stage]
    counts = is_range | (events.stage == Stage.ANCHOR)
    floor = _reduce(np.minimum, events.lo, counts, starts, high)
    ceil = _reduce(np.maximum, events.hi, is_range, starts, low)
    floor = np.where(done >= 0, done, floor)
    return Axis(events, rank, local, present, base, floor + base, np.maximum(ceil, floor) + base)


def _reduce(
    function: np.ufunc, values: Array, chosen: NDArray[np.bool_], starts: Array, default: Array
) -> Array:
    """The least or greatest of the chosen values of each flow; `default` where none is chosen."""
    local = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    return function.reduceat(np.where(chosen, values, default[local]), starts)


def _unwrap(events: Events, starts: Array, local: Array, flows: Flows) -> None:
    """Make sequence numbers of 32 bits to ones of 64, which agree with those of earlier pieces."""
    if not len(events):
        return
    low = events.lo & (_WHOLE - 1)
    steps = np.diff(unwrap(low, firsts=starts), prepend=0)
    steps[np.abs(steps) > _AMBIGUOUS] += _BREAK
    old = ~events.is_new
    both = np.flatnonzero(old[1:] & old[:-1]) + 1
    steps[both] = events.lo[both] - events.lo[both - 1]
    steps[starts] = 0
    chain = np.cumsum(steps)
    chain -= chain[starts][local]
    last = flows.last[events.flow[starts]]
    first = low[starts]
    near = unwrap(first, last, np.arange(len(first)))
    begin = np.where(last >= 0, near, first + _WHOLE)
    if old.any():
        known, at = np.unique(local[old], return_index=True)
        places = np.flatnonzero(old)[at]
        begin[known] = events.lo[places] - chain[places]
    unwrapped = np.where(old, events.lo, chain + begin[local])
    events.hi = unwrapped + (events.hi - events.lo)
    events.lo = unwrapped
    events.is_new = np.zeros(len(low), np.bool_)
    flows.last[events.flow[starts]] = unwrapped[np.append(starts[1:], len(low)) - 1]
