# SPDX-License-Identifier: Apache-2.0
"""Of a connection that closes: until when its last data was on the way.

`why` calls all that time `closing`, as it is the other end's too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tcpkmon.formats.analysis.why import Connection, Snapshots

_STATE_CHANGE = 4
_FIN_SENT, _BOTH_CLOSE = (4, 9, 11), 11
"""TCP_FIN_WAIT1, TCP_LAST_ACK, TCP_CLOSING: what leaves them had its FIN acknowledged, so all data.
TCP_FIN_WAIT1 is left for TCP_CLOSING when the peer's FIN came, and no ACK."""
_CLOSING, _LAST_DATA = "closing", "last data"


def acknowledged(piece: Snapshots) -> dict[int, int]:
    """When all that a connection sent was acknowledged [ns], of those that closed, by conn_id."""
    found: dict[int, int] = {}
    state = piece["state"]
    leaves = np.isin(state, _FIN_SENT) & (piece["location"] == _STATE_CHANGE)
    leaves &= (state != _FIN_SENT[0]) | (piece["callvalue"] != _BOTH_CLOSE)
    for at in np.flatnonzero(leaves).tolist():
        found.setdefault(int(piece["conn_id"][at]), int(piece.times_ns[at]))
    return found


def with_last_data(one: Connection, acked_ns: int | None) -> Connection:
    """The same, and of the time in which it closed apart what was waited for the last data's ACK.
    """
    closing = one.limit_ns.get(_CLOSING, 0)
    if acked_ns is None or not closing:
        return one
    last = max(closing - max(one.end_ns - acked_ns, 0), 0)
    limits = {**one.limit_ns, _CLOSING: closing - last, _LAST_DATA: last}
    return replace(one, limit_ns=limits)
