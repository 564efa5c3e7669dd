# SPDX-License-Identifier: Apache-2.0
"""What a capture knows of its end of each connection: sequence numbers at each record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.sequence import ahead_of, unwrap
from tcpkmon.formats.base.tcp import SYNCHRONIZED, Location, State

_FIN = 1
_COLUMNS = ("conn_id", "location", "callvalue", "lport", "rport", "laddr", "raddr", "state",
            "snd_una", "snd_max", "rcv_nxt", "seg_seq", "seg_len")  # fmt: skip
_MORE = ("seg_ack", "seg_flags")
Address = tuple[bytes, int, bytes, int]
"""Local address and port, and remote ones."""
_KEPT = ("location", "snd_una", "snd_max", "rcv_nxt", "seg_seq", "seg_len", "seg_ack",
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
    found = []
    for block in source.blocks():
        is_open = np.isin(block["state"], SYNCHRONIZED) & (block["location"] != Location.EXISTING)
        opens = block["location"] == Location.STATE_CHANGE
        is_open |= opens & (block["callvalue"] == State.ESTABLISHED)
        some = block.take(np.flatnonzero(is_open))
        for first, last in zip(some.groups.tolist(), some.lasts.tolist(), strict=True):
            address = (some["laddr"][first].tobytes(), int(some["lport"][first]),
                       some["raddr"][first].tobytes(), int(some["rport"][first]))  # fmt: skip
            at = first + np.argsort(some.times_ns[first : last + 1], kind="stable")
            columns = {name: some[name][at] for name in _KEPT if name in some.rows}
            found.append(_end(int(some["conn_id"][first]), address, some.times_ns[at], columns))
    return sorted(found, key=lambda one: one.conn_id)


def _end(key: int, address: Address, times: Array, of: dict[str, Array]) -> End:
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
    return End(key, address, times, of["location"], sent, acked, received, low, high)
