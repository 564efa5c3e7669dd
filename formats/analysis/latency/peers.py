# SPDX-License-Identifier: Apache-2.0
"""Who is whose peer: connections whose addresses, ports and sequence numbers are exchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.latency.stages import CONNECTION
from tcpkmon.formats.klogger.batch import LogBatch

END = np.dtype(
    [
        ("connection", "<i8"), ("time_ns", "<i8"), ("laddr", "V16"), ("lport", "<u4"),
        ("raddr", "V16"), ("rport", "<u4"), ("snd_nxt", "<u4"), ("rcv_nxt", "<u4"),
        ("pid", "<i4"), ("comm", "S16"),
    ]
)  # fmt: skip
"""What is kept of a MAGNET_CONNECTION. Sequence numbers of 0 are not known."""
_MAPPED = np.frombuffer(bytes(10) + b"\xff\xff", np.uint8)
_NEAR = 1 << 30
_TRIED = 8
"""Ends of the same addresses and ports (used again) that are tried on each side in time."""

Array = NDArray[np.int64]
Rows = NDArray[Any]


def read_ends(batch: LogBatch) -> Rows:
    """(n,) END of the MAGNET_CONNECTION records of a batch. Fields that a log lacks are 0."""
    event = batch.format.event(CONNECTION)
    at = batch.where(event)
    rows = batch.rows(event, at)
    found = np.zeros(len(at), END)
    found["time_ns"] = batch.times_ns[at].astype(np.int64)
    for name in END.names or ():
        field = event.find_field(name)
        if field is None or name == "time_ns":
            continue
        if name in ("laddr", "raddr"):
            if field.kind == "address":
                found[name] = _as_ipv6(rows[name])
        elif (field.kind == "string") == (name == "comm"):
            found[name] = rows[name]
    return found


def _as_ipv6(addresses: Rows) -> Rows:
    """(n,) V16 of V4 or V16."""
    width = addresses.dtype.itemsize
    wide = np.zeros((len(addresses), 16), np.uint8)
    if width == 4:
        wide[:, :12] = _MAPPED
    wide[:, 16 - width :] = np.ascontiguousarray(addresses).view(np.uint8).reshape(-1, width)
    return wide.view("V16")[:, 0]


def first_of_each(rows: Rows) -> Rows:
    """The earliest row of each connection, by number; connection 0 is none."""
    rows = rows[rows["connection"] > 0]
    rows = rows[np.argsort(rows["time_ns"], kind="stable")]
    _, first = np.unique(rows["connection"], return_index=True)
    return rows[first]


def pair_flows(ends: Rows) -> tuple[Array, Array, Array, Array]:
    """The flows of n connections: each sends one, and receives the one that its peer sends.

    Returns (n,) the flow that each sends, (n,) that it receives, and (f,) sender and receiver of
    each flow, -1 where that end is not recorded.
    """
    count = len(ends)
    peers = find_peers(ends)
    alone = np.flatnonzero(peers < 0)
    incoming = peers.copy()
    incoming[alone] = count + np.arange(len(alone))
    sender = np.concatenate((np.arange(count), np.full(len(alone), -1)))
    receiver = np.concatenate((peers, alone))
    return np.arange(count), incoming, sender, receiver


def find_peers(ends: Rows) -> Array:
    """(n,) the index of each connection's other end, or -1: both must be the other's nearest."""
    count = len(ends)
    local, remote = _keys(ends, "laddr", "lport"), _keys(ends, "raddr", "rport")
    _, numbers = np.unique(np.concatenate((local, remote)), return_inverse=True)
    here, there = numbers[:count].astype(np.int64), numbers[count:].astype(np.int64)
    keys, wanted = here * (2 * count) + there, there * (2 * count) + here
    order = np.lexsort((ends["time_ns"], keys))
    first = np.searchsorted(keys[order], wanted, "left")
    last = np.searchsorted(keys[order], wanted, "right")
    at = _nearest_in_time(ends["time_ns"][order], first, last, ends["time_ns"])
    best = np.full(count, -1, np.int64)
    least = np.full(count, np.inf)
    for step in range(-_TRIED, _TRIED):
        place = at + step
        mine = np.flatnonzero((place >= first) & (place < last))
        other = order[place[mine]]
        cost = _distance(ends[mine], ends[other])
        better = cost < least[mine]
        best[mine[better]] = other[better]
        least[mine[better]] = cost[better]
    best[(best < 0) | (best[best] != np.arange(count))] = -1
    return best


def _keys(ends: Rows, address: str, port: str) -> Rows:
    """(n,) S20: an address and a port."""
    found = np.empty((len(ends), 20), np.uint8)
    found[:, :16] = np.ascontiguousarray(ends[address]).view(np.uint8).reshape(-1, 16)
    found[:, 16:] = np.ascontiguousarray(ends[port]).view(np.uint8).reshape(-1, 4)
    return found.view("S20")[:, 0]


def _nearest_in_time(times: Array, first: Array, last: Array, wanted: Array) -> Array:
    """(n,) where in the ascending times[first:last] each wanted time belongs, by bisection."""
    low: Array = first.copy()
    high: Array = last.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        later = open_ & (times[np.minimum(middle, len(times) - 1)] < wanted)
        low[later] = middle[later] + 1
        high[open_ & ~later] = middle[open_ & ~later]
    return low


def _distance(ours: Rows, theirs: Rows) -> NDArray[np.float64]:
    """(n,) how far two ends' sequence numbers, then times, are apart; inf: they are no peers."""
    total: NDArray[np.float64] = np.abs(ours["time_ns"] - theirs["time_ns"]) * 1e-18
    for sent, received in ((ours, theirs), (theirs, ours)):
        ahead = sent["snd_nxt"].astype(np.int64) - received["rcv_nxt"].astype(np.int64)
        step = np.abs((ahead + (1 << 31)) % (1 << 32) - (1 << 31)).astype(float)
        step[step > _NEAR] = np.inf
        step[(sent["snd_nxt"] == 0) | (received["rcv_nxt"] == 0)] = 0
        total += step
    return total
