# SPDX-License-Identifier: Apache-2.0
"""The listeners: how full their queues were whenever the records say it.

A listener's record has its queues in columns that have no meaning there; the first two are where
TCP_INFO has them. The record at which a connection is made is the connection's own: of the listener
it has OF_CONNECTIONS alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.analysis.why.assemble import address
from tcpkmon.formats.base.tcp import DROPS, Location, State

QUEUES = {
    "queue": "packets_out", "backlog": "sacked_out", "drops": "lost_out",
    "syn_queue": "retrans_out", "reuseport": "snd_cwnd_segs", "defer_accept": "mss",
    "tfo_queue": "snd_wnd", "tfo_backlog": "rcv_wnd", "cookie_us": "srtt_us",
}  # fmt: skip
"""By the name in the table listeners: the column of a record. fill_queues() of
bpf/include/tcp_columns.h fills them."""
OF_CONNECTIONS = ("queue", "backlog", "cookie_us")
NEEDED = (
    "conn_id", "location", "callvalue", "lport", "rport", "laddr", "raddr", "state", "seg_flags",
    *QUEUES.values(),
)  # fmt: skip
WHAT = "what says how full the listeners' queues were"
_SYN = 2
Row = dict[str, Any]


def records_listeners(source: Source) -> bool:
    """Whether the capture's version records queues of listeners."""
    has = "LISTENER" in source.location_codes()
    return has and source.known.issuperset(NEEDED)


def is_listening(rows: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """(n,) which records have a listener's queues."""
    location, listens = rows["location"], rows["state"] == State.LISTEN
    changes = location == Location.STATE_CHANGE
    found = (location == Location.LISTENER) | (listens & np.isin(location, DROPS))
    return np.asarray(found | changes & (listens | (rows["callvalue"] == State.LISTEN)))


def listeners(source: Source) -> Iterator[list[Row]]:
    """A row for each such record, in the capture's order; see LISTENERS of formats/tables."""
    ahead_ns = source.about().get("ahead_ns")
    for piece in source.read(all_records=True):
        at = np.flatnonzero(is_listening(piece.columns))
        names = [*NEEDED, *(("netns",) if "netns" in piece.columns else ())]
        columns = {name: piece[name][at].tolist() for name in names}
        times = piece.times_ns[at].tolist()
        yield [
            _row({name: values[row] for name, values in columns.items()}, times[row], ahead_ns)
            for row in range(len(at))
        ]


def _row(one: Mapping[str, Any], time_ns: int, ahead_ns: int | None) -> Row:
    event = event_of(one["location"], one["callvalue"], one["seg_flags"])
    known = OF_CONNECTIONS if event == "connection" else QUEUES
    return {
        "time": None if ahead_ns is None else time_ns + ahead_ns,
        "time_ns": time_ns,
        "event": event,
        "conn_id": one["conn_id"] if event == "connection" else None,
        "netns": one.get("netns"),
        "laddr": address(one["laddr"]),
        "lport": one["lport"],
        "raddr": address(one["raddr"]) if one["rport"] else None,
        "rport": one["rport"] or None,
        **{name: one[column] if name in known else None for name, column in QUEUES.items()},
    }


def event_of(location: int, callvalue: int, flags: int) -> str:
    """What happened at the listener."""
    if location == Location.STATE_CHANGE:
        return {State.LISTEN: "listen", State.SYN_RECV: "connection"}.get(callvalue, "close")
    return "drop" if location in DROPS else "syn" if flags & _SYN else "ack"
