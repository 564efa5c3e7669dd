# SPDX-License-Identifier: Apache-2.0
"""What ran on each CPU, the requests of the disks and the page-ins along time, thinned to what
pixels show: the timeline's slices, of which those of one pixel become one band."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.thinning import bins_of, starts_of
from tcpkmon.formats.klogger.logs import Logs
from tcpkmon.formats.timeline import BEGIN, END, LOST, PAGES, RUNS, Track, read_host

Array = NDArray[Any]
_BINS, _ALL = 2000, 24_000
"""Bands of a row, and of all rows: 21 bytes each, a third more in base64."""
_PENDING = 1 << 13
_ROWS, _READ, _LONGEST = 48, 512, 80
"""Rows of a page, rows in memory (a hostile log has a disk in each record), letters of a name."""
_BAND = np.dtype(
    [("begin", "i8"), ("end", "i8"), ("busy", "i8"), ("item", "i8"), ("count", "i8")]
)  # fmt: skip
"""busy: how long of it [ns]. item: what took the longest. count: of slices, or missing records."""


class Bands:
    """The slices of one row, in any order; of too many, those of one bin of time are one."""

    def __init__(self) -> None:
        self.rows: Array = np.empty(0, _BAND)
        self._pieces: list[Array] = []
        self._pending = 0

    def add(self, begin: Array, end: Array, item: Array, count: Array | int = 1) -> None:
        """Some more."""
        rows = np.zeros(len(begin), _BAND)
        rows["begin"], rows["end"], rows["busy"] = begin, end, end - begin
        rows["item"], rows["count"] = item, count
        self._pieces.append(rows)
        self._pending += len(rows)
        if self._pending > _PENDING:
            self.finish(_BINS)

    def finish(self, most: int) -> None:
        """Leave at most so many, by time."""
        rows = np.concatenate([self.rows, *self._pieces])
        self._pieces, self._pending = [], 0
        rows = rows[np.argsort(rows["begin"], kind="stable")]
        if len(rows) > most:
            place = bins_of(rows["begin"], int(rows["begin"][0]), int(rows["begin"][-1]), most)
            starts = starts_of(place)
            longest = np.lexsort((-rows["busy"], place))[starts]
            merged = rows[starts]
            merged["item"] = rows["item"][longest]
            merged["end"] = np.maximum.reduceat(rows["end"], starts)
            for name in ("busy", "count"):
                merged[name] = np.add.reduceat(rows[name], starts)
            rows = merged
        self.rows = rows


class Tracks:
    """A sink of the timeline. rows: by name. gaps: where records of a row are missing. items: the
    numbers of what ran. left_out: how many rows."""

    def __init__(self) -> None:
        self.rows: dict[str, Bands] = {}
        self.gaps: dict[str, Bands] = {}
        self.items: dict[str, int] = {}
        self.left_out = 0
        self._tracks: dict[int, Track] = {}
        self._names: dict[int, str] = {}

    def track(self, track: Track) -> None:
        self._tracks[track.number] = track

    def name(self, number: int, text: str) -> None:
        self._names[number] = text

    def clock(self, mono_ns: int, realtime_ns: int | None) -> None:
        """The page has one."""

    def dropped(self) -> None:
        """The slices of the losses tell it."""

    def finish(self, about: dict[str, str | int]) -> None:
        """The page tells all of that."""

    def events(self, events: Array) -> None:
        begin, end = events[events["kind"] == BEGIN], events[events["kind"] == END]
        if not len(begin):
            return
        kinds, of = np.unique(begin[["track", "name"]], return_inverse=True)
        placed = [self._place(*kind) for kind in kinds.tolist()]
        items = np.array([item for _, item in placed], np.int64)[of]
        found: dict[int, Bands] = {id(bands): bands for bands, _ in placed}
        rows = np.array([id(bands) for bands, _ in placed])[of]
        for number, bands in found.items():
            at = np.flatnonzero(rows == number)
            is_gap = any(bands is one for one in self.gaps.values())
            count = begin["arg_value"][at] if is_gap else 1
            bands.add(begin["time"][at], end["time"][at], items[at], count)

    def _place(self, number: int, name: int) -> tuple[Bands, int]:
        """The row of a track's slices of one name, and what to call them."""
        track, text = self._tracks[number], self._names[name]
        group = self._tracks[track.parent].name
        rows, row = self.rows, f"{group} {track.name}"
        if track.name == LOST:
            rows, row = self.gaps, group
        elif track.name == RUNS:
            row = group
        elif track.name == PAGES:
            row, text = f"{text}s", group
        if row not in rows and len(rows) >= _READ:
            row = "others"
        text = text[:_LONGEST]
        return rows.setdefault(row[:_LONGEST], Bands()), self.items.setdefault(
            text, len(self.items)
        )


def read_tracks(logs: Logs) -> Tracks:
    """The rows of a log, in one pass; none without the schemata sched, disk and paging."""
    found = Tracks()
    read_host(found, logs)
    if not found.rows:
        return found
    for name in found.gaps:
        found.rows.setdefault(name, Bands())
    every = (*found.rows.values(), *found.gaps.values())
    for bands in every:
        bands.finish(_BINS)
    spent = {name: int(bands.rows["busy"].sum()) for name, bands in found.rows.items()}
    kept = sorted(spent, key=lambda name: -spent[name])[:_ROWS]
    found.left_out = len(spent) - len(kept)
    for bands in every:
        bands.finish(min(_BINS, _ALL // max(len(kept), 1)))
    found.rows = {name: found.rows[name] for name in sorted(kept, key=_in_order)}
    return found


def _in_order(name: str) -> list[Any]:
    """Numbers in names are ordered as numbers."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
