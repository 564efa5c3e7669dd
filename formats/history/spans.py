# SPDX-License-Identifier: Apache-2.0
"""Events paired to spans of time, as arrays: transactions, disk requests; and how spans overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.gather import EventTable

Array = NDArray[Any]


class Spans:
    """n spans: a mapping of names to (n,) arrays, times in ns of CLOCK_MONOTONIC."""

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> Array:
        return self._columns[name]

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def take(self, at: Array) -> Spans:
        """The spans at these indices or with this mask."""
        return Spans({name: values[at] for name, values in self._columns.items()})


def match_transactions(starts: EventTable, ends: EventTable) -> tuple[Spans, Spans]:
    """Transactions of terminals, and the times of thought between them.

    A transaction goes from the first START after an END to the next END on the same terminal; more
    STARTs before that END belong to it. It is of the process that wrote the END. None goes from one
    session of the terminal to the next: a START is of the leader of its session.
    Responses have start_ns, response_ns and tgid; thoughts think_ns, and tgid of the transaction
    before.
    """
    terminal = _ids((starts, ends), "device", "tty")
    is_end = np.repeat([False, True], [len(starts), len(ends)])
    times = np.concatenate([starts.times_ns, ends.times_ns])
    order = np.lexsort((is_end, times, terminal))
    terminal, is_end, times = terminal[order], is_end[order], times[order]
    where = order - len(starts)  # of ENDs: their place in `ends`
    leader = np.concatenate([starts["tgid"], np.zeros(len(ends), np.int64)])[order]
    terminal = _sessions(terminal, leader)
    # Of events in a row that are alike, the first counts.
    first = np.ones(len(times), np.bool_)
    first[1:] = (terminal[1:] != terminal[:-1]) | (is_end[1:] != is_end[:-1])
    terminal, is_end, times, where = terminal[first], is_end[first], times[first], where[first]
    follows = np.zeros(len(times), np.bool_)
    follows[1:] = terminal[1:] == terminal[:-1]
    stop = np.flatnonzero(is_end & follows)
    again = np.flatnonzero(~is_end & follows)
    turns = {
        "start_ns": times[stop - 1],
        "response_ns": times[stop] - times[stop - 1],
        "tgid": ends["tgid"][where[stop]],
    }
    thoughts = {
        "think_ns": times[again] - times[again - 1],
        "tgid": ends["tgid"][where[again - 1]],
    }
    return Spans(turns), Spans(thoughts)


def _sessions(terminal: Array, leader: Array) -> Array:
    """A number for each event: equal for those of one session of a terminal. leader: of a START, 0
    where it is not known and at an END. The events are in the order of terminals, then of time."""
    last = np.maximum.accumulate(np.where(leader > 0, np.arange(len(leader)), 0))
    begins = np.zeros(len(terminal), np.bool_)
    begins[1:] = (terminal[1:] != terminal[:-1]) | (
        (leader[1:] > 0) & (leader[last[:-1]] > 0) & (leader[1:] != leader[last[:-1]])
    )
    return np.cumsum(begins)


def match_faults(starts: EventTable, ends: EventTable) -> Spans:
    """Page faults: start_ns, stop_ns, tid, tgid, with_io, cpu_ns (CPU time of the fault itself).

    A START is put out with its END, one directly after the other on the same thread; `since` of the
    END says when it was.
    """
    tid = np.concatenate([starts["tid"], ends["tid"]])
    times = np.concatenate([starts.times_ns, ends.times_ns])
    is_end = np.repeat([False, True], [len(starts), len(ends)])
    order = np.lexsort((is_end, times, tid))
    stop = np.flatnonzero(is_end[order])
    stop = stop[stop > 0]
    start = stop - 1
    paired = ~is_end[order][start] & (tid[order][start] == tid[order][stop])
    first, last = order[start[paired]], order[stop[paired]] - len(starts)
    cpu = ends["cpu_time"][last].astype(np.int64) - starts["cpu_time"][first].astype(np.int64)
    since = ends["since"][last].astype(np.int64)
    return Spans(
        {
            "start_ns": np.where(since > 0, since, starts.times_ns[first]),
            "stop_ns": ends.times_ns[last],
            "cpu_ns": np.maximum(cpu, 0),
            **{name: ends[name][last] for name in ("tid", "tgid", "with_io")},
        }
    )


def is_inside(keys: Array, times_ns: Array, spans: Spans, name: str) -> Array:
    """(n,) whether a time lies in a span with the same key; spans of one key do not overlap."""
    if not len(spans) or not len(keys):
        return np.zeros(len(keys), np.bool_)
    all_keys = np.concatenate([spans[name], keys])
    times = np.concatenate([spans["start_ns"], times_ns])
    is_asked = np.repeat([False, True], [len(spans), len(keys)])
    order = np.lexsort((is_asked, times, all_keys))
    last = np.maximum.accumulate(np.where(is_asked[order], -1, np.arange(len(order))))
    asked = np.flatnonzero(is_asked[order])
    span = order[np.maximum(last[asked], 0)]
    query = order[asked] - len(spans)
    found = np.zeros(len(keys), np.bool_)
    span = np.where(span < len(spans), span, 0)
    found[query] = (
        (last[asked] >= 0)
        & (spans[name][span] == keys[query])
        & (times_ns[query] <= spans["stop_ns"][span])
    )
    return found


def covered_ns(starts_ns: Array, stops_ns: Array, edges_ns: Array) -> Array:
    """(edges - 1,) ns between two edges that at least one span covers; edges ascend."""
    order = np.argsort(starts_ns, kind="stable")
    starts, stops = starts_ns[order], stops_ns[order]
    if len(starts):
        before = np.concatenate(([starts[0]], np.maximum.accumulate(stops)[:-1]))
        starts = np.maximum(starts, before)
    keep = stops > starts
    return total_ns(starts[keep], stops[keep], edges_ns)


def total_ns(starts_ns: Array, stops_ns: Array, edges_ns: Array) -> Array:
    """(edges - 1,) ns of all spans between two edges, overlaps counted as often as they occur."""
    # Of each span, what lies before an edge is min(stop, edge) - min(start, edge).
    zero = edges_ns[0]
    starts, stops, edges = np.sort(starts_ns) - zero, np.sort(stops_ns) - zero, edges_ns - zero
    return np.diff(_sum_below(stops, edges) - _sum_below(starts, edges)).view(np.int64)


def _sum_below(ascending: Array, edges: Array) -> Array:
    """For each edge the sum of min(value, edge) modulo 2^64: differences of sums are exact."""
    sums = np.concatenate(([0], np.cumsum(ascending))).view(np.uint64)
    at = np.searchsorted(ascending, edges)
    return sums[at] + ((len(ascending) - at) * edges).view(np.uint64)


def _ids(tables: Sequence[EventTable], *names: str) -> Array:
    """A number for each event of all tables, one after the other: equal where the columns are."""
    found = np.zeros(sum(map(len, tables)), np.int64)
    for name in names:
        values = np.concatenate([table[name].astype(np.int64) for table in tables])
        different, at = np.unique(values, return_inverse=True)
        found = found * max(len(different), 1) + at
    return found
