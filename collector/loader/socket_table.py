# SPDX-License-Identifier: Apache-2.0
"""sock_diag's answers as arrays: a row a socket, for the comparison of many connections.

    datagram  |header|inet_diag_msg| attribute | attribute |header|inet_diag_msg| attribute ...
                                     size, kind
    all messages of some datagrams step from attribute to attribute together.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tcpkmon.collector.loader.sock_diag import (
    AF_INET,
    CGROUP,
    CONGESTION,
    HEADER,
    INFO,
    MARK,
    MEMORY,
    STATES,
    Answer,
)
from tcpkmon.collector.loader.tcp_info import MEMORY_WORDS, TCP_INFO
from tcpkmon.collector.plan.filters import MAPPED_BITS, Filters, Flag

MEMBERS = ("bytes_acked", "bytes_received", "total_retrans", "rcv_ooopack")
"""Members of struct tcp_info that are compared; 0 where the kernel is too old to have them."""
_HEAD = [("cookie", "=u8"), ("netns", "=u8"), ("ends", "=u8", 5), ("cgroup", "=u8")]
_HEAD += [("uid", "=u4"), ("state", "=u1")]
SOCKET = np.dtype(_HEAD + [(name, TCP_INFO[name]) for name in MEMBERS])
"""ends: words of the local and of the remote address (IPv4 as v4-mapped, network order), then
local port * 2^16 + remote port."""
WHOLE = np.dtype(
    [*_HEAD, ("family", "=u1"), ("rqueue", "=u4"), ("wqueue", "=u4"), ("inode", "=u4")]
    + [("mark", "=u4"), ("congestion", "V16"), ("memory", f"V{4 * MEMORY_WORDS}"), ("pid", "=u4")]
    + [(name, TCP_INFO[name]) for name in TCP_INFO.names or () if name != "state"]
)
"""As SOCKET, with all that sock_diag tells. inode: 0: no process has the socket open. pid: the
process of --pid that has it open, else 0."""
_MESSAGE = np.dtype(
    [("family", "u1"), ("state", "u1"), ("timer", "u1"), ("resent", "u1")]
    + [("ports", ">u4"), ("addresses", "=u8", 4), ("device", "=u4"), ("cookie", "=u8")]
    + [(name, "=u4") for name in ("expires", "rqueue", "wqueue", "uid", "inode")]
)
"""struct inet_diag_msg of linux/inet_diag.h."""
_VALUES = {"cgroup": CGROUP, "mark": MARK, "congestion": CONGESTION, "memory": MEMORY}
"""The attributes that are columns of their own."""
_ATTRIBUTE_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_MAPPED_WORD = 0xFFFF0000


def decode(
    answers: Sequence[Answer], netns: int, kind: np.dtype[Any] = SOCKET, every: bool = False
) -> NDArray[Any]:
    """(n,) of SOCKET or WHOLE: the sockets of these datagrams, in one namespace.

    every: not only the full ones. Others are those that listen or are closed, time-wait sockets
    also in the substate FIN_WAIT2, and requests.
    """
    data = b"".join(datagram for datagram, _ in answers)
    bases = np.cumsum([0, *(len(datagram) for datagram, _ in answers)])
    offsets = [np.add(some, base) for (_, some), base in zip(answers, bases, strict=False)]
    at = np.concatenate(offsets) if offsets else np.empty(0, np.int64)
    # Behind the last message there is room for all that is read at its end.
    room = np.frombuffer(data + bytes(TCP_INFO.itemsize + _MESSAGE.itemsize), np.uint8)
    end = at + _read(room, at, np.dtype("=u4"))
    fits = end - at >= HEADER.size + _MESSAGE.itemsize
    at, end = at[fits], end[fits]
    messages = _read(room, at + HEADER.size, _MESSAGE)
    wanted = {name: number for name, number in _VALUES.items() if name in (kind.names or ())}
    found = _attributes(room, at + HEADER.size + _MESSAGE.itemsize, end, [INFO, *wanted.values()])
    if not every:
        states = messages["state"].astype(np.int64)
        full = (found[INFO][0] > 0) & (STATES >> states & 1 > 0)
        messages = messages[full]
        found = {kind: (places[full], sizes[full]) for kind, (places, sizes) in found.items()}
    rows = np.zeros(len(messages), kind)
    infos = _value(room, *found[INFO], TCP_INFO)
    for name in kind.names or ():
        if name in wanted:
            rows[name] = _value(room, *found[wanted[name]], kind[name])
        elif name in (_MESSAGE.names or ()):
            rows[name] = messages[name]
        elif name in (TCP_INFO.names or ()):
            rows[name] = infos[name]
    rows["netns"] = netns
    rows["ends"][:, :4] = _mapped(messages)
    rows["ends"][:, 4] = messages["ports"]
    return rows


def choose_sockets(
    rows: NDArray[Any], filters: Filters, cgroups: Collection[int] = ()
) -> NDArray[Any]:
    """Those that pass the filters, as in BPF; not by process: see listing.py.

    cgroups: ids of those that the filter names, and of all below them.
    """
    keep = np.ones(len(rows), bool)
    if filters.namespaces:
        keep &= np.isin(rows["netns"], _u64(space.cookie for space in filters.namespaces))
    if filters.cgroups:
        keep &= np.isin(rows["cgroup"], _u64(cgroups))
    if filters.users:
        keep &= np.isin(rows["uid"], _u64(filters.users))
    ports = rows["ends"][:, 4]
    local, remote = ports >> np.uint64(16), ports & np.uint64(0xFFFF)
    if filters.flags & (Flag.PORTS | Flag.LOCAL | Flag.REMOTE | Flag.PAIRS):
        one = np.isin(local, _u64(filters.ports + filters.local_ports))
        one |= np.isin(remote, _u64(filters.ports + filters.remote_ports))
        keep &= one | np.isin(ports, _u64(near << 16 | far for near, far in filters.pairs))
    if filters.family:
        is_ipv4 = _lies_in(rows["ends"][:, :2], ipaddress.IPv6Network("::ffff:0:0/96"))
        keep &= is_ipv4 == (filters.family == 4)
    if filters.addresses:
        near = np.zeros(len(rows), bool)
        for network in filters.addresses:
            near |= _lies_in(rows["ends"][:, :2], network)
            near |= _lies_in(rows["ends"][:, 2:4], network)
        keep &= near
    return rows[keep]


def _lies_in(
    words: NDArray[np.uint64], network: ipaddress.IPv4Network | ipaddress.IPv6Network
) -> NDArray[np.bool_]:
    """Which addresses, (n, 2) words, a network has."""
    first, bits = network.network_address.packed, network.prefixlen
    if isinstance(network, ipaddress.IPv4Network):
        first, bits = bytes(10) + b"\xff\xff" + first, bits + MAPPED_BITS
    mask = ((1 << bits) - 1 << 128 - bits).to_bytes(16, "big")
    inside: NDArray[np.bool_] = (
        words & np.frombuffer(mask, "=u8") == np.frombuffer(first, "=u8")
    ).all(1)
    return inside


def _u64(values: Any) -> NDArray[np.uint64]:
    return np.array(list(values), np.uint64)


def _read(room: NDArray[np.uint8], at: NDArray[np.int64], kind: np.dtype[Any]) -> NDArray[Any]:
    """(n,) values at these offsets."""
    rows = sliding_window_view(room, kind.itemsize)[at]
    values: NDArray[Any] = rows.view(kind)[:, 0]
    return values


def _value(
    room: NDArray[np.uint8], at: NDArray[np.int64], size: NDArray[np.int64], kind: np.dtype[Any]
) -> NDArray[Any]:
    """(n,) values of attributes, with zeros behind those that are shorter."""
    octets = sliding_window_view(room, kind.itemsize)[at]
    if (size < kind.itemsize).any():
        octets *= np.arange(kind.itemsize) < size[:, np.newaxis]
    values: NDArray[Any] = octets.view(kind)[:, 0]
    return values


def _attributes(
    room: NDArray[np.uint8], at: NDArray[np.int64], end: NDArray[np.int64], kinds: Sequence[int]
) -> dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Of each message: where the value of an attribute is, and its bytes; both 0 without it."""
    found = {kind: (np.zeros_like(at), np.zeros_like(at)) for kind in kinds}
    who = np.arange(len(at))
    while len(who := who[at[who] + 4 <= end[who]]):
        head = _read(room, at[who], np.dtype("=u2, =u2"))
        size, kind = head["f0"].astype(np.int64), head["f1"] & _ATTRIBUTE_MASK
        whole = (size >= 4) & (size <= end[who] - at[who])
        who, size, kind = who[whole], size[whole], kind[whole]
        for one, (places, sizes) in found.items():
            mine = kind == one
            places[who[mine]], sizes[who[mine]] = at[who[mine]] + 4, size[mine] - 4
        at[who] += (size + 3) & ~3
    return found


def _mapped(messages: NDArray[Any]) -> NDArray[np.uint64]:
    """(n, 4) words of both addresses, IPv4 as v4-mapped."""
    words: NDArray[np.uint64] = messages["addresses"].copy()
    is_ipv4 = messages["family"] == AF_INET
    first = words[is_ipv4][:, (0, 2)] & np.uint64(0xFFFFFFFF)
    words[is_ipv4] = 0
    for number in (0, 1):
        words[is_ipv4, 2 * number + 1] = first[:, number] << np.uint64(32) | _MAPPED_WORD
    return words
