# SPDX-License-Identifier: Apache-2.0
"""The other end of a connection, where the same capture has it, and what a receiver says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.why.connections import Connection
from tcpkmon.formats.analysis.why.words import human_time
from tcpkmon.formats.base.text import endpoint

_MOSTLY, _OPENED = 0.5, 0.05


class Peers:
    """Finds the other ends of the connections of a table."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._start, self._end = table["start_ns"], table["end_ns"]
        self._by_id = np.argsort(table["conn_id"], kind="stable")
        self._ids = table["conn_id"][self._by_id]
        numbers: dict[str, int] = {}
        addresses = np.array([
            [numbers.setdefault(one, len(numbers)) for one in table[f"{end}addr"].tolist()]
            for end in "lr"
        ], np.int64)  # fmt: skip
        ports = _numbered(np.stack([table["lport"], table["rport"]]))
        local, remote = _numbered(addresses << 32 | ports)
        keys = local << 32 | remote
        self._wanted = remote << 32 | local
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def of(self, conn_id: int) -> int | None:
        """The row of the other end of a connection; None: none was open at that time."""
        at = int(self._by_id[np.searchsorted(self._ids, conn_id)])
        wanted = self._wanted[at]
        low, high = (np.searchsorted(self._keys, wanted, side) for side in ("left", "right"))
        found = [
            row for row in self._order[low:high].tolist()
            if row != at and self._start[row] <= self._end[at] and self._start[at] <= self._end[row]
        ]  # fmt: skip
        return max(found, key=lambda row: self._shared(at, row), default=None)

    def _shared(self, one: int, other: int) -> int:
        """For how long both were open [ns]."""
        start = max(int(self._start[one]), int(self._start[other]))
        return min(int(self._end[one]), int(self._end[other])) - start


def _numbered(values: NDArray[Any]) -> NDArray[np.int64]:
    """Each distinct value as a small number; of the same shape."""
    return np.unique(values, return_inverse=True)[1].reshape(values.shape)


def is_local(one: Connection) -> bool:
    """Whether both ends are on this host, by their addresses: between them is no path."""
    return one.laddr == one.raddr or one.raddr.startswith("127.") or one.raddr == "::1"


def sender_words(peer: Connection | None, otherwise: str) -> str:
    """The end of a sentence that names the sender. otherwise: where the capture lacks it."""
    if peer is None:
        return otherwise
    ends = f"{endpoint(peer.laddr, peer.lport)} -> {endpoint(peer.raddr, peer.rport)}"
    return f". Its sender is in this capture: see {ends}"


def quiet_words(one: Connection, peer: Connection | None) -> str:
    """A receiver to which for most of the time no data came; else ""."""
    opening = one.limit_ns.get("opening", 0) / 1e9
    since = one.duration_s - opening
    share = one.quiet_us / 1e6 / since if since > 0 else 0.0
    if share < _MOSTLY:
        return ""
    text = (
        f"this host receives: for {100 * share:.0f} % of the time"
        f"{' since it was open' * (opening > _OPENED * one.duration_s)}, in all "
        f"{human_time(one.quiet_us)}, no data came"
    )
    if peer is not None:
        why = ", as nothing was sent" * (peer.share("app") > _MOSTLY)
        return f"{text}{why}{sender_words(peer, '')}"
    return f"{text}: its sender had nothing to send, or it was lost on the way: capture there too"
