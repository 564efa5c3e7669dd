# SPDX-License-Identifier: Apache-2.0
"""The points of some connections' graphs, thinned to what pixels show; broken where records are
missing.

A value is a whole number, or NONE. A break is a row without values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis import why
from tcpkmon.formats.base.thinning import bins_of, thin
from tcpkmon.formats.report.rates import Rates
from tcpkmon.formats.timeline import INSTANTS

Array = NDArray[Any]
NONE = -(1 << 31)
_LARGEST = (1 << 31) - 1
VALUES = (
    ("cwnd", "segments"), ("ssthresh", "segments"), ("in flight", "segments"),
    ("peer's window", "bytes"), ("send buffer", "bytes"), ("receive buffer", "bytes"),
    ("srtt", "us"), ("min rtt", "us"),
)  # fmt: skip
_BINS = 2000


class Course:
    """The rows of one connection between two times, at most so many."""

    def __init__(self, piece: why.Snapshots, begin_ns: int, end_ns: int, most: int) -> None:
        self._begin, self._span = begin_ns, max(end_ns - begin_ns, 1)
        times, lost = piece.times_ns, piece.lost
        at = np.flatnonzero(np.diff(lost, prepend=lost[:1]) > 0)
        before = times[at - 1]
        self.records = len(times)
        self.rates = Rates(begin_ns, end_ns)
        self.rates.add(piece, before, times[at])
        self.marks: list[tuple[Array, Array, Array]] = []
        for number in INSTANTS:
            rows = np.flatnonzero(piece["location"] == number)
            if len(rows):
                told = piece["callvalue"][rows].astype(np.int64)
                self.marks.append((np.full(len(rows), number), times[rows], told))
        self.times = np.insert(times, at, np.minimum(before + 1, times[at]))
        self.values = np.insert(np.stack(list(_values_of(piece))), at, NONE, axis=1)
        bins = _BINS
        while len(self.times) > most and bins > 8:
            self._thin(bins)
            bins = bins * 4 // 5

    def _thin(self, bins: int) -> None:
        place = bins_of(self.times, self._begin, self._begin + self._span, bins)
        kept = thin(np.maximum.accumulate(place), self.values, self.values == NONE)
        self.times, self.values = self.times[kept], self.values[:, kept]


def _values_of(piece: why.Snapshots) -> Iterator[Array]:
    columns = piece.columns
    for name in ("snd_cwnd_segs", "snd_ssthresh"):
        yield _whole(columns[name], columns[name] >= _LARGEST)
    yield _whole(np.maximum(why.in_flight(columns), 0))
    for name in ("snd_wnd", "snd_sb_cc", "rcv_sb_cc"):
        yield _whole(columns[name])
    yield _whole(columns["srtt_us"], columns["srtt_us"] == 0)
    yield _whole(columns["min_rtt_us"], columns["min_rtt_us"] >= _LARGEST)


def _whole(values: Array, none: Array | None = None) -> Array:
    found = np.minimum(values, _LARGEST).astype(np.int32)
    if none is not None:
        found[none] = NONE
    return found


def read_courses(
    source: why.Source, spans: dict[int, tuple[int, int]], most: int
) -> tuple[dict[int, Course], why.Losses]:
    """One pass over the capture. spans: first and last time of the connections that are wanted."""
    found: dict[int, Course] = {}
    losses = why.Losses.join([])
    for block in source.blocks(ids=np.array([*spans], np.uint64)):
        losses = block.losses
        for low, high in zip(block.groups.tolist(), (block.lasts + 1).tolist(), strict=True):
            conn, mine = int(block["conn_id"][low]), slice(low, high)
            columns = {name: values[mine] for name, values in block.rows.items()}
            piece = why.Snapshots(columns, block.times_ns[mine], block.lost[mine])
            found[conn] = Course(piece, *spans[conn], most)
    return {conn: found[conn] for conn in spans if conn in found}, losses


def merge(lost: why.Losses, most: int) -> why.Losses:
    """At most so many spans: those nearest to each other become one."""
    if len(lost.begin_ns) <= 1:
        return lost
    order = np.argsort(lost.begin_ns, kind="stable")
    begin, missing = lost.begin_ns[order], lost.missing[order]
    end = np.maximum.accumulate(lost.end_ns[order])
    between = begin[1:] - end[:-1]
    limit = 0 if len(between) < most else max(int(np.sort(between)[-most]), 0)
    at = np.flatnonzero(np.r_[True, between > limit])
    return why.Losses(begin[at], np.maximum.reduceat(end, at), np.add.reduceat(missing, at))
