# SPDX-License-Identifier: Apache-2.0
"""The points of some connections' graphs, thinned to what pixels show; broken where records are
missing.

A value is a whole number, or NONE. A break is a row without values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
_PENDING = 1 << 16


@dataclass
class Lost:
    """Times in ns, CLOCK_MONOTONIC, between which records of the capture are missing."""

    begin: Array
    end: Array
    missing: Array


class Course:
    """The rows of one connection between two times."""

    def __init__(self, begin_ns: int, end_ns: int) -> None:
        self._begin, self._span = begin_ns, max(end_ns - begin_ns, 1)
        self.times: Array = np.empty(0, np.int64)
        self.values: Array = np.empty((len(VALUES), 0), np.int32)
        self._pieces: list[tuple[Array, Array]] = []
        self._pending = 0
        self.records = 0
        self.marks: list[tuple[Array, Array, Array]] = []
        self.rates = Rates(begin_ns, end_ns)
        self._last: tuple[int, int] | None = None

    def add(self, piece: why.Snapshots) -> None:
        """The connection's next snapshots."""
        times, lost = piece.times_ns, piece.lost
        values = np.stack(list(_values_of(piece)))
        last_ns, last_lost = self._last or (int(times[0]), int(lost[0]))
        at = np.flatnonzero(np.diff(lost, prepend=last_lost) > 0)
        before = np.concatenate([[last_ns], times[:-1]])[at]
        self._last = int(times[-1]), int(lost[-1])
        self.records += len(times)
        self.rates.add(piece, before, times[at])
        for number in INSTANTS:
            rows = np.flatnonzero(piece["location"] == number)
            if len(rows):
                told = piece["callvalue"][rows].astype(np.int64)
                self.marks.append((np.full(len(rows), number), times[rows], told))
        self._pieces.append((np.insert(times, at, np.minimum(before + 1, times[at])),
                             np.insert(values, at, NONE, axis=1)))  # fmt: skip
        self._pending += len(times) + len(at)
        if self._pending > _PENDING:
            self._thin(_BINS)

    def finish(self, most: int) -> None:
        """Leave at most so many rows."""
        bins = _BINS
        if self._pending + len(self.times) > most:
            self._thin(bins)
        else:
            self._join()
        while len(self.times) > most and bins > 8:
            bins = bins * 4 // 5
            self._thin(bins)

    def _join(self) -> None:
        self.times = np.concatenate([self.times, *(one[0] for one in self._pieces)])
        self.values = np.concatenate([self.values, *(one[1] for one in self._pieces)], axis=1)
        self._pieces, self._pending = [], 0

    def _thin(self, bins: int) -> None:
        self._join()
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
) -> tuple[dict[int, Course], Lost]:
    """One pass over the capture. spans: first and last time of the connections that are wanted."""
    courses = {conn: Course(*span) for conn, span in spans.items()}
    wanted = np.array(sorted(spans), np.int64)
    lost: list[tuple[Array, Array, Array]] = []
    last_lost, last_ns = 0, -1
    for piece in source.read():
        if not len(piece):
            continue
        missing = np.diff(piece.lost, prepend=last_lost)
        at = np.flatnonzero(missing > 0)
        since = piece.times_ns[0] if last_ns < 0 else last_ns
        lost.append((np.r_[since, piece.times_ns[:-1]][at], piece.times_ns[at], missing[at]))
        last_lost, last_ns = int(piece.lost[-1]), int(piece.times_ns[-1])
        ids = piece["conn_id"].astype(np.int64)
        rows = np.flatnonzero(np.isin(ids, wanted))
        for conn in np.unique(ids[rows]).tolist():
            courses[conn].add(piece.take(rows[ids[rows] == conn]))
    if source.placed > last_lost and last_ns >= 0:
        tail = (last_ns, last_ns, source.placed - last_lost)
        lost.append((np.array([tail[0]]), np.array([tail[1]]), np.array([tail[2]])))
    for course in courses.values():
        course.finish(most)
    if not lost:
        return courses, Lost(*(np.empty(0, np.int64) for _ in range(3)))
    return courses, Lost(*(_all(parts) for parts in zip(*lost, strict=True)))


def _all(parts: Sequence[Array]) -> Array:
    return np.concatenate(parts).astype(np.int64)


def merge(lost: Lost, most: int) -> Lost:
    """At most so many spans: those nearest to each other become one."""
    if len(lost.begin) <= 1:
        return lost
    order = np.argsort(lost.begin, kind="stable")
    begin, missing = lost.begin[order], lost.missing[order]
    end = np.maximum.accumulate(lost.end[order])
    between = begin[1:] - end[:-1]
    limit = 0 if len(between) < most else max(int(np.sort(between)[-most]), 0)
    at = np.flatnonzero(np.r_[True, between > limit])
    return Lost(begin[at], np.maximum.reduceat(end, at), np.add.reduceat(missing, at))
