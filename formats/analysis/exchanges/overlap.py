# SPDX-License-Identifier: Apache-2.0
"""What both ends of a connection say of its exchanges, where a capture has both.

Where one answer was seen to come in the middle of other requests, each answer of that connection
may belong to an earlier request: request, answer, request, answer looks the same with one and with
eight under way, at all times. So all its exchanges are of the streams, at both of its ends.
"""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.why import Table


class Ends:
    """The ends of connections in a table of exchanges. ids: of each end; of_row: the place among
    them of each exchange."""

    def __init__(self, table: Table) -> None:
        self.ids, firsts, self.of_row = np.unique(
            table["conn_id"], return_index=True, return_inverse=True
        )
        self.sides = table["side"][firsts].tolist()
        self._peers = table["peer_conn_id"][firsts]

    def other(self, at: int) -> int | None:
        """The place of the other end of that one's connection, which sees the other side."""
        peer = self._peers[at]
        found = int(np.searchsorted(self.ids, peer)) if peer > 0 else len(self.ids)
        is_there = found < len(self.ids) and self.ids[found] == peer
        return found if is_there and self.sides[found] != self.sides[at] else None


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
        if (other := ends.other(at)) is not None:
            proven[other] = True
    return proven[ends.of_row]


def each_once(table: Table) -> tuple[Array, int]:
    """The rows of exchanges, each once: where both ends of a connection are in the table, the
    client's; and of how many connections both are."""
    ends = Ends(table)
    both = [at for at, side in enumerate(ends.sides) if side == "server"
            and ends.other(at) is not None]
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
        of = ends.other(at) if ends.sides[at] == "client" else at
        rows = np.flatnonzero(ends.of_row == (-1 if of is None else of))
        if ends.sides[at] == "server":
            rows = rows[whole["number"][rows] == table["number"][row]]
        # A request that is on its way at once arrives before the call that wrote it is over.
        shared = np.minimum(stops[rows], stop) - np.maximum(begins[rows], begin)
        if len(rows) and shared.max() >= 0:
            found[row] = rows[np.argmax(shared)]
    return found
