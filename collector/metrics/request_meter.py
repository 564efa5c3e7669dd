# SPDX-License-Identifier: Apache-2.0
"""Histograms of requests, for captures that record the application's calls (collect --requests)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.metrics.histogram import Histogram
from tcpkmon.collector.metrics.tcp_meter import MOST
from tcpkmon.formats.analysis.exchanges import NEEDED, NULL, OPTIONAL, Exchanges
from tcpkmon.formats.analysis.why import Snapshots
from tcpkmon.formats.base.tcp import State

_SIDES = ("client", "server")
_ROWS = 4096
_LATEST_S = 0.05
"""Cutting costs a millisecond a time and more, so many records are cut together."""


class RequestMeter:
    """Counts exchanges that are over: when the next one of their connection begins, or it ends.

    at_entry: calls are recorded as they begin. Exchanges with a missing record are not counted.
    """

    def __init__(self, at_entry: bool = False) -> None:
        self._think = {side: Histogram(4, 28) for side in _SIDES}
        self._duration = {side: Histogram(4, 28) for side in _SIDES}
        self._at_entry = at_entry
        self._cutter = Exchanges(has_calls=True, at_entry=at_entry)
        self._waiting: list[Snapshots] = []
        self._rows = 0
        self._cut_s = self._took_s = 0.0

    def add(
        self, entries: NDArray[Any], times_ns: NDArray[np.int64], lost: NDArray[np.int64]
    ) -> None:
        """Count snapshots, (n,) rows in order. times_ns: their CLOCK_MONOTONIC; lost: (n,) how many
        records of the capture are missing up to each."""
        known = np.flatnonzero((entries["conn_id"] != 0) & (entries["state"] != State.LISTEN))
        names = entries.dtype.names or ()
        # Column by column: rows of many fields are ten times as slow to choose.
        columns = {
            name: np.ascontiguousarray(entries[name][known], entries.dtype[name].newbyteorder("="))
            for name in (*NEEDED, *OPTIONAL) if name in names
        }  # fmt: skip
        self._waiting.append(Snapshots(columns, times_ns[known], lost[known]))
        self._rows += len(known)
        begun_s = time.monotonic()
        # It looks at all open connections, so with many of them more records are cut together.
        if self._rows >= max(_ROWS, len(self._cutter.streams.places) // 2) or (
            begun_s > self._cut_s + max(_LATEST_S, 20 * self._took_s)
        ):
            self._cut()
            self._cut_s = time.monotonic()
            self._took_s = self._cut_s - begun_s

    def _cut(self) -> None:
        """Count the exchanges that are over by the records that wait."""
        if len(self._cutter.streams.places) > MOST:
            servers = self._cutter.streams.servers
            self._cutter = Exchanges(has_calls=True, at_entry=self._at_entry)
            self._cutter.streams.servers |= servers
        waiting, self._waiting, self._rows = self._waiting, [], 0
        if not waiting:
            return
        rows = self._cutter.add(waiting[0] if len(waiting) == 1 else _join(waiting))
        good = rows[(rows["think_ns"] != NULL) & rows["certain"]]
        for side in _SIDES:
            mine = good[good["is_client"] == (side == "client")]
            self._think[side].add(mine["think_ns"] // 1000)
            self._duration[side].add(mine["total_ns"] // 1000)

    def told(self) -> dict[str, Any]:
        """The counts for JSON."""
        self._cut()
        return {
            "think": {side: one.told() for side, one in self._think.items()},
            "duration": {side: one.told() for side, one in self._duration.items()},
        }


def _join(parts: list[Snapshots]) -> Snapshots:
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0].columns}
    return Snapshots(columns, np.concatenate([part.times_ns for part in parts]),
                     np.concatenate([part.lost for part in parts]))  # fmt: skip
