# SPDX-License-Identifier: Apache-2.0
"""Reads pcapng and pcap files block by block, so that each block can be written again as it is.

No library does that: python-pcapng 2.1 cannot write blocks that it does not know and reads 18,000
packets/s, dpkt 1.9 and scapy 2.8 leave out what they do not know and read 60,000; this 150,000.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.errors import DamagedError, FileError
from tcpkmon.formats.base.files import InputFile
from tcpkmon.formats.base.limits import MOST_BLOCK_BYTES, MOST_INTERFACES
from tcpkmon.formats.packets import blocks
from tcpkmon.formats.packets.blocks import Interface, enhanced, interface, section
from tcpkmon.formats.packets.headers import KEPT

_READ_BYTES = 1 << 22
_BATCH = 1 << 15
_BATCH_BYTES = 1 << 25
_GZIP = b"\x1f\x8b"
_CLASSIC = {
    0xA1B2C3D4: 6, 0xA1B23C4D: 9,
}  # fmt: skip
"""The first word of a pcap file: its times are powers of ten of a second."""
_CLASSIC_HEAD = 24
_HEADS = (blocks.SECTION, *_CLASSIC)
_PACKETS = (blocks.ENHANCED, blocks.PACKET)
_FIXED = 28
"""Bytes before a packet's data, in both kinds of blocks."""


@dataclass(slots=True)
class Block:
    """A block as it stands in the file. packet: its number in the Batch, -1: it is none. data: how
    many bytes of packet follow the head, with padding. order: of its bytes."""

    raw: bytes
    packet: int = -1
    data: int = 0
    order: str = "<"


@dataclass
class Batch:
    """Some blocks in file order, and what is known of the n packets among them.

    columns() has, (n,) each: starts, where the bytes of a packet are in `data`; captured, lengths:
    bytes, of these and on the wire; times_ns, since the epoch; links, link types; numbers of
    packets in the file, from 1, as Wireshark counts them.
    """

    blocks: list[Block] = field(default_factory=list)
    rows: list[tuple[int, ...]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.rows)

    def columns(self) -> dict[str, NDArray[Any]]:
        found = np.array(self.rows, np.int64).reshape(-1, len(_COLUMNS)).T
        return dict(zip(_COLUMNS, found, strict=True))


_COLUMNS = ("starts", "captured", "lengths", "times_ns", "links", "numbers")
_TIME_MOST = (1 << 62) - 1


class PacketFile(InputFile):
    """A pcapng or pcap file. Raises FileError for another file, DamagedError in batches().

    count: packets so far. undated: those without a time (simple packet blocks). cut: where the file
    ends in a block, None: it does not.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._buffer = io.BufferedReader(self._file, _READ_BYTES)
        self.count = self.undated = 0
        self.cut: int | None = None
        self._interfaces: list[Interface] = []
        self._order = "<"
        self._classic = 0
        self._at = 0
        head = os.pread(self._file.fileno(), _CLASSIC_HEAD, 0)
        if head[:2] == _GZIP:
            raise FileError(f"{self.path} is compressed by gzip", "unpack it with gunzip")
        words = [struct.unpack(f"{order}I", head[:4])[0] if len(head) > 3 else 0 for order in "<>"]
        if not set(words) & set(_HEADS):
            raise FileError(
                f"{self.path} is neither pcapng nor pcap",
                "record packets with tcpdump -w, dumpcap or Wireshark",
            )
        for order, word in zip("<>", words, strict=True):
            if word in _CLASSIC:
                self._order, self._classic = order, _CLASSIC[word]
        if self._classic and len(head) < _CLASSIC_HEAD:
            raise DamagedError(f"{self.path}: its head is cut off")

    def batches(self) -> Iterator[Batch]:
        """All blocks in file order; of a pcap file those that a pcapng file has in its place.

        A file that ends within a block ends before it; see cut.
        """
        batch, size = Batch(), 0
        walk = self._walk_classic if self._classic else self._walk
        for one in walk(batch):
            batch.blocks.append(one)
            size += len(one.raw)
            if len(batch.blocks) >= _BATCH or size > _BATCH_BYTES:
                yield Batch(batch.blocks, batch.rows, batch.data)
                batch.blocks, batch.rows, batch.data = [], [], bytearray()
                size = 0
        yield batch

    # pcapng

    def _walk(self, batch: Batch) -> Iterator[Block]:
        while len(head := self._buffer.read(12)) == 12:
            if int.from_bytes(head[:4], "little") == blocks.SECTION:
                self._order = self._order_of(head[8:])
                self._interfaces = []
            kind, length = struct.unpack_from(f"{self._order}II", head)
            if length < 12 or length % 4 or length > MOST_BLOCK_BYTES:
                raise self._damage(f"a block of {length:,} bytes")
            raw = head + self._buffer.read(length - 12)
            if len(raw) < length:
                break
            if raw[-4:] != raw[4:8]:
                raise self._damage("the two lengths of a block differ")
            yield self._block(kind, raw, batch)
            self._at += length
        self._end(head)

    def _order_of(self, magic: bytes) -> str:
        for order in "<>":
            if struct.unpack(f"{order}I", magic)[0] == blocks.MAGIC:
                return order
        raise self._damage("a section without its byte order")

    def _block(self, kind: int, raw: bytes, batch: Batch) -> Block:
        order = self._order
        if kind in _PACKETS:
            return self._packet(kind, raw, batch)
        if kind == blocks.SECTION:
            if len(raw) < 28:
                raise self._damage("the head of a section is too short")
            # Its length would be wrong with comments.
            return Block(raw[:16] + b"\xff" * 8 + raw[24:])
        if kind == blocks.INTERFACE:
            self._interfaces.append(self._interface(raw))
            if len(self._interfaces) > MOST_INTERFACES:
                raise self._damage(f"a section with more than {MOST_INTERFACES:,} interfaces")
        elif kind == blocks.SIMPLE:
            self.undated += 1
            self.count += 1
        return Block(raw, order=order)

    def _packet(self, kind: int, raw: bytes, batch: Batch) -> Block:
        order = self._order
        if len(raw) < 32:
            raise self._damage("a packet's block is too short")
        number, high, low, captured, length = struct.unpack_from(f"{order}IIIII", raw, 8)
        if kind == blocks.PACKET:
            number = struct.unpack_from(f"{order}H", raw, 8)[0]
        padded = captured + -captured % 4
        if padded > len(raw) - 32:
            raise self._damage("a packet is longer than its block")
        if number >= len(self._interfaces):
            raise self._damage("a packet of an interface that is not described")
        where = self._interfaces[number]
        seconds, rest = divmod(high << 32 | low, where.units)
        time_ns = (seconds + where.offset_s) * 1_000_000_000 + rest * 1_000_000_000 // where.units
        return self._add(batch, raw, captured, length, time_ns, where.link, order)

    def _add(self, batch: Batch, raw: bytes, captured: int, length: int, time_ns: int, link: int,
             order: str) -> Block:  # fmt: skip
        time_ns = max(-_TIME_MOST, min(time_ns, _TIME_MOST))
        start = len(batch.data)
        self.count += 1
        batch.data += raw[_FIXED : _FIXED + min(captured, KEPT)]
        batch.rows.append((start, min(captured, KEPT), length, time_ns, link, self.count))
        return Block(raw, len(batch.rows) - 1, captured + -captured % 4, order)

    def _interface(self, raw: bytes) -> Interface:
        order = self._order
        if len(raw) < 20:
            raise self._damage("the block of an interface is too short")
        units, offset_s = 1_000_000, 0
        for code, value in _options(raw[16:-4], order):
            if code == blocks.RESOLUTION and len(value) == 1:
                power = value[0] & 127
                if power > (63 if value[0] & 128 else 19):
                    raise self._damage("an interface with times that are too fine")
                units = (2 if value[0] & 128 else 10) ** power
            elif code == blocks.OFFSET and len(value) == 8:
                offset_s = struct.unpack(f"{order}q", value)[0]
        return Interface(struct.unpack_from(f"{order}H", raw, 8)[0], units, offset_s)

    # pcap

    def _walk_classic(self, batch: Batch) -> Iterator[Block]:
        snap, link = struct.unpack_from(f"{self._order}II", self._buffer.read(_CLASSIC_HEAD), 16)
        link &= 0xFFFF  # above it are bits of the frame check sequence
        units = 10**self._classic
        self._at = _CLASSIC_HEAD
        yield Block(section("tcpkmon"))
        yield Block(interface(link, snap=snap, resolution=self._classic))
        while len(head := self._buffer.read(16)) == 16:
            seconds, parts, captured, length = struct.unpack(f"{self._order}IIII", head)
            if captured > MOST_BLOCK_BYTES - 256:
                raise self._damage(f"a packet of {captured:,} bytes")
            packet = self._buffer.read(captured)
            if len(packet) < captured:
                break
            raw = enhanced(0, seconds * units + parts, packet, length)
            time_ns = seconds * 1_000_000_000 + parts * (1_000_000_000 // units)
            yield self._add(batch, raw, captured, length, time_ns, link, "<")
            self._at += 16 + captured
        self._end(head)

    def _end(self, rest: bytes) -> None:
        """rest: what there is of a block that is not whole."""
        if rest and not self._at:
            raise DamagedError(f"{self.path}: its head is cut off")
        if rest:
            self.cut = self._at

    def _damage(self, what: str) -> DamagedError:
        return DamagedError(f"{self.path}: {what} at offset {self._at:,}")


def _options(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        code, length = struct.unpack_from(f"{order}HH", data, at)
        if code == blocks.END:
            return
        yield code, data[at + 4 : at + 4 + length]
        at += 4 + length + -length % 4


def with_comment(one: Block, texts: list[str]) -> bytes:
    """The block of a packet with comments before its options, which stay as they are."""
    if not texts:
        return one.raw
    raw, order = one.raw, one.order
    at = _FIXED + one.data
    rest = raw[at:-4] or blocks.END_OF_OPTIONS
    added = b"".join(blocks.text_option(blocks.COMMENT, text, order) for text in texts)
    length = struct.pack(f"{order}I", at + len(added) + len(rest) + 4)
    return b"".join((raw[:4], length, raw[8:at], added, rest, length))
