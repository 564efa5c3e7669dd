# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a piece, those of a connection together, and a place for each connection."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from formats.analysis.why.snapshots import Array, Snapshots
from formats.base.errors import UsageError
from formats.base.limits import MOST_CONNECTIONS


class Places:
    """Counts connections: the first that is seen has place 0. Use one for all that must agree."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def of(self, ids: Array) -> NDArray[np.int64]:
        """(m,) the places of these connections; new ones get the next. UsageError: too many."""
        known = self._places
        found = [known.setdefault(one, len(known)) for one in ids.tolist()]
        if len(known) > MOST_CONNECTIONS:
            raise UsageError(f"the capture has more than {MOST_CONNECTIONS} connections")
        return np.array(found, np.int64)


class Grouped:
    """A piece of n snapshots of m connections, each connection's together and in time order.

    columns: by name, (n,). times, lost: (n,) as of Snapshots. firsts, lasts: (m,) the first and the
    last row of each connection. places: (m,) see Places. order: (n,) where each row was in the
    piece.
    """

    def __init__(self, piece: Snapshots, places: Places) -> None:
        ids = np.ascontiguousarray(piece["conn_id"])
        self.order: NDArray[np.int64] | None = None
        self.columns, self.times, self.lost = piece.columns, piece.times_ns, piece.lost
        if (ids[1:] < ids[:-1]).any():
            self.order = np.argsort(_narrow(ids), kind="stable")
            ids = ids[self.order]
            self.columns = {name: values[self.order] for name, values in piece.columns.items()}
            self.times, self.lost = self.times[self.order], self.lost[self.order]
        self.is_first = np.ones(len(ids), np.bool_)
        np.not_equal(ids[1:], ids[:-1], out=self.is_first[1:])
        self.firsts = np.flatnonzero(self.is_first)
        self.lasts = np.append(self.firsts[1:], len(ids)) - 1
        # The order in which they were seen is the order of the places.
        seen = self.firsts if self.order is None else self.order[self.firsts]
        by_time = np.argsort(seen, kind="stable")
        self.places = np.empty(len(seen), np.int64)
        self.places[by_time] = places.of(ids[self.firsts[by_time]])
        self.of_row = np.repeat(self.places, self.lasts - self.firsts + 1)
        """(n,) the place of each row's connection."""

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]


def _narrow(ids: Array) -> Array:
    """Ids as 16 bits where they fit: numpy sorts those by radix."""
    least = ids.min()
    offsets = ids - least
    return offsets.astype(np.uint16) if offsets.max() < 1 << 16 else ids


def grown(values: Array, size: int, fill: int | float | bytes = 0) -> Array:
    """The array with at least that many rows; the new ones hold `fill`."""
    if len(values) >= size:
        return values
    more = np.full(max(size - len(values), len(values) // 2), fill, values.dtype)
    return np.concatenate([values, more])
