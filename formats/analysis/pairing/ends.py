# SPDX-License-Identifier: Apache-2.0
"""What a capture knows of its end of each connection: sequence numbers at each record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.analysis.arrays import Array, join
from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.sequence import ahead_of, unwrap
from tcpkmon.formats.base.tcp import SYNCHRONIZED, Location, State

_FIN = 1
_COLUMNS = ("conn_id", "location", "callvalue", "lport", "rport", "laddr", "raddr", "state",
            "snd_una", "snd_max", "rcv_nxt", "seg_seq", "seg_len")  # fmt: skip
_MORE = ("seg_ack", "seg_flags")
_TIME = "times_ns"
Address = tuple[bytes, int, bytes, int]
"""Local address and port, and remote ones."""
_KEPT = ("conn_id", "location", "snd_una", "snd_max", "rcv_nxt", "seg_seq", "seg_len", "seg_ack",
         "seg_flags")  # fmt: skip


@dataclass(frozen=True)
class End:
    """One end. times: (n,) of its records, ns. sent: (n,) snd_nxt, received: rcv_nxt, acked: what
    the peer acknowledged, all counted on past 2^32. low, high: (n,) the segment of the record, in
    the numbers of `sent` or `received`, FIN included. address: local and remote, with ports."""

    conn_id: int
    address: Address
    times: Array
    location: Array
    sent: Array
    acked: Array
    received: Array
    low: Array
    high: Array

    @property
    def reverse(self) -> Address:
        """The address as the other end has it, unless it was translated between."""
        return (*self.address[2:], *self.address[:2])


def read_ends(source: Source) -> list[End]:
    """All connections that were open in the capture; 50 bytes of memory a record. UsageError."""
    lacks = [name for name in _COLUMNS if name not in source.known]
    if lacks:
        raise UsageError(f"{source.reader.path} lacks {', '.join(lacks)}",
                         "capture the schema tcp with --columns default, full or all")  # fmt: skip
    source.names = [*_COLUMNS, *(name for name in _MORE if name in source.known)]
    parts: list[dict[str, Array]] = []
    addresses: dict[int, Address] = {}
    for piece in source.read():
        is_open = np.isin(piece["state"], SYNCHRONIZED) & (piece["location"] != Location.EXISTING)
        opens = piece["location"] == Location.STATE_CHANGE
        is_open |= opens & (piece["callvalue"] == State.ESTABLISHED)
        some = piece.take(np.flatnonzero(is_open))
        ids, first = np.unique(some["conn_id"], return_index=True)
        for key, at in zip(ids.tolist(), first.tolist(), strict=True):
            if key not in addresses:
                ends = (some["laddr"][at].tobytes(), int(some["lport"][at]),
                        some["raddr"][at].tobytes(), int(some["rport"][at]))  # fmt: skip
                addresses[key] = ends
        columns = {name: some[name] for name in _KEPT if name in some.columns}
        parts.append({**columns, _TIME: some.times_ns})
    return list(_ends(parts, addresses))


def _ends(parts: list[dict[str, Array]], addresses: dict[int, Address]) -> Iterator[End]:
    if not parts:
        return
    columns = join(parts)
    order = np.lexsort((columns[_TIME], columns["conn_id"]))
    ids, first = np.unique(columns["conn_id"][order], return_index=True)
    for key, rows in zip(ids.tolist(), np.split(order, first[1:]), strict=True):
        yield _end(key, addresses[key], {n: v[rows] for n, v in columns.items()})


def _end(key: int, address: Address, of: dict[str, Array]) -> End:
    sent, received = unwrap(of["snd_max"]), unwrap(of["rcv_nxt"])
    acked = sent + ahead_of(of["snd_una"], sent)
    arrived = np.isin(of["location"], (Location.SEGMENT_RECEIVED, Location.SEGMENT_CLOSING))
    if "seg_ack" in of:
        told = sent + ahead_of(of["seg_ack"], sent)
        acked = np.where(arrived & (told > acked) & (told <= sent), told, acked)
    space = np.where(arrived, received, sent)
    low = space + ahead_of(of["seg_seq"], space)
    fin = of["seg_flags"] & _FIN if "seg_flags" in of else 0
    high = low + of["seg_len"] + fin
    return End(key, address, of[_TIME], of["location"], sent, acked, received, low, high)
