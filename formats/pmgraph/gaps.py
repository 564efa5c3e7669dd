# SPDX-License-Identifier: Apache-2.0
"""Finds missing sequence numbers in a capture: lines for -D, spans of time for the graphs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from tcpkmon.formats.pmgraph.arrays import Array
from tcpkmon.formats.pmgraph.clock import ClockText, Seconds
from tcpkmon.formats.psc.reader import Capture
from tcpkmon.formats.psc.sequence import Gap

_NEAR_ROWS = 65536


@dataclass(frozen=True)
class Spans:
    """(n,) times in seconds between which records are missing, and how many records in all.

    whose: the words before that number, where there are several captures.
    """

    begin: Array
    end: Array
    missing: int
    whose: str = ""

    @property
    def text(self) -> str:
        """What the legend says."""
        return f"{self.whose}{self.missing} records lost"


@dataclass(frozen=True)
class OffSpan:
    """Times in seconds between which a location, or several, were switched off."""

    begin: float
    end: float
    name: str


def write_gaps(capture: Capture, out: BinaryIO, clock: str = "epoch", prefix: str = "") -> int:
    """Write a line for each gap and return their number.

    A line has `prefix`, then with tabs between: sequence number before and after, number missing,
    time before and after.
    """
    text = ClockText(capture, clock)
    count = 0
    for gaps in _groups(capture):
        times = text.at([row for gap in gaps for row in (gap.row - 1, gap.row)])
        for gap, before, after in zip(gaps, times[::2], times[1::2], strict=True):
            line = f"{gap.seq_before}\t{gap.seq_after}\t{gap.missing}\t{before}\t{after}\n"
            out.write((prefix + line).encode("ascii"))
        count += len(gaps)
    return count


def find_spans(capture: Capture, seconds: Seconds, resolution_s: float) -> Spans:
    """The times of all gaps; gaps closer to each other than `resolution_s` are merged."""
    begin: Array = np.empty(0, np.float64)
    end = begin
    missing = 0
    for gaps in _groups(capture):
        missing += sum(gap.missing for gap in gaps)
        first = gaps[0].row - 1
        times = seconds.at(first, gaps[-1].row + 1)
        after = np.array([gap.row for gap in gaps]) - first
        pair = times[after - 1], times[after]
        begin = np.concatenate([begin, np.minimum(*pair)])
        end = np.concatenate([end, np.maximum(*pair)])
        begin, end = merge(begin, end, resolution_s)
    return Spans(begin, end, missing)


def find_off(capture: Capture, seconds: Seconds, end_s: float) -> list[OffSpan]:
    """The times in which locations were switched off; end_s: the end of those that last."""
    found: dict[tuple[int, int | None], list[str]] = {}
    for off in capture.off:
        found.setdefault((off.begin_ns, off.end_ns), []).append(capture.location_name(off.point))
    return [
        OffSpan(
            seconds.of_mono(begin_ns),
            end_s if end_ns is None else seconds.of_mono(end_ns),
            names[0] if len(names) == 1 else f"{len(names)} locations",
        )
        for (begin_ns, end_ns), names in found.items()
    ]


def _groups(capture: Capture) -> Iterator[list[Gap]]:
    """Gaps that are near each other in the file, so that their times can be read together."""
    for _, gaps in itertools.groupby(capture.gaps(), lambda gap: gap.row // _NEAR_ROWS):
        yield list(gaps)


def merge(begin: Array, end: Array, resolution_s: float) -> tuple[Array, Array]:
    """Spans by time, those closer to each other than this as one. There is one at least."""
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    starts = np.flatnonzero(np.r_[True, begin[1:] > end[:-1] + resolution_s])
    return begin[starts], np.maximum.reduceat(end, starts)
