# SPDX-License-Identifier: Apache-2.0
"""The TCP packets in a file that tcpdump wrote on an Ethernet device."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tcpkmon.formats.base.errors import DamagedError

_MAGIC, _ETHERNET, _TCP = 0xA1B2C3D4, 1, 6


@dataclass(frozen=True)
class Packet:
    """The fields that a record of the schema magnet has too, with its names."""

    at_ns: int
    """Of the clock of the day."""
    outgoing: bool
    version: int
    tos: int
    id: int
    frag_off: int
    ttl: int
    protocol: int
    seq_lo: int
    ack: int
    flags: int
    size: int
    """Bytes of data."""

    @property
    def key(self) -> tuple[int, ...]:
        """All but the time and the direction."""
        return (self.version, self.tos, self.id, self.frag_off, self.ttl, self.protocol,
                self.seq_lo, self.ack, self.flags, self.size)  # fmt: skip


def read(path: Path, address4: str, address6: str) -> Iterator[Packet]:
    """Its TCP packets; those from one of these addresses are outgoing. Raises DamagedError."""
    from socket import AF_INET, AF_INET6, inet_pton

    own = inet_pton(AF_INET, address4), inet_pton(AF_INET6, address6)
    raw = path.read_bytes()
    magic, _, _, _, _, _, link = struct.unpack_from("=IHHiIII", raw)
    if (magic, link) != (_MAGIC, _ETHERNET):
        raise DamagedError(f"{path} is no pcap file of Ethernet and this byte order")
    at = 24
    while at < len(raw):
        seconds, us, kept, _ = struct.unpack_from("=4I", raw, at)
        frame = raw[at + 16 : at + 16 + kept]
        at += 16 + kept
        packet = _parse(seconds * 10**9 + us * 1000, frame[14:], own)
        if packet is not None:
            yield packet


def _parse(at_ns: int, ip: bytes, own: tuple[bytes, bytes]) -> Packet | None:
    version = ip[0] >> 4
    if version == 4:
        tos, total, number, fragment, ttl, protocol = struct.unpack_from(">xBHHHBB", ip)
        source, length, head = ip[12:16], total, (ip[0] & 15) * 4
    else:
        flow, payload, protocol, ttl = struct.unpack_from(">IHBB", ip)
        source, length, head = ip[8:24], 40 + payload, 40
        tos, number, fragment = flow >> 20 & 255, 0, 0
    if protocol != _TCP:
        return None
    seq, ack, offset, flags = struct.unpack_from(">IIBB", ip, head + 4)
    return Packet(
        at_ns, source in own, version, tos, number, fragment, ttl, protocol,
        (seq + (flags >> 1 & 1)) % (1 << 32), ack, flags,
        length - head - (offset >> 4) * 4,
    )  # fmt: skip
