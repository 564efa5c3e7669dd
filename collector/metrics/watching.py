# SPDX-License-Identifier: Apache-2.0
"""Counts a capture's records for those who ask: nothing before the first asks, unless told to.

It looks at the records that go into the file, after they were put in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.metrics import shown
from tcpkmon.collector.metrics.connections import LIMITED, Connections
from tcpkmon.collector.metrics.owners import Find, unknown
from tcpkmon.collector.metrics.tcp_meter import TcpMeter
from tcpkmon.collector.plan.columns import Layout, locations_of
from tcpkmon.formats.base.control import EXISTING, FIRST_CONTROL, Loss, words_view
from tcpkmon.formats.base.errors import TcpkmonError

MOST_ROWS = 1000
CALLS = ("SEND_CALL", "RECEIVE_CALL")
_COUNT_WORD = 2
"""Of the count in the words of a LOSS entry."""
_TIME = np.dtype("=i8")
_TIME_OFFSET = 4
"""Of the time in a record of a ring."""
__all__ = ["MOST_ROWS", "Connections", "Watching", "watch"]


def watch(
    layout: Layout | None,
    at_once: bool,
    show: Callable[[NDArray[Any]], None] | None = None,
    raw: bool = False,
    ways: Mapping[str, object] | None = None,
    find: Find = unknown,
    most: int | None = None,
) -> Watching:
    """Of a capture with this layout of the schema tcp; None: it has none, or not in one order.

    raw: it gets rows as in the rings. ways: how each location is attached, by name. find: the
    control group of an id. most: how many connections are remembered, if not as many as usual.
    """
    if layout is None:
        return Watching(None, {}, show=show)
    dtype = _raw(layout.dtype) if raw else layout.dtype
    return Watching(dtype, locations_of(layout.schema), at_once, show, ways, find, most)


class Watching:
    """One capture's counts. dtype: of an entry; None for a capture without the schema tcp.

    locations: the schema's numbers by name. at_once: count from the start. show: called with the
    entries too. ways: how each location is attached; None: at a call's end, where it is recorded.
    """

    def __init__(
        self,
        dtype: np.dtype[Any] | None,
        locations: Mapping[str, int],
        at_once: bool = False,
        show: Callable[[NDArray[Any]], None] | None = None,
        ways: Mapping[str, object] | None = None,
        find: Find = unknown,
        most: int | None = None,
    ) -> None:
        self._find = find
        self._dtype, self._most = dtype, most
        names = set((dtype.names or ()) if dtype is not None else ())
        self._has_connections = {"conn_id", "state"} <= names
        self._locations = locations
        self._show = show
        self._ways = dict.fromkeys(CALLS, "") if ways is None else ways
        self._lost = 0
        """Records of the capture that are missing."""
        self._meter: TcpMeter | None = None
        self._table: Connections | None = None
        self._requests: Any = None
        self._spent_ns = 0
        self._error = ""
        if at_once:
            self._begin()

    def add(self, entries: NDArray[Any], lost: NDArray[np.int64] | None = None) -> None:
        """Count entries, (n,) contiguous rows in order; opaque rows of a ring, whose first bytes
        are those of an entry, too. An error ends the counting alone.

        lost: (n,) how many records are missing before each; None: LOSS entries among them tell.
        """
        if self._show is not None:
            self._show(entries)
        if self._meter is None:
            return
        before_ns = time.perf_counter_ns()
        try:
            self._add(entries, self._meter, lost)
        except (
            ValueError, TypeError, KeyError, IndexError, OverflowError, ImportError,
        ) as error:  # fmt: skip
            self._error = repr(error)
            self._meter = self._table = self._requests = None
        self._spent_ns += time.perf_counter_ns() - before_ns

    def metrics(self) -> dict[str, Any]:
        """The counts of TCP, from now on if nobody asked before; none without the schema tcp."""
        if self._dtype is None:
            return {}
        self._begin()
        told = {} if self._meter is None else self._meter.told()
        if self._requests is not None:
            told["requests"] = self._requests.told()
        if self._table is not None:
            sums = self._table.sums
            told["bytes"] = {"sent": sums.get("acked", 0), "received": sums.get("received", 0)}
            stored = LIMITED if LIMITED.keys() <= sums.keys() else ()  # busy alone says little
            told["limited"] = {name: sums[name] / 1e6 for name in stored}
            told["connections"] = len(self._table)
            if (owners := self._table.owners) is not None:
                told["owners"] = owners.told(self._table.values("cgroup", self._table.slots()))
        return {**told, "counting_s": self._spent_ns / 1e9, "error": self._error}

    def top(self, sort: str, most: int, by: str = "", wanted: str = "") -> dict[str, Any]:
        """The first connections, or groups of them, among those with a record since somebody first
        asked and with the text `wanted`. Those that ended since the last question are there too.

        sort: of SORTS, with `by` of GROUP_SORTS. TcpkmonError without tcp, or what groups need.
        """
        if not self._has_connections:
            raise TcpkmonError(
                "the capture does not tell connections apart",
                "collect the schema tcp into a PSC file, with the columns conn_id and state",
            )
        self._begin()
        if self._table is None:
            raise TcpkmonError(f"counting failed: {self._error}", "report it")
        self._table.rate(time.monotonic())
        totals, rows, is_open = self._table.shown()
        if wanted:
            chosen = np.flatnonzero(shown.wanted(rows, wanted, self._find))
            totals, rows, is_open = totals.of(chosen), rows.of(chosen), is_open[chosen]
        found = {
            "connections": int(is_open.sum()),
            "opened_rate": float(totals["opened_rate"].sum()),
            "closed_rate": float(totals["closed_rate"].sum()),
            "by": by,
            "groups": shown.groupings(rows),
        }
        if by:
            of_them = shown.groups(totals, rows, is_open, by, sort, most, self._find)
            return {**found, "rows": of_them}
        return {**found, "rows": shown.first(totals, rows, sort, most, self._find)}

    def table(self) -> Connections:
        """The connections that are counted. TcpkmonError where there are none."""
        if self._table is None:
            raise TcpkmonError(f"there are no last records: {self._error or 'not counted'}")
        return self._table

    def _begin(self) -> None:
        if self._meter is None and self._dtype is not None and not self._error:
            most = {} if self._most is None else {"most": self._most}
            self._meter = TcpMeter(self._locations, **most)
            if self._has_connections:
                now_s = time.monotonic()
                self._table = Connections(
                    self._dtype, self._locations, now_s, self._find, **most
                )

    def _add(
        self, entries: NDArray[Any], meter: TcpMeter, lost: NDArray[np.int64] | None
    ) -> None:
        if entries.dtype.names is None:
            entries = _fit(entries, self._dtype)
        locations = entries["location"]
        missing = self._lost + np.cumsum(_losses(entries) if lost is None else lost)
        self._lost = int(missing[-1]) if len(missing) else self._lost
        ours = (locations < FIRST_CONTROL) | (locations == EXISTING)
        if not ours.all():
            entries, missing = entries[ours], missing[ours]
        if len(entries):
            meter.add(entries, _times_ns(entries))
            if self._table is not None:
                self._table.add(entries)
            self._add_requests(entries, missing)

    def _add_requests(self, entries: NDArray[Any], lost: NDArray[np.int64]) -> None:
        """Of a capture that records calls; imported only then."""
        if self._requests is None:
            if not np.isin([self._locations[one] for one in CALLS], entries["location"]).any():
                return
            from tcpkmon.collector.metrics.request_meter import RequestMeter
            from tcpkmon.formats.analysis.exchanges import NEEDED, calls_of

            has_calls, at_entry = calls_of(self._ways)
            if not has_calls or not {*NEEDED} <= {*(entries.dtype.names or ())}:
                return
            self._requests = RequestMeter(at_entry)
        self._requests.add(entries, _times_ns(entries), lost)


def _losses(entries: NDArray[Any]) -> NDArray[np.int64]:
    """(n,) how many records are missing before each, by the LOSS entries of a PSC stream."""
    found = np.zeros(len(entries), np.int64)
    at = np.flatnonzero(entries["location"] == Loss.location)
    if len(at):
        words = words_view(np.ascontiguousarray(entries[at])).astype(np.int64)
        found[at] = words[:, _COUNT_WORD] | words[:, _COUNT_WORD + 1] << 32
    return found


def _raw(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """An entry in a ring: there the time in ns is where a file has the time of day."""
    assert dtype.names is not None and dtype.fields is not None
    offsets = {name: dtype.fields[name][1] for name in dtype.names} | {"time_ns": _TIME_OFFSET}
    formats = {name: dtype[name] for name in dtype.names} | {"time_ns": np.dtype("=u8")}
    return np.dtype(
        {
            "names": list(offsets),
            "formats": [formats[name] for name in offsets],
            "offsets": list(offsets.values()),
            "itemsize": dtype.itemsize,
        }
    )


def _fit(rows: NDArray[Any], dtype: np.dtype[Any] | None) -> NDArray[Any]:
    """The first bytes of each row, as entries."""
    assert dtype is not None
    table = rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    return np.ascontiguousarray(table[:, : dtype.itemsize]).view(dtype)[:, 0]


def _times_ns(entries: NDArray[Any]) -> NDArray[np.int64]:
    """When the records were made; by the time of day where the column time_ns is not stored."""
    if "time_ns" in (entries.dtype.names or ()):
        times_ns: NDArray[np.int64] = entries["time_ns"].astype(np.int64)
        return times_ns
    seconds = entries["tv_sec"].astype(np.int64)
    return seconds * 1_000_000_000 + entries["tv_usec"].astype(np.int64) * 1000
