# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a piece, those of a connection together, and a place for each connection."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.why.snapshots import Snapshots
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.limits import MOST_CONNECTIONS


class Places:
    """Counts connections: the first that is seen has place 0. Use one for all that must agree."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, np.uint64)
        self._places = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, conn_id: int) -> int | None:
        """The place of a connection, None for one that was not seen."""
        wanted = np.uint64(conn_id % (1 << 64))
        at = int(np.searchsorted(self._ids, wanted))
        is_known = at < len(self) and self._ids[at] == wanted
        return int(self._places[at]) if is_known else None

    def of(self, ids: Array, seen: Array) -> NDArray[np.int64]:
        """(m,) the places of these connections; new ones get the next. UsageError: too many.

        ids: ascending, each once. seen: (m,) new ones are counted in the order of these numbers.
        """
        ids = ids.astype(np.uint64)
        at = np.searchsorted(self._ids, ids)
        inside = np.minimum(at, max(len(self) - 1, 0))
        known = self._ids[inside] == ids if len(self) else np.zeros(len(ids), np.bool_)
        found = self._places[inside] if len(self) else np.zeros(len(ids), np.int64)
        if not known.all():
            new = np.flatnonzero(~known)
            if len(self) + len(new) > MOST_CONNECTIONS:
                raise UsageError(f"the capture has more than {MOST_CONNECTIONS} connections")
            found[new[np.argsort(seen[new], kind="stable")]] = len(self) + np.arange(len(new))
            self._ids = np.insert(self._ids, at[new], ids[new])
            self._places = np.insert(self._places, at[new], found[new])
        return found


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
        self.places = places.of(ids[self.firsts], seen)
        self.of_row = np.repeat(self.places, self.lasts - self.firsts + 1)
        """(n,) the place of each row's connection."""

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def spread(self, values: Array) -> Array:
        """(n,) of values of connections, (m,), that of each row's."""
        return np.repeat(values, self.lasts - self.firsts + 1)


def _narrow(ids: Array) -> Array:
    """Ids as 16 bits where they fit: numpy sorts those by radix."""
    least = ids.min()
    offsets = ids - least
    return offsets.astype(np.uint16) if offsets.max() < 1 << 16 else ids


class Kept:
    """What is kept of connections from piece to piece: arrays by name, a row for each place."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.values: dict[str, Array] = {}
        self._fills: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.places)

    def of(self, name: str, kind: Any = np.int64, fill: int = 0) -> Array:
        """The array of this name with a row for each connection so far, which holds `fill`."""
        values = self.values.get(name, np.zeros(0, kind))
        self._fills[name] = fill
        self.values[name] = values = grown(values, len(self), fill)
        return values

    def grow(self) -> None:
        """All arrays get a row for each connection."""
        for name, fill in self._fills.items():
            self.values[name] = grown(self.values[name], len(self), fill)


def grown(values: Array, size: int, fill: int | float | bytes = 0) -> Array:
    """The array with at least that many rows; the new ones hold `fill`."""
    count = len(values)
    if count >= size:
        return values
    more = np.zeros((max(size, count + count // 2), *values.shape[1:]), values.dtype)
    more[:count] = values
    if fill:  # np.full() would write the character 0 into texts
        more[count:] = fill
    return more
