# SPDX-License-Identifier: Apache-2.0
"""The TCP segments in packets: link layer, IPv4 and IPv6 with their options, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
KEPT = 192
"""Bytes of each packet that are looked at: all its headers."""
_ETHERNET, _SLL, _SLL2 = 1, 113, 276
_NULL, _LOOP = 0, 108
_PLAIN = (101, 12, 14, 228, 229)
_VLANS = (0x8100, 0x88A8, 0x9100)
_MOST_TAGS = 2
_IP4, _IP6 = 0x0800, 0x86DD
_TCP, _FRAGMENT = 6, 44
_EXTENSIONS = (0, 43, 60, _FRAGMENT)
_MOST_EXTENSIONS = 4
_MAPPED = np.frombuffer(b"\0" * 10 + b"\xff\xff", np.uint8)


@dataclass(frozen=True)
class Segments:
    """n packets. is_tcp: (n,) whether the headers of a TCP segment are there; what follows is only
    good for those. source, target: (n, 18) bytes, address (IPv4 as v4-mapped) and port. seq, ack,
    length (payload), flags: (n,) int64.
    """

    is_tcp: NDArray[np.bool_]
    source: NDArray[np.uint8]
    target: NDArray[np.uint8]
    seq: Array
    ack: Array
    length: Array
    flags: Array

    def take(self, at: Array | slice) -> Segments:
        """Those of some packets."""
        return Segments(*(getattr(self, one.name)[at] for one in fields(self)))

    def joined(self, more: Segments) -> Segments:
        """These, then others."""
        return Segments(*(
            np.concatenate([getattr(self, one.name), getattr(more, one.name)])
            for one in fields(self)
        ))  # fmt: skip


class _Rows:
    """The first bytes of packets, zero behind their ends."""

    def __init__(self, data: bytes | bytearray, starts: Array, captured: Array) -> None:
        padded = np.frombuffer(bytes(data) + bytes(KEPT), np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(padded, KEPT)
        self.bytes = windows[starts]
        self.captured = np.minimum(captured, KEPT)
        self._rows = np.arange(len(starts))

    def byte(self, at: Array | int) -> Array:
        """(n,) int64 the byte at each offset; 0 behind the packet's end."""
        where = np.broadcast_to(np.asarray(at, np.int64), len(self._rows))
        found = self.bytes[self._rows, np.clip(where, 0, KEPT - 1)].astype(np.int64)
        return np.asarray(np.where((where >= 0) & (where < self.captured), found, 0))

    def word(self, at: Array | int) -> Array:
        return self.byte(at) << 8 | self.byte(np.asarray(at) + 1)

    def long(self, at: Array | int) -> Array:
        return self.word(at) << 16 | self.word(np.asarray(at) + 2)

    def text(self, at: Array, size: int) -> NDArray[np.uint8]:
        """(n, size) bytes from each offset on."""
        where = np.clip(at[:, None] + np.arange(size), 0, KEPT - 1)
        return self.bytes[self._rows[:, None], where]


def parse(data: bytes | bytearray, columns: Mapping[str, Array]) -> Segments:
    """The segments in packets, whose columns are those of Batch."""
    rows = _Rows(data, columns["starts"], columns["captured"])
    at, kind = _network(rows, columns["links"])
    version = rows.byte(at) >> 4
    is_ip4 = (version == 4) & ((kind == _IP4) | (kind == 0))
    is_ip6 = (version == 6) & ((kind == _IP6) | (kind == 0))
    size4 = (rows.byte(at) & 15) * 4
    total4 = rows.word(at + 2)
    on_wire = columns["lengths"] - at
    # 0: the device was to cut it into segments, or it is larger than the field.
    total4 = np.where(total4 == 0, on_wire, total4)
    is_tcp4 = is_ip4 & (rows.byte(at + 9) == _TCP) & (rows.word(at + 6) & 0x1FFF == 0)
    size6, is_tcp6 = _extensions(rows, at, is_ip6)
    total6 = rows.word(at + 4)
    total6 = np.where(total6 == 0, on_wire, total6 + 40)
    size = np.where(is_ip4, size4, size6)
    tcp = at + size
    header = (rows.byte(tcp + 12) >> 4) * 4
    length = np.where(is_ip4, total4, total6) - size - header
    whole = (tcp + 20 <= rows.captured) & (size >= 20) & (header >= 20) & (length >= 0)
    ends = []
    for offset4, offset6, port in ((12, 8, 0), (16, 24, 2)):
        wide = rows.text(at + offset6, 16)
        mapped = np.concatenate(
            [np.broadcast_to(_MAPPED, (len(wide), 12)), rows.text(at + offset4, 4)], axis=1
        )
        address = np.where(is_ip4[:, None], mapped, wide)
        ends.append(np.concatenate([address, rows.text(tcp + port, 2)], axis=1))
    return Segments(
        is_tcp=(is_tcp4 | is_tcp6) & whole, source=ends[0], target=ends[1], seq=rows.long(tcp + 4),
        ack=rows.long(tcp + 8), length=length, flags=rows.byte(tcp + 13),
    )  # fmt: skip


def _network(rows: _Rows, links: Array) -> tuple[Array, Array]:
    """Where the IP header of each packet begins, and its Ethernet type; 0: none is told."""
    at = np.full(len(links), KEPT, np.int64)
    kind = np.full(len(links), -1, np.int64)
    for link, offset, field in ((_ETHERNET, 14, 12), (_SLL, 16, 14), (_SLL2, 20, 0)):
        of = links == link
        at[of], kind[of] = offset, rows.word(field)[of]
    for _ in range(_MOST_TAGS):
        tagged = np.isin(kind, _VLANS)
        if not tagged.any():
            break
        kind = np.where(tagged, rows.word(at + 2), kind)
        at = np.where(tagged, at + 4, at)
    is_null = (links == _NULL) | (links == _LOOP)
    at[is_null], kind[is_null] = 4, 0
    is_plain = np.isin(links, _PLAIN)
    at[is_plain], kind[is_plain] = 0, 0
    return at, kind


def _extensions(rows: _Rows, at: Array, is_ip6: Array) -> tuple[Array, Array]:
    """The size of IPv6 headers with extensions, and whether TCP follows them."""
    size = np.full(len(at), 40, np.int64)
    following = np.where(is_ip6, rows.byte(at + 6), -1)
    for _ in range(_MOST_EXTENSIONS):
        more = np.isin(following, _EXTENSIONS)
        if not more.any():
            break
        here = at + size
        is_fragment = following == _FRAGMENT
        later = is_fragment & (rows.word(here + 2) & 0xFFF8 != 0)
        step = np.where(is_fragment, 8, (rows.byte(here + 1) + 1) * 8)
        following = np.where(more, np.where(later, -1, rows.byte(here)), following)
        size = np.where(more, size + step, size)
    return size, following == _TCP
