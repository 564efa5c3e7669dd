# SPDX-License-Identifier: Apache-2.0
"""The other end of a connection, where the same capture has it, and what a receiver says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tcpkmon.formats.analysis.why.connections import Connection
from tcpkmon.formats.analysis.why.words import human_time
from tcpkmon.formats.base.text import endpoint

_ENDS = ("laddr", "lport", "raddr", "rport")
_MOSTLY = 0.5


class Peers:
    """Finds the other ends of the connections of a table."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._columns = [table[name].tolist() for name in _ENDS]
        self._start, self._end = table["start_ns"], table["end_ns"]
        self._places = {one: at for at, one in enumerate(table["conn_id"].tolist())}
        self._rows: dict[tuple[Any, ...], list[int]] = {}
        for at, ends in enumerate(zip(*self._columns, strict=True)):
            self._rows.setdefault(ends, []).append(at)

    def of(self, conn_id: int) -> int | None:
        """The row of the other end of a connection; None: none was open at that time."""
        at = self._places[conn_id]
        laddr, lport, raddr, rport = (column[at] for column in self._columns)
        found = [
            row for row in self._rows.get((raddr, rport, laddr, lport), ())
            if row != at and self._start[row] <= self._end[at] and self._start[at] <= self._end[row]
        ]  # fmt: skip
        return max(found, key=lambda row: self._shared(at, row), default=None)

    def _shared(self, one: int, other: int) -> int:
        """For how long both were open [ns]."""
        start = max(int(self._start[one]), int(self._start[other]))
        return min(int(self._end[one]), int(self._end[other])) - start


def is_local(one: Connection) -> bool:
    """Whether both ends are on this host, by their addresses: between them is no path."""
    return one.laddr == one.raddr or one.raddr.startswith("127.") or one.raddr == "::1"


def sender_words(peer: Connection | None, otherwise: str) -> str:
    """The end of a sentence that names the sender. otherwise: where the capture lacks it."""
    if peer is None:
        return otherwise
    ends = f"{endpoint(peer.laddr, peer.lport)} -> {endpoint(peer.raddr, peer.rport)}"
    return f": its sender is in this capture: {ends}"


def quiet_words(one: Connection, peer: Connection | None) -> str:
    """A receiver to which for most of the time no data came; else ""."""
    share = one.quiet_us / 1e6 / one.duration_s if one.duration_s else 0.0
    if share < _MOSTLY:
        return ""
    text = (
        f"this host receives: for {100 * share:.0f} % of the time, in all "
        f"{human_time(one.quiet_us)}, no data came"
    )
    if peer is not None:
        why = ", as nothing was sent" * (peer.share("app") > _MOSTLY)
        return f"{text}{why}{sender_words(peer, '')}"
    return f"{text}: its sender had nothing to send, or it was lost on the way: capture there too"
