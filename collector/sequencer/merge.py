# SPDX-License-Identifier: Apache-2.0
"""The merge for the sequencer: the place of each CPU's records in a release, piece by piece.

    pieces of a release    |  0  1  2  3 |  4  5  6 |
    places of CPU 0           0  1          4              Flow: places in the release
    places of CPU 1                 2  3       5  6
    where of CPU 1                  2  3       1  2        Share: places in the piece
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.sequencer.ordered_batch import I64
from tcpkmon.collector.sequencer.part import Part, cut


@dataclass
class Share:
    """One CPU's records in a piece of a merge, and their places `where`, which rise."""

    cpu: int
    where: I64
    rows: Sequence[NDArray[Any]]
    """One after the other, maybe in the ring's memory."""
    times_ns: I64
    serials: I64
    gaps: I64 | None
    """How many serials are missing before each; None if none is missing in the release."""


class Flow:
    """A CPU's part of a merge. places: the place of each record in the whole release."""

    def __init__(self, part: Part, places: I64) -> None:
        self._part = part
        self._places = places
        self._times_ns = part.times_ns
        self._serials = part.serials
        self._gaps = part.gaps if part.missing else None
        self._done = 0

    def next(self, start: int, stop: int) -> Share:
        """Its records at the places from `start`, the end of the last call, up to `stop`."""
        end = int(self._places.searchsorted(stop))
        which = slice(self._done, end)
        share = Share(
            self._part.cpu,
            self._places[which] - start,
            list(cut([chunk.rows for chunk in self._part.chunks], self._done, end)),
            self._times_ns[which],
            self._serials[which],
            None if self._gaps is None else self._gaps[which],
        )
        self._done = end
        return share


def flows(parts: Sequence[Part]) -> list[Flow]:
    """Merge several CPUs' parts by time; at the same time, in the order of the parts."""
    total = sum(map(len, parts))
    places: I64 = np.arange(total)
    if len(parts) > 1:
        # A stable sort merges runs that are sorted already.
        order = np.concatenate([part.keys_ns for part in parts]).argsort(kind="stable")
        places = np.empty_like(order)
        places[order] = np.arange(total)
    made, start = [], 0
    for part in parts:
        stop = start + len(part)
        made.append(Flow(part, places[start:stop]))
        start = stop
    return made


def _which(where: I64) -> slice | I64:
    """An index for rising places: a slice, which is faster, if they rise by one."""
    if len(where) and where[-1] - where[0] == len(where) - 1:
        return slice(int(where[0]), int(where[-1]) + 1)
    return where


def put(target: NDArray[Any], where: I64, values: Any) -> None:
    """target[where] = values, for places that rise."""
    target[_which(where)] = values


def pick(source: NDArray[Any], where: I64) -> NDArray[Any]:
    """source[where], for places that rise."""
    picked: NDArray[Any] = source[_which(where)]
    return picked


def put_rows(target: NDArray[Any], where: I64, rows: Sequence[NDArray[Any]]) -> None:
    """target[where] = the rows of several arrays, one after the other."""
    at = 0
    for piece in rows:
        put(target, where[at : at + len(piece)], piece)
        at += len(piece)
