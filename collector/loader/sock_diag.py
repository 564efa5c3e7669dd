# SPDX-License-Identifier: Apache-2.0
"""Asks sock_diag for the TCP sockets of a network namespace.

pyroute2 opens the netlink socket and makes the request. The answers are decoded in socket_table.py:
pyroute2 needs 0.2 ms for a socket and decodes the bit fields of tcp_info wrongly.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator

from pyroute2.netlink import NLM_F_REQUEST, NLM_F_ROOT, NLMSG_DONE, NLMSG_ERROR
from pyroute2.netlink.diag import SOCK_DIAG_BY_FAMILY, DiagSocket, inet_diag_req
from pyroute2.netlink.exceptions import NetlinkError

from tcpkmon.collector.linux.netns import cookie_of, run_inside
from tcpkmon.formats.base.errors import KernelError

AF_INET, AF_INET6 = 2, 10
_TCP = 6
STATES = sum(1 << state for state in (1, 2, 3, 4, 5, 8, 9, 11))
"""Established to closing, without TIME_WAIT (6), CLOSE (7) and LISTEN (10)."""
EVERY_STATE = 0xFFFFFFFF
Answer = tuple[bytes, list[int]]  # a datagram, and the offsets of its messages
Wire = tuple[int, socket.socket]
"""The cookie of a namespace, or 0, and a socket of sock_diag there."""

# Attributes of linux/inet_diag.h: the first three are requested, the kernel always adds the others.
INFO, CONGESTION, MEMORY, MARK, CGROUP = 2, 4, 7, 15, 21
_DATAGRAM_BYTES = 1 << 16  # the kernel fills at most 32 KiB
_TIMEOUT_S = 30.0
_ASKED = sum(1 << (attribute - 1) for attribute in (INFO, CONGESTION, MEMORY))
HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: its first word is the length."""


def list_answers(states: int = STATES) -> list[Answer]:
    """The answers for both families in this thread's namespace. KernelError."""
    try:
        with _open() as wire:
            return list(ask(wire, states))
    except (NetlinkError, OSError) as error:
        code = getattr(error, "code", None) or getattr(error, "errno", None) or 0
        raise KernelError(
            f"the kernel does not list its connections: {os.strerror(abs(code))}",
            "load the modules inet_diag and tcp_diag, or capture with --no-existing",
        ) from error


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
    request["idiag_ext"] = _ASKED
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
