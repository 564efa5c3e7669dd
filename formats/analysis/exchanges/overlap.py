# SPDX-License-Identifier: Apache-2.0
"""Connections on which several requests were under way at once.

Where one answer was seen to come in the middle of other requests, each answer of that connection
may belong to an earlier request: request, answer, request, answer looks the same with one and with
eight under way, at all times. So all its exchanges are of the streams, at both of its ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.why import Table


def spread(table: Table) -> Array:
    """(n,) whether single requests cannot be told apart: the column pipelined of all exchanges of
    the table, whose rows of one connection are together, for their connections and other ends."""
    ids, firsts, of_row = np.unique(table["conn_id"], return_index=True, return_inverse=True)
    proven = np.zeros(len(ids), np.bool_)
    proven[of_row[table["pipelined"]]] = True
    if proven.any():
        ends_ns = table["start_ns"] + np.nan_to_num(table["total_ns"].astype(np.float64))
        low, high = np.full(len(ids), np.inf), np.full(len(ids), -np.inf)
        np.minimum.at(low, of_row, table["start_ns"])
        np.maximum.at(high, of_row, ends_ns)
        names = [table[name][firsts].tolist() for name in ("laddr", "lport", "raddr", "rport")]
        sides = table["side"][firsts].tolist()
        by_ends: dict[tuple[Any, ...], list[int]] = {}
        for at, (one, side) in enumerate(zip(zip(*names, strict=True), sides, strict=True)):
            by_ends.setdefault((*one, side), []).append(at)
        for at in np.flatnonzero(proven).tolist():
            here, port, there, remote = (values[at] for values in names)
            side = "server" if sides[at] == "client" else "client"
            for other in by_ends.get((there, remote, here, port, side), ()):
                # Ports can be used again; the same connection is there at the same time.
                if low[other] <= high[at] and low[at] <= high[other]:
                    proven[other] = True
    return proven[of_row]
