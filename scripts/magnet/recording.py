# SPDX-License-Identifier: Apache-2.0
"""A capture of the schema magnet as arrays, and the bytes that its records tell of."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.analysis.latency import Latency, Summary, find_flows, make_report

SENT = ("SOCK_SEND", "TCP_SEND", "IP_SEND", "DEV_SEND")
RECEIVED = ("DEV_RECV", "IP_RECV", "TCP_RECV", "SOCK_RECV")
HEADERS = 20 + 32
"""Bytes of a packet before its data: IPv4, and TCP with timestamps."""
Columns = dict[str, NDArray[Any]]


@dataclass
class Recording:
    """Records by event, in the order of time: columns of (n,), with `time_ns`."""

    events: dict[str, Columns] = field(default_factory=dict)
    lost: int = 0
    longest_ms: dict[str, float] = field(default_factory=dict)
    """By part of `tcpkmon latency`: the longest time of any byte."""
    mean_ms: dict[str, float] = field(default_factory=dict)
    """Of the flow with most bytes: the mean of each part."""

    def read(self, folder: Path) -> None:
        """Adds the logs in that folder."""
        parts: dict[str, list[Columns]] = defaultdict(list)
        with open_log(folder) as log:
            for batch in log.batches():
                for event in batch.events():
                    at = batch.where(event)
                    rows = batch.rows(event, at)
                    columns: Columns = {one.name: rows[one.name] for one in event.fields}
                    parts[event.name].append({**columns, "time_ns": batch.times_ns[at]})
            self.lost = log.lost
        for name, found in parts.items():
            self.events[name] = {
                column: np.concatenate([one[column] for one in found]) for column in found[0]
            }

    def measure(self, folder: Path) -> None:
        """The parts of the logs in that folder."""
        with open_log(folder) as log:
            latency = Latency(log)
            summary = Summary(find_flows(latency.survey, []), latency.survey.begin_ns)
            for some in latency:
                summary.add(some)
            flows = make_report(latency, summary).flows
            for part, spread in flows[0].once.items() if flows else ():
                self.mean_ms[part] = spread.mean_ns / 1e6
            for flow in flows:
                for part, spread in (*flow.once.items(), *flow.again.items()):
                    known = self.longest_ms.get(part, 0.0)
                    self.longest_ms[part] = max(known, spread.most_ns / 1e6)

    def of(self, event: str, connection: int | None = None) -> Columns:
        """The records of an event, of all connections or of one."""
        columns = self.events.get(event)
        if columns is None:
            return defaultdict(lambda: np.zeros(0, np.int64))
        if connection is None:
            return columns
        mine = columns["connection"] == connection
        return {name: column[mine] for name, column in columns.items()}

    def busiest(self, event: str) -> int:
        """The id of the connection for which this event moved most bytes; 0 if there is none."""
        columns = self.of(event)
        ids, at = np.unique(columns["connection"], return_inverse=True)
        moved = np.bincount(at, np.maximum(columns["size"], 0)) if len(ids) else np.zeros(0)
        return int(ids[moved.argmax()]) if len(ids) else 0


def first_times(
    columns: Columns, seqs: NDArray[np.int64], stamp: str = "time_ns"
) -> NDArray[np.float64]:
    """When these bytes first were in a record's range [ns], (n,); inf: in none.

    seqs: their sequence numbers. stamp: the column that has the time.
    """
    low, high = (columns[name].astype(np.int64) for name in ("seq_lo", "seq_hi"))
    inside = ((seqs[:, None] - low) & 0xFFFFFFFF) < ((high - low) & 0xFFFFFFFF)
    times = np.where(inside, columns[stamp].astype(np.float64), np.inf)
    found: NDArray[np.float64] = times.min(axis=1, initial=np.inf)
    return found


def covered(columns: Columns, first: int) -> int:
    """Different bytes in the ranges of these records; first: sequence number of the first byte."""
    low, high = (
        (columns[name].astype(np.int64) - first) & 0xFFFFFFFF for name in ("seq_lo", "seq_hi")
    )
    order = np.argsort(low, kind="stable")
    low, high = low[order], high[order]
    begin = np.maximum(low, np.concatenate([[0], np.maximum.accumulate(high)[:-1]]))
    return int(np.maximum(high - begin, 0).sum())
