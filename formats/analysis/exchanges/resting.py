# SPDX-License-Identifier: Apache-2.0
"""Rows of connections that wait for more of theirs: of a million open ones, some thousand go on.

    piece           connections in it       rows that rest
    n               b, d                    a a b c d d ...    b, d are taken, and put again
                                            pool 0   1   2     of fewer and fewer rows
"""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.arrays import Array, join

Columns = dict[str, Array]


class Resting:
    """Columns of rows by the column `key`, which names their connection.

    Those of a connection are put at once. Pools of about as many rows are merged, so each row is
    copied a few times only.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._pools: list[_Pool] = []

    def put(self, columns: Columns) -> None:
        """Rows by ascending key, of connections that have none here."""
        if not len(columns[self._key]):
            return
        self._pools.append(_Pool(columns[self._key], columns))
        while len(self._pools) > 1 and self._pools[-2].count <= 2 * self._pools[-1].count:
            self._merge(2)

    def take(self, keys: Array) -> Columns | None:
        """All rows of these connections, which rest no more; None: there are none. keys: each
        once."""
        found = [rows for pool in self._pools if (rows := pool.take(keys)) is not None]
        return join(found) if found else None

    def take_all(self) -> Columns | None:
        """The rows of all connections, by ascending key; None: there are none."""
        if self._pools:
            self._merge(len(self._pools))
        return self._pools.pop().columns if self._pools else None

    def _merge(self, last: int) -> None:
        rows = [pool.rest() for pool in self._pools[-last:]]
        del self._pools[-last:]
        columns = join(rows)
        order = np.argsort(columns[self._key], kind="stable")  # fast: they are runs that ascend
        columns = {name: values[order] for name, values in columns.items()}
        if len(order):
            self._pools.append(_Pool(columns[self._key], columns))


class _Pool:
    """Rows, of which some are taken. count: of the others."""

    def __init__(self, keys: Array, columns: Columns) -> None:
        self._keys, self.columns = keys, columns
        self._rests = np.ones(len(keys), np.bool_)
        self.count = len(keys)

    def take(self, keys: Array) -> Columns | None:
        low, high = (np.searchsorted(self._keys, keys, side) for side in ("left", "right"))
        counts = high - low
        at = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        at = at[self._rests[at]]
        self._rests[at] = False
        self.count -= len(at)
        return {name: values[at] for name, values in self.columns.items()} if len(at) else None

    def rest(self) -> Columns:
        if self.count == len(self._keys):
            return self.columns
        return {name: values[self._rests] for name, values in self.columns.items()}
