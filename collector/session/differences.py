# SPDX-License-Identifier: Apache-2.0
"""What differs between the last records of connections and the kernel's sockets, as arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.reconciled import What
from tcpkmon.formats.base.tcp import Location, State

# The words of an address, the ports, the namespace: odd numbers make a key of them in one sum.
# Not numpy.random, whose import each start would wait for.
_FACTORS = np.frombuffer(os.urandom(48), np.uint64) | np.uint64(1)
Rows = Mapping[str, NDArray[Any]]


@dataclass
class Found:
    """What a comparison has found so far."""

    compared: int = 0
    differences: int = 0
    told: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """The first differences: what, conn_id, by the record, by the kernel, ports."""


def find_differences(
    rows: Rows, is_full: bool, sockets: NDArray[Any], found: Found, at_once: int, most: int
) -> Iterator[None]:
    """Compare `at_once` sockets for each item; `most`: how many differences are told.

    rows: (n,) columns of last records, and at_rest: which may be compared. is_full: there may be
    more connections. sockets: of SOCKET.
    """
    ends = _ends_of(rows)
    has_netns = "netns" in rows
    keys = _keys(ends, rows["netns"] if has_netns else None)
    order = np.argsort(keys)
    keys = keys[order]
    yield
    for start in range(0, len(sockets), at_once):
        some = sockets[start : start + at_once]
        wanted = _keys(some["ends"], some["netns"] if has_netns else None)
        first = np.searchsorted(keys, wanted)
        count = np.searchsorted(keys, wanted, "right") - first
        lacks = some[count == 0]
        if not is_full:
            found.compared += len(lacks)
            number = np.zeros(len(lacks), np.int64)
            _tell(found, most, What.NO_RECORD, number, number, lacks["state"], lacks)
        one = count == 1
        at, some = order[first[one]], some[one]
        at_rest = rows["at_rest"][at] & (ends[at] == some["ends"]).all(1)
        at, some = at[at_rest], some[at_rest]
        found.compared += len(some)
        _compare({name: values[at] for name, values in rows.items()}, some, found, most)
        yield


def _ends_of(rows: Rows) -> NDArray[np.uint64]:
    """(n, 5) as in SOCKET."""
    ends = np.empty((len(rows["lport"]), 5), np.uint64)
    for number, name in enumerate(("laddr", "raddr")):
        words = np.ascontiguousarray(rows[name]).view("=u8").reshape(-1, 2)
        ends[:, 2 * number : 2 * number + 2] = words
    ends[:, 4] = rows["lport"].astype(np.uint64) << np.uint64(16) | rows["rport"].astype(np.uint64)
    return ends


def _keys(ends: NDArray[np.uint64], netns: NDArray[Any] | None) -> NDArray[np.uint64]:
    """(n,) numbers that are equal where the ends are, and hardly ever elsewhere."""
    keys: NDArray[np.uint64] = (ends * _FACTORS[:5]).sum(1, dtype=np.uint64)
    return keys if netns is None else keys + netns * _FACTORS[5]


def _tell(
    found: Found, most: int, what: What, connection: NDArray[Any], record: NDArray[Any],
    kernel: NDArray[Any], sockets: NDArray[Any],
) -> None:  # fmt: skip
    """Add these differences."""
    found.differences += len(sockets)
    columns = (connection, record, kernel, sockets["ends"][:, 4])
    left = max(0, most - len(found.told))
    lists = (values[:left].tolist() for values in columns)
    found.told += [(int(what), *one) for one in zip(*lists, strict=True)]


def _compare(rows: Rows, sockets: NDArray[Any], found: Found, most: int) -> None:
    """Connections at rest, row by row of both."""

    def tell(what: What, record: NDArray[Any], kernel: NDArray[Any], sure: Any = True) -> None:
        differ = (record.astype(np.int64) != kernel.astype(np.int64)) & sure
        if differ.any():
            values = (rows["conn_id"][differ], record[differ], kernel[differ])
            _tell(found, most, what, *values, sockets[differ])

    location = rows["location"]
    state = np.where(location == Location.STATE_CHANGE, rows["callvalue"], rows["state"])
    tell(What.STATE, state, sockets["state"])
    # Only those have a record of each segment.
    open_ = (state == State.ESTABLISHED) & (sockets["state"] == State.ESTABLISHED)
    segment = location == Location.SEGMENT_RECEIVED
    if "bytes_acked" in rows:
        more, known = np.zeros(len(state), np.int64), ~segment
        if "seg_ack" in rows and "snd_una" in rows:
            more, known = _ahead(rows["seg_ack"], rows["snd_una"]), open_
        record = rows["bytes_acked"].astype(np.int64) + np.where(segment, more, 0)
        tell(What.BYTES_ACKED, record, sockets["bytes_acked"], open_ & known)
    if "bytes_received" in rows:
        more, known = np.zeros(len(state), np.int64), ~segment
        if {"seg_seq", "seg_len", "rcv_nxt"} <= set(rows):
            end = rows["seg_seq"].astype(np.int64) + rows["seg_len"].astype(np.int64)
            in_order = _ahead(rows["seg_seq"], rows["rcv_nxt"]) == 0
            more, known = np.where(in_order, _ahead(end, rows["rcv_nxt"]), 0), open_
        record = rows["bytes_received"].astype(np.int64) + np.where(segment, more, 0)
        sure = open_ & known & (sockets["rcv_ooopack"] == 0)
        tell(What.BYTES_RECEIVED, record, sockets["bytes_received"], sure)
    if "total_retrans" in rows:
        # A segment that this machine itself dropped is counted, and no retransmission for us.
        record = rows["total_retrans"]
        tell(What.RETRANSMITS, record, np.minimum(record, sockets["total_retrans"]), open_)


def _ahead(number: NDArray[Any], before: NDArray[Any]) -> NDArray[np.int64]:
    """How far sequence numbers are ahead of others; 0 where they are not."""
    step = (number.astype(np.int64) - before.astype(np.int64)) & 0xFFFFFFFF
    return np.where(step < 1 << 31, step, 0)
