# SPDX-License-Identifier: Apache-2.0
"""The packets of a device as tcpdump reads them, from a packet socket, decoded independently."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tcpkmon.collector.lab.lab import DEVICE
from tcpkmon.collector.lab.namespaces import Side

_ETH_P_ALL = 3
_OUTGOING = 4
_SO_RCVBUFFORCE = 33
_EXTENSIONS = {0, 43, 60}


@dataclass(frozen=True)
class Packet:
    """A packet of TCP or UDP: what its headers say."""

    sent: bool
    ip: tuple[int, int, int, int, int, int]
    """version, type of service, id, fragment bits, hops, protocol or next header."""
    protocol: int
    ports: tuple[int, int]
    seq: int
    ack: int
    flags: int
    size: int
    """Bytes of data."""


class Tap:
    """A packet socket at a side's device; packets() empties it."""

    def __init__(self, side: Side) -> None:
        self._socket = side.run(
            lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
        )
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
        self._socket.bind((DEVICE, _ETH_P_ALL))

    def packets(self) -> list[Packet]:
        """All packets of TCP and UDP since the last call."""
        found = []
        while True:
            try:
                data, where = self._socket.recvfrom(1 << 17, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return found
            packet = decode(data, sent=where[2] == _OUTGOING)
            if packet is not None:
                found.append(packet)

    def close(self) -> None:
        self._socket.close()


@contextmanager
def tapped(side: Side) -> Iterator[Tap]:
    """A Tap while the body runs."""
    tap = Tap(side)
    try:
        yield tap
    finally:
        tap.close()


def decode(data: bytes, sent: bool) -> Packet | None:
    """A packet that begins with its IP header; None if it is not TCP or UDP."""
    if data[0] >> 4 == 4:
        _, tos, total, ident, fragment, hops, protocol = struct.unpack_from(">BBHHHBB", data)
        at = (data[0] & 15) * 4
        end = total or len(data)
        ip = (4, tos, ident, fragment, hops, protocol)
    else:
        word, total, following, hops = struct.unpack_from(">IHBB", data)
        ip = (6, word >> 20 & 255, 0, 0, hops, following)
        at, end, protocol = 40, total + 40 if total else len(data), following
        while protocol in _EXTENSIONS:
            protocol, at = data[at], at + (data[at + 1] + 1) * 8
    if protocol == socket.IPPROTO_TCP:
        source, dest, seq, ack, offset, flags = struct.unpack_from(">HHIIBB", data, at)
        size = end - at - (offset >> 4) * 4
        return Packet(sent, ip, protocol, (source, dest), seq, ack, flags, size)
    if protocol == socket.IPPROTO_UDP:
        source, dest = struct.unpack_from(">HH", data, at)
        return Packet(sent, ip, protocol, (source, dest), 0, 0, 0, end - at - 8)
    return None
