# SPDX-License-Identifier: Apache-2.0
"""The merge under the sequencer: where in a release each CPU's records go, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.sequencer.cpu_queue import Part, cut
from collector.sequencer.ordered_batch import I64


@dataclass
class Share:
    """One CPU's records in a piece of a merge: `where` says at which places, in rising order."""

    cpu: int
    where: I64
    rows: Sequence[NDArray[Any]]
    """One after the other, maybe in memory of the ring."""
    times_ns: I64
    serials: I64
    gaps: I64 | None
    """How many serials are missing before each; None for a part that has no gaps at all."""


class Flow:
    """A CPU's part of a merge. places: where each of its records comes in the whole of it."""

    def __init__(self, part: Part, places: I64) -> None:
        self._part = part
        self._places = places
        self._times_ns = part.times_ns
        self._serials = part.serials
        self._gaps = part.gaps if part.missing else None
        self._done = 0

    def next(self, start: int, stop: int) -> Share:
        """Its records at the places from `start`, where the last call ended, up to `stop`."""
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
    """The merge of several CPUs' parts: stable by time, then in the order they are given."""
    total = sum(map(len, parts))
    places: I64 = np.arange(total)
    if len(parts) > 1:
        # Sorted runs one after the other: a stable sort only has to merge them.
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
    """An index for places that rise: faster when they do so by one."""
    if len(where) and where[-1] - where[0] == len(where) - 1:
        return slice(int(where[0]), int(where[-1]) + 1)
    return where


def put(target: NDArray[Any], where: I64, values: Any) -> None:
    """target[where] = values, where `where` rises."""
    target[_which(where)] = values


def pick(source: NDArray[Any], where: I64) -> NDArray[Any]:
    """source[where], where `where` rises."""
    picked: NDArray[Any] = source[_which(where)]
    return picked


def put_rows(target: NDArray[Any], where: I64, rows: Sequence[NDArray[Any]]) -> None:
    """The rows of several arrays, one after the other, to their places."""
    at = 0
    for piece in rows:
        put(target, where[at : at + len(piece)], piece)
        at += len(piece)
