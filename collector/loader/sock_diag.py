# SPDX-License-Identifier: Apache-2.0
"""Lists the open connections by sock_diag, where the kernel has no socket iterator.

By the layouts of linux/netlink.h, linux/inet_diag.h and linux/tcp.h: each capture asks, and the
import of pyroute2 takes a quarter of a second; it also needs 0.2 ms for a socket, and decodes the
bit fields of tcp_info wrongly. Like the iterator this leaves out listening, closed and time-wait
sockets and requests.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.linux.netns import cookie_of, run_inside
from tcpkmon.collector.loader.following import descendants, sockets
from tcpkmon.collector.loader.tcp_info import ECN, FROM_MEMORY, MEMORY_WORDS, TCP_INFO
from tcpkmon.collector.plan.columns import Layout
from tcpkmon.collector.plan.filters import Address, Filters, Flag
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.formats.base.control import EXISTING
from tcpkmon.formats.base.errors import KernelError
from tcpkmon.formats.base.tcp_info import FROM_INFO

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_ERROR, _DONE = 2, 3  # NLMSG_...
_REQUEST_FLAGS = 0x1 | 0x100  # NLM_F_REQUEST, NLM_F_ROOT
AF_INET, AF_INET6 = 2, 10
_TCP = 6
STATES = sum(1 << state for state in (1, 2, 3, 4, 5, 8, 9, 11))
"""Established to closing, without TIME_WAIT (6), CLOSE (7) and LISTEN (10)."""
_EVERY_STATE = 0xFFFFFFFF
Answer = tuple[bytes, list[int]]  # a datagram, and the offsets of its messages

# Attributes of linux/inet_diag.h: the first three are requested, the kernel always adds the others.
INFO, _CONG, _SKMEMINFO, _MARK, CGROUP = 2, 4, 7, 15, 21
_DATAGRAM_BYTES = 1 << 16  # the kernel fills at most 32 KiB
_TIMEOUT_S = 30.0
_ASKED = sum(1 << (attribute - 1) for attribute in (INFO, _CONG, _SKMEMINFO))
ATTRIBUTE_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER

# struct nlmsghdr, and struct inet_diag_msg, 72 bytes:
#
#      0        1       2       3         4       6       8     24    40   44       52
#     +--------+-------+-------+---------+-------+-------+-----+-----+----+--------+---
#     | family | state | timer | retrans | sport | dport | src | dst | if | cookie | expires,
#     +--------+-------+-------+---------+-------+-------+-----+-----+----+--------+---
#       rqueue, wqueue, uid, inode (u32 each); ports and addresses in network order
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
"""struct inet_diag_req_v2, for any ports and addresses."""
_MESSAGE = struct.Struct("=BBBB2s2s16s16sIQIIIII")
_ATTRIBUTE = struct.Struct("=HH")
_MAPPED = bytes(10) + b"\xff\xff"


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection in sock_diag's answer."""

    cookie: int
    """Of the socket; unique since boot."""
    netns: int
    """Cookie of the network namespace; 0 where the kernel has no cookies."""
    family: int
    state: int
    local: bytes
    """16 bytes, IPv4 as v4-mapped, network order."""
    remote: bytes
    local_port: int
    remote_port: int
    receive_queue_bytes: int
    send_queue_bytes: int
    inode: int
    """0: no process has the socket open."""
    pid: int
    """The process of --pid that has it open; 0 without --pid."""
    info: bytes
    """struct tcp_info, of this kernel's length."""
    memory: bytes
    """INET_DIAG_SKMEMINFO: u32 words."""
    congestion: bytes
    """Name of the algorithm."""
    mark: int
    cgroup: int
    uid: int


def _messages(data: bytes) -> Iterator[tuple[int, int]]:
    """Offset and type of each message of a datagram."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _flags, _seq, _port = _HEADER.unpack_from(data, offset)
        if not _HEADER.size <= length <= len(data) - offset:
            return
        yield offset, kind
        offset += (length + 3) & ~3


def list_connections(
    namespaces: Iterable[int], filters: Filters, every: bool = False
) -> list[Connection]:
    """The open connections of these network namespaces (descriptors) that pass the filters.

    Each is listed once. every: sockets of all states. KernelError where the kernel has no tcp_diag.
    """
    states = _EVERY_STATE if every else STATES
    answers = (
        (cookie_or_0(one), one, run_inside(one, partial(_dump, states))) for one in namespaces
    )
    found: dict[tuple[int, int], Connection] = {}
    for part in choose(answers, filters, every):
        found.update(part)
    return list(found.values())


def choose(
    answers: Iterable[tuple[int, int, Iterable[Answer]]],
    filters: Filters,
    every: bool = False,
) -> Iterator[dict[tuple[int, int], Connection]]:
    """The connections that pass, by namespace and cookie; answers: cookie, number, datagrams."""
    pids = {inode: pid for pid in descendants(filters.pids) for inode in sockets(pid)}
    cgroups = cgroups_of(filters)
    wanted = {space.cookie for space in filters.namespaces}
    selective = bool(filters.flags & ~(Flag.NETNS | Flag.CGROUP | Flag.PID | Flag.USER))
    for netns, number, datagrams in answers:
        if wanted and netns not in wanted:
            continue
        for data, offsets in datagrams:
            found: dict[tuple[int, int], Connection] = {}
            for offset in offsets:
                connection = _parse(data, offset, netns, pids, every)
                if (
                    connection is not None
                    and (not filters.pids or connection.pid)
                    and (not filters.cgroups or connection.cgroup in cgroups)
                    and (not filters.users or connection.uid in filters.users)
                    and (not selective or _passes(filters, connection))
                ):
                    found[netns or number, connection.cookie] = connection
            yield found


def make_entries(layout: Layout, connections: Sequence[Connection], mono_ns: int) -> NDArray[Any]:
    """An entry of location EXISTING for each connection: shape (n,), of layout.dtype.

    As in a ring, mono_ns (u64) is at byte 4, and there are no sequence numbers yet. Columns that
    sock_diag does not have are 0: sequence numbers of TCP, identity, CPU, segment.
    """
    entries = np.zeros(len(connections), layout.dtype)
    if not connections:
        return entries
    entries["tv_sec"], entries["tv_usec"] = np.array([mono_ns], np.uint64).view(np.uint32)
    for name, values in _columns(connections, mono_ns):
        if name in (layout.dtype.names or ()):
            entries[name] = values
    return entries


def list_batch(layout: Layout, namespaces: Iterable[int], filters: Filters, cpu: int) -> Batch:
    """The open connections, as a batch that the CPU of this number has just recorded."""
    now_ns = time.monotonic_ns()
    entries = make_entries(layout, list_connections(namespaces, filters), now_ns)
    serials = np.arange(1, len(entries) + 1)
    for name, value in (("seq_no", serials), ("serial", serials), ("cpu", cpu)):
        if name in (entries.dtype.names or ()):
            entries[name] = value
    return Batch(cpu, entries, now_ns)


def _columns(connections: Sequence[Connection], mono_ns: int) -> Iterator[tuple[str, Any]]:
    """Every column that sock_diag has, in the kernel's integers."""
    infos = _rows([one.info for one in connections], TCP_INFO.itemsize).view(TCP_INFO)[:, 0]
    memory = _rows([one.memory for one in connections], 4 * MEMORY_WORDS).view("=u4")
    yield "location", EXISTING
    yield "time_ns", mono_ns
    yield "lport", [one.local_port for one in connections]
    yield "rport", [one.remote_port for one in connections]
    yield "rcv_sb_cc", [one.receive_queue_bytes for one in connections]
    yield "snd_sb_cc", [one.send_queue_bytes for one in connections]
    yield "state", [one.state for one in connections]
    yield "family", [one.family for one in connections]
    yield "netns", np.array([one.netns for one in connections], np.uint64)
    yield "pid", [one.pid for one in connections]
    yield "sk_mark", [one.mark for one in connections]
    yield "uid", np.array([one.uid for one in connections], np.uint32)
    yield "cgroup", np.array([one.cgroup for one in connections], np.uint64)
    yield "laddr", _rows([one.local for one in connections], 16).view("V16")[:, 0]
    yield "raddr", _rows([one.remote for one in connections], 16).view("V16")[:, 0]
    yield "ca_name", _rows([one.congestion for one in connections], 16).view("V16")[:, 0]
    yield "snd_cwnd", infos["snd_cwnd"] * infos["snd_mss"]
    yield "ecn_flags", sum(np.where(infos["options"] & bit, flag, 0) for bit, flag in ECN)
    yield from (("snd_wscale", infos["wscales"] & 15), ("rcv_wscale", infos["wscales"] >> 4))
    for name, member in FROM_INFO.items():
        yield name, infos[member]
    for name, word in FROM_MEMORY.items():
        yield name, memory[:, word]


def _rows(parts: Sequence[bytes], width: int) -> NDArray[np.uint8]:
    """Byte strings as rows of `width` bytes, cut or padded with zeros."""
    joined = b"".join(part[:width].ljust(width, b"\0") for part in parts)
    return np.frombuffer(joined, np.uint8).reshape(len(parts), width)


TOLD = frozenset(name for name, _ in _columns((), 0))
"""The names of all columns that make_entries() fills."""


def _dump(states: int = STATES) -> list[Answer]:
    """The answers for both families in this thread's namespace: datagrams, message offsets."""
    answers: list[Answer] = []
    try:
        with open_socket() as wire:
            answers += ask(wire, states)
    except OSError as error:
        raise KernelError(
            f"the kernel does not list its connections: {os.strerror(error.errno or 0)}",
            "load the modules inet_diag and tcp_diag, or capture with --no-existing",
        ) from error
    return answers


def open_socket() -> socket.socket:
    """A socket of sock_diag, in this thread's namespace."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)
    made.bind((0, 0))
    return made


def ask(wire: socket.socket, states: int = STATES) -> Iterator[Answer]:
    """The answers for both families to a socket of open_socket()'s: datagrams, message offsets."""
    wire.settimeout(_TIMEOUT_S)
    for family in (AF_INET, AF_INET6):
        wire.send(_request(family, states))
        yield from _receive(wire)


def _request(family: int, states: int) -> bytes:
    length = _HEADER.size + _REQUEST.size
    head = _HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _REQUEST_FLAGS, 0, 0)
    return head + _REQUEST.pack(family, _TCP, _ASKED, states)


def _receive(wire: socket.socket) -> Iterator[Answer]:
    """The datagrams of one dump, each with the offsets of its messages; OSError where it failed."""
    while True:
        data = wire.recv(_DATAGRAM_BYTES)
        offsets = []
        for offset, kind in _messages(data):
            if kind == _SOCK_DIAG_BY_FAMILY:
                offsets.append(offset)
            elif kind in (_ERROR, _DONE):
                if offsets:
                    yield data, offsets
                # The first word of both is 0 or the negative error.
                words = data[offset + _HEADER.size :][:4]
                code = int.from_bytes(words, sys.byteorder, signed=True)
                if code < 0:
                    raise OSError(-code, os.strerror(-code))
                return
        if offsets:
            yield data, offsets


def _parse(data: bytes, offset: int, netns: int, pids: dict[int, int], every: bool = False
) -> Connection | None:  # fmt: skip
    """A message's connection. every: not only full sockets."""
    (length,) = struct.unpack_from("=I", data, offset)
    end = offset + length
    start = offset + _HEADER.size
    if end - start < _MESSAGE.size:
        return None
    (
        family, state, _timer, _retrans, lport, rport, local, remote, _device, cookie, _expires,
        receive_queue, send_queue, uid, inode,
    ) = _MESSAGE.unpack_from(data, start)  # fmt: skip
    attributes: dict[int, bytes] = {}
    at = start + _MESSAGE.size
    while at + 4 <= end:
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if not 4 <= size <= end - at:
            break
        attributes[kind & ATTRIBUTE_MASK] = data[at + 4 : at + size]
        at += (size + 3) & ~3
    info = attributes.get(INFO)
    if not every and (info is None or not STATES >> state & 1):
        return None  # a time-wait socket in the substate FIN_WAIT2, or a request
    if family == AF_INET:
        local, remote = _MAPPED + local[:4], _MAPPED + remote[:4]
    return Connection(
        cookie, netns, family, state, local, remote,
        int.from_bytes(lport, "big"),
        int.from_bytes(rport, "big"),
        receive_queue,
        send_queue,
        inode,
        pids.get(inode, 0) if inode else 0,
        info or b"",
        attributes.get(_SKMEMINFO, b""),
        attributes.get(_CONG, b"").partition(b"\0")[0],
        int.from_bytes(attributes.get(_MARK, b"")[:4], sys.byteorder),
        int.from_bytes(attributes.get(CGROUP, b"")[:8], sys.byteorder),
        uid,
    )  # fmt: skip


def _passes(filters: Filters, one: Connection) -> bool:
    return filters.accepts(
        _address(one.local), one.local_port, _address(one.remote), one.remote_port
    )


@lru_cache(4096)
def _address(packed: bytes) -> Address:
    return ipaddress.IPv6Address(packed)


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


def cookie_or_0(namespace: int) -> int:
    """The cookie of a namespace; 0 where the kernel has no cookies."""
    try:
        return cookie_of(namespace)
    except KernelError:
        return 0
