# SPDX-License-Identifier: Apache-2.0
"""The TCP sockets of network namespaces, by sock_diag: for SOCKET_EXISTS of logs, and --reconcile.

pyroute2 opens the netlink socket and makes the request. The answers are decoded here, many sockets
at once: pyroute2 needs 0.2 ms for a socket.

    datagram  |header|inet_diag_msg| attribute | attribute |header|inet_diag_msg| attribute ...
                                     size, kind
    all messages of some datagrams step from attribute to attribute together.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pyroute2.netlink import NLM_F_REQUEST, NLM_F_ROOT, NLMSG_DONE, NLMSG_ERROR
from pyroute2.netlink.diag import SOCK_DIAG_BY_FAMILY, DiagSocket, inet_diag_req
from pyroute2.netlink.exceptions import NetlinkError

from tcpkmon.collector.linux.netns import cookie_of, run_inside
from tcpkmon.collector.loader.tcp_info import TCP_INFO
from tcpkmon.collector.plan.filters import MAPPED_BITS, Filters, Flag
from tcpkmon.formats.base.errors import KernelError
from tcpkmon.formats.base.tcp import SYNCHRONIZED, State

AF_INET, AF_INET6 = 2, 10
_TCP = 6
STATES = sum(1 << state for state in (State.SYN_SENT, State.SYN_RECV, *SYNCHRONIZED))
"""Established to closing, without TIME_WAIT (6), CLOSE (7) and LISTEN (10)."""
EVERY_STATE = 0xFFFFFFFF
Answer = tuple[bytes, list[int]]  # a datagram, and the offsets of its messages
Wire = tuple[int, socket.socket]
"""The cookie of a namespace, or 0, and a socket of sock_diag there."""

_INFO, _CGROUP = 2, 21
"""Attributes of linux/inet_diag.h; the kernel adds the second one unasked."""
_DATAGRAM_BYTES = 1 << 16  # the kernel fills at most 32 KiB
_TIMEOUT_S = 30.0
_AT_ONCE = 32
"""Datagrams that are decoded at once: 2,500 sockets, 2 ms."""
HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: its first word is the length."""
MEMBERS = ("bytes_acked", "bytes_received", "total_retrans", "rcv_ooopack")
"""Members of struct tcp_info that are compared; 0 where the kernel is too old to have them."""
SOCKET = np.dtype(
    [("cookie", "=u8"), ("netns", "=u8"), ("ends", "=u8", 5), ("cgroup", "=u8"), ("uid", "=u4"),
     ("inode", "=u4"), ("state", "=u1"), ("family", "=u1")]
    + [(name, TCP_INFO[name]) for name in MEMBERS]
)  # fmt: skip
"""ends: words of the local and of the remote address (IPv4 as v4-mapped, network order), then
local port * 2^16 + remote port. inode: 0: no process has the socket open."""
_MESSAGE = np.dtype(
    [("family", "u1"), ("state", "u1"), ("timer", "u1"), ("resent", "u1")]
    + [("ports", ">u4"), ("addresses", "=u8", 4), ("device", "=u4"), ("cookie", "=u8")]
    + [(name, "=u4") for name in ("expires", "rqueue", "wqueue", "uid", "inode")]
)
"""struct inet_diag_msg of linux/inet_diag.h."""
_ATTRIBUTE_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_MAPPED_WORD = 0xFFFF0000


def list_sockets(namespaces: Iterable[int]) -> NDArray[Any]:
    """(n,) of SOCKET: those of all states in these network namespaces (descriptors), each once.

    KernelError where the kernel has no tcp_diag.
    """
    found: dict[int, NDArray[Any]] = {}
    for namespace in namespaces:
        netns = cookie_or_0(namespace)
        answers = run_inside(namespace, list_answers)
        rows = decode(answers, netns, every=True)
        last = {cookie: place for place, cookie in enumerate(rows["cookie"].tolist())}
        found[netns or namespace] = rows[list(last.values())]
    return np.concatenate([np.empty(0, SOCKET), *found.values()])


def list_answers() -> list[Answer]:
    """The answers for both families and all states in this thread's namespace. KernelError."""
    try:
        with _open() as wire:
            return list(ask(wire, EVERY_STATE))
    except (NetlinkError, OSError) as error:
        code = getattr(error, "code", None) or getattr(error, "errno", None) or 0
        raise KernelError(
            f"the kernel does not list its connections: {os.strerror(abs(code))}",
            "load the modules inet_diag and tcp_diag, or capture with --no-existing",
        ) from error


def ends_of(row: Any) -> tuple[tuple[bytes, int], tuple[bytes, int]]:
    """The local and the remote address (16 bytes, IPv4 as v4-mapped) and port of a row."""
    words, ports = row["ends"][:4].tobytes(), int(row["ends"][4])
    return (words[:16], ports >> 16), (words[16:], ports & 0xFFFF)


def open_wire(namespace: int) -> Wire:
    """Make it while this process may enter the namespace (a descriptor). OSError, KernelError."""
    return cookie_or_0(namespace), run_inside(namespace, _open)


def _open() -> socket.socket:
    """In this thread's namespace. A plain socket: pyroute2 would decode what it receives."""
    with DiagSocket() as diag:
        diag.bind()
        return socket.socket(fileno=os.dup(diag.fileno()))


def cookie_or_0(namespace: int) -> int:
    """The cookie of a namespace; 0 where the kernel has no cookies."""
    try:
        return cookie_of(namespace)
    except KernelError:
        return 0


def list_by(wires: Iterable[Wire], filters: Filters) -> Iterator[NDArray[Any]]:
    """The open connections that pass the filters: (n,) of SOCKET, piece by piece.

    A datagram, about 80 sockets, may give an empty piece, so that the caller can do something else
    meanwhile. A socket may be in two pieces if others are opened meanwhile. OSError where the
    kernel refuses.
    """
    nothing, cgroups = np.empty(0, SOCKET), cgroups_of(filters)
    for netns, wire in wires:
        waiting: list[Answer] = []
        for answer in ask(wire):
            waiting.append(answer)
            if len(waiting) < _AT_ONCE:
                yield nothing
                continue
            yield choose_sockets(decode(waiting, netns), filters, cgroups)
            waiting = []
        yield choose_sockets(decode(waiting, netns), filters, cgroups)


def ask(wire: socket.socket, states: int = STATES) -> Iterator[Answer]:
    """The answers for both families to a socket of DiagSocket's: datagrams, message offsets."""
    wire.settimeout(_TIMEOUT_S)
    for family in (AF_INET, AF_INET6):
        wire.send(_request(family, states))
        yield from _receive(wire)


def _request(family: int, states: int) -> bytes:
    request = inet_diag_req()
    request["header"]["type"] = SOCK_DIAG_BY_FAMILY
    request["header"]["flags"] = NLM_F_REQUEST | NLM_F_ROOT
    request["sdiag_family"] = family
    request["sdiag_protocol"] = _TCP
    request["idiag_ext"] = 1 << (_INFO - 1)
    request["idiag_states"] = states
    request.encode()
    return bytes(request.data)


def _receive(wire: socket.socket) -> Iterator[Answer]:
    """The datagrams of one dump, each with the offsets of its messages; OSError where it failed."""
    while True:
        data = wire.recv(_DATAGRAM_BYTES)
        offsets = []
        for offset, kind in _messages(data):
            if kind == SOCK_DIAG_BY_FAMILY:
                offsets.append(offset)
            elif kind in (NLMSG_ERROR, NLMSG_DONE):
                if offsets:
                    yield data, offsets
                # The first word of both is 0 or the negative error.
                words = data[offset + HEADER.size :][:4]
                code = int.from_bytes(words, sys.byteorder, signed=True)
                if code < 0:
                    raise OSError(-code, os.strerror(-code))
                return
        if offsets:
            yield data, offsets


def _messages(data: bytes) -> Iterator[tuple[int, int]]:
    """Offset and type of each message of a datagram."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, kind, _flags, _seq, _port = HEADER.unpack_from(data, offset)
        if not HEADER.size <= length <= len(data) - offset:
            return
        yield offset, kind
        offset += (length + 3) & ~3


def decode(answers: Sequence[Answer], netns: int, every: bool = False) -> NDArray[Any]:
    """(n,) of SOCKET: the sockets of these datagrams, in one namespace.

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
    found = _attributes(room, at + HEADER.size + _MESSAGE.itemsize, end, [_INFO, _CGROUP])
    if not every:
        states = messages["state"].astype(np.int64)
        full = (found[_INFO][0] > 0) & (STATES >> states & 1 > 0)
        messages = messages[full]
        found = {kind: (places[full], sizes[full]) for kind, (places, sizes) in found.items()}
    rows = np.zeros(len(messages), SOCKET)
    infos = _value(room, *found[_INFO], TCP_INFO)
    for name in MEMBERS:
        rows[name] = infos[name]
    for name in ("cookie", "uid", "inode", "state", "family"):
        rows[name] = messages[name]
    rows["cgroup"] = _value(room, *found[_CGROUP], SOCKET["cgroup"])
    rows["netns"] = netns
    rows["ends"][:, :4] = _mapped(messages)
    rows["ends"][:, 4] = messages["ports"]
    return rows


def choose_sockets(
    rows: NDArray[Any], filters: Filters, cgroups: Collection[int] = ()
) -> NDArray[Any]:
    """Those that pass the filters, as in BPF; not by process.

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


def cgroups_of(filters: Filters) -> set[int]:
    """Ids of the cgroups that the filter names, and of all below them."""
    ids = set()
    for cgroup in filters.cgroups:
        for folder, _folders, _files in os.walk(cgroup.path):
            try:
                ids.add(os.stat(folder).st_ino)
            except FileNotFoundError:
                continue  # just removed
    return ids
