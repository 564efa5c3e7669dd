# SPDX-License-Identifier: Apache-2.0
"""Courses over time: goodput and round-trip time of the connections that count.

Over the time of the capture, of all of them together; and over their age, of the mean of those
that are as old, as far as half of them get older.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.diff.sides import Run
from tcpkmon.formats.analysis.why.assemble import Table
from tcpkmon.formats.analysis.why.intervals import Steps, cut
from tcpkmon.formats.analysis.why.snapshots import Source

Floats = NDArray[np.float64]
Array = NDArray[np.int64]
_FIRST_BIN_NS = 20_000_000
_MOST_BINS = 100


@dataclass(frozen=True)
class Course:
    """bin_ns: length of a bin. goodput: (n,) bytes/s. srtt_us: (n,), NaN without a record."""

    bin_ns: int
    goodput: Floats
    srtt_us: Floats

    @property
    def times_s(self) -> Floats:
        """(n,) the middles of the bins."""
        return np.asarray((np.arange(len(self.goodput)) + 0.5) * self.bin_ns / 1e9, np.float64)


class _Sums:
    def __init__(self, longest_ns: int) -> None:
        self.bin_ns = _FIRST_BIN_NS
        while longest_ns // self.bin_ns >= _MOST_BINS:
            self.bin_ns *= 2
        self.count = longest_ns // self.bin_ns + 1
        self.bytes: Floats = np.zeros(self.count)
        self.times: Floats = np.zeros(self.count)
        self.records: Floats = np.zeros(self.count)

    def add(self, since_ns: Array, moved: Array, srtt_us: Floats) -> None:
        """Steps, (n,) each. srtt_us: 0 where it is not known."""
        places = np.clip(since_ns // self.bin_ns, 0, self.count - 1)
        self.bytes += np.bincount(places, moved, self.count)
        self.times += np.bincount(places, srtt_us, self.count)
        self.records += np.bincount(places, srtt_us > 0, self.count)

    def course(self, connections: Floats) -> Course:
        """connections: (m,) how many there are in each bin; bins behind that are left out."""
        some = slice(len(connections))
        with np.errstate(all="ignore"):
            srtt = np.where(self.records > 0, self.times / self.records, np.nan)
            goodput = self.bytes[some] * 1e9 / self.bin_ns / connections
        return Course(self.bin_ns, goodput, srtt[some])


def courses_of(run: Run) -> tuple[Course, Course] | None:
    """Over the capture, since its first connection began, and over age; None without any."""
    table = run.connections
    if table is None or not len(table["conn_id"]):
        return None
    order = np.argsort(table["conn_id"], kind="stable")
    ids, starts = table["conn_id"][order].astype(np.uint64), table["start_ns"][order]
    sends = (table["bytes_acked"] >= table["bytes_received"])[order]
    begin, ages = int(starts.min()), table["end_ns"] - table["start_ns"]
    by_time, by_age = _Sums(int(table["end_ns"].max()) - begin), _Sums(int(ages.max()))
    with Source(run.path) as source:
        for block in source.blocks():
            _, steps = cut(block)
            rows, of = _find(block["conn_id"].astype(np.uint64), ids)
            moved = _moved(steps, rows, sends[of])
            srtt = np.where(sends[of], block["srtt_us"][rows], 0).astype(np.float64)
            ends = steps.end_ns[rows]
            by_time.add(ends - begin, moved, srtt)
            by_age.add(ends - starts[of], moved, srtt)
    return by_time.course(np.ones(by_time.count)), by_age.course(_as_old(table, by_age))


def _find(mine: NDArray[np.uint64], ids: NDArray[np.uint64]) -> tuple[Array, Array]:
    """The rows of connections that count, and the place of each one's in ids."""
    places = np.minimum(np.searchsorted(ids, mine), len(ids) - 1)
    rows = np.flatnonzero(ids[places] == mine)
    return rows, places[rows]


def _moved(steps: Steps, rows: Array, sends: NDArray[np.bool_]) -> Array:
    return np.where(sends, steps.acked[rows], steps.received[rows])


def _as_old(table: Table, sums: _Sums) -> Floats:
    """(m,) how many connections reached each bin of age, as far as half of them outlast it."""
    places = (table["end_ns"] - table["start_ns"]) // sums.bin_ns
    ended = np.bincount(places.astype(np.int64), minlength=sums.count)
    left = np.cumsum(ended[::-1])[::-1]
    outlast = max(1, int((left[1:] >= left[0] / 2).sum()))
    return np.asarray(left[:outlast], np.float64)
