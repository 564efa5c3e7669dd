# SPDX-License-Identifier: Apache-2.0
"""What both ends of a connection say of its exchanges, where a capture has both.

Where one answer was seen to come in the middle of other requests, each answer of that connection
may belong to an earlier request: request, answer, request, answer looks the same with one and with
eight under way, at all times. So all its exchanges are of the streams, at both of its ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.why import Table

_OTHER = {"client": "server", "server": "client"}


class Ends:
    """The ends of connections in a table of exchanges. ids: of each end; of_row: the place among
    them of each exchange."""

    def __init__(self, table: Table) -> None:
        self.ids, firsts, self.of_row = np.unique(
            table["conn_id"], return_index=True, return_inverse=True
        )
        begins, stops = _times(table)
        self._low, self._high = np.full(len(self.ids), np.inf), np.full(len(self.ids), -np.inf)
        np.minimum.at(self._low, self.of_row, begins)
        np.maximum.at(self._high, self.of_row, stops)
        names = [table[name][firsts].tolist() for name in ("laddr", "lport", "raddr", "rport")]
        self._keys = list(zip(*names, strict=True))
        self.sides = table["side"][firsts].tolist()
        self._by_ends: dict[tuple[Any, ...], list[int]] = {}
        for at, (key, side) in enumerate(zip(self._keys, self.sides, strict=True)):
            self._by_ends.setdefault((*key, side), []).append(at)

    def others(self, at: int) -> list[int]:
        """The places of the other ends of that one's connection. Ports can be used again; the same
        connection is there at the same time."""
        here, port, there, remote = self._keys[at]
        found = self._by_ends.get((there, remote, here, port, _OTHER[self.sides[at]]), ())
        return [other for other in found if self._low[other] <= self._high[at]
                and self._low[at] <= self._high[other]]  # fmt: skip


def _times(table: Table) -> tuple[Array, Array]:
    """When each exchange began and ended [ns]."""
    begins = table["start_ns"]
    return begins, begins + np.nan_to_num(table["total_ns"].astype(np.float64))


def spread(table: Table) -> Array:
    """(n,) whether single requests cannot be told apart: the column pipelined of all exchanges of
    the table, whose rows of one connection are together, for their connections and other ends."""
    ends = Ends(table)
    proven = np.zeros(len(ends.ids), np.bool_)
    proven[ends.of_row[table["pipelined"]]] = True
    for at in np.flatnonzero(proven).tolist():
        proven[ends.others(at)] = True
    return proven[ends.of_row]


def each_once(table: Table) -> tuple[Array, int]:
    """The rows of exchanges, each once: where both ends of a connection are in the table, the
    client's; and of how many connections both are."""
    ends = Ends(table)
    both = [at for at, side in enumerate(ends.sides) if side == "server" and ends.others(at)]
    return np.flatnonzero(~np.isin(ends.of_row, both)), len(both)


def served(table: Table, whole: Table) -> Array:
    """(n,) the rows of whole that are the server's view of these exchanges: of a server's exchange
    itself, of a client's the one of the other end that has most of its time; -1: none is there.
    table: some rows of whole."""
    ends = Ends(whole)
    begins, stops = _times(whole)
    places = np.searchsorted(ends.ids, table["conn_id"]).tolist()
    found = np.full(len(places), -1)
    for row, (at, begin, stop) in enumerate(zip(places, *_times(table), strict=True)):
        of = ends.others(at) if ends.sides[at] == "client" else [at]
        rows = np.flatnonzero(np.isin(ends.of_row, of))
        if ends.sides[at] == "server":
            rows = rows[whole["number"][rows] == table["number"][row]]
        # A request that is on its way at once arrives before the call that wrote it is over.
        shared = np.minimum(stops[rows], stop) - np.maximum(begins[rows], begin)
        if len(rows) and shared.max() >= 0:
            found[row] = rows[np.argmax(shared)]
    return found
