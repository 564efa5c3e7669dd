# SPDX-License-Identifier: Apache-2.0
"""The layouts of a MAGNeT record, struct magnet_data, and the codes of its events.

                  sockid   timestamp   event   size   data             bytes
    64 bits         0          8         16     20     24    24 or, with data, 120
    32 bits         0          4         12     16     20    20 or, with data, 68

A file is an array of such records. In those of tcpkmon, codes from FIRST_CONTROL on are no events:
the record is part of a control entry, whose text is in `sockid`, `timestamp` and the data.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

LOST, MARK, CLOCK, FIRST_EVENT = range(4)
"""Codes in files of tcpkmon. LOST: `size` records are missing here, sockid: the cause. MARK: a
user's mark, sockid: its number, size: the process. CLOCK: sockid: the time of day [ns]."""
FIRST_CONTROL = 1 << 31
HEADER, CONTROL, TEXT = range(FIRST_CONTROL, FIRST_CONTROL + 3)
"""The file's first record; the first record of a control entry; those with the text."""
MOST_LOST = (1 << 31) - 1
"""What one LOST record can count."""

TCP_WORDS = (
    "snd_wnd", "srtt", "rto", "packets_out", "retrans_out", "snd_ssthresh", "snd_cwnd", "rcv_wnd",
    "write_seq", "copied_seq",
)  # fmt: skip
"""The fields of struct magnet_tcp that are as wide as a pointer."""
TCP = ("source", "dest", *TCP_WORDS, "flags")
"""flags are the bit fields: FIN 1 SYN 2 RST 4 PSH 8 ACK 16 URG 32 ECE 64 CWR 128."""
IP = ("version", "tos", "id", "frag_off", "ttl", "protocol")
FIELDS = {"tcp": TCP, "ip": IP, "": ()}
"""By what the data of an event is, the fields of it."""
_IP_FORMATS = ("u1", "u1", "u2", "u2", "u1", "u1")
_IP_OFFSETS = (0, 1, 2, 4, 6, 7)


@dataclass(frozen=True)
class Layout:
    """order: "<" or ">". bits: 64 or 32, the width of a pointer. data: whether there is any."""

    order: str = "<"
    bits: int = 64
    data: bool = False

    @property
    def byteorder(self) -> Literal["little", "big"]:
        """As Python calls it."""
        return "big" if self.order == ">" else "little"

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """Of a record; the fields of both kinds of data lie over each other."""
        word = self.bits // 8
        start = 16 + word
        formats = [f"u{word}", "u8", "u4", "i4"]
        offsets = [0, word, word + 8, word + 12]
        names = ["sockid", "timestamp", "event", "size"]
        size = start
        if self.data:
            first = start + word  # behind both ports
            names += [*TCP, *IP]
            formats += ["u2", "u2", *[f"u{word}"] * len(TCP_WORDS), "u2", *_IP_FORMATS]
            offsets += [start, start + 2, *(first + word * n for n in range(len(TCP_WORDS) + 1))]
            offsets += [start + at for at in _IP_OFFSETS]
            size = first + word * (len(TCP_WORDS) + 1)
        return np.dtype(
            {
                "names": names,
                "formats": [self.order + one for one in formats],
                "offsets": offsets,
                "itemsize": size,
            }
        )

    @property
    def size(self) -> int:
        """Bytes of a record."""
        return self.dtype.itemsize

    @functools.cached_property
    def room(self) -> NDArray[np.int64]:
        """Where in a control record its text is."""
        word = self.bits // 8
        found: NDArray[np.int64] = np.r_[0 : word + 8, word + 16 : self.size]
        return found

    def rows(self, data: bytes | memoryview) -> NDArray[Any]:
        """The whole records in some bytes."""
        return np.frombuffer(data, self.dtype, len(data) // self.size)


def convert(
    rows: NDArray[Any], source: Layout, target: Layout, kinds: NDArray[Any]
) -> NDArray[Any]:
    """Records in another layout. kinds: what the data of each is, of FIELDS."""
    if source == target:
        return rows
    found = np.zeros(len(rows), target.dtype)
    for name in ("sockid", "timestamp", "event", "size"):
        found[name] = rows[name]
    for kind, names in FIELDS.items() if source.data and target.data else ():
        at = np.flatnonzero(kinds == kind)
        for name in names:
            values = rows[name][at]
            if name == "flags" and source.order != target.order:
                values = _turned(values)
            found[name][at] = values
    return found


def _turned(values: NDArray[Any]) -> NDArray[Any]:
    """The bits in reverse: bit fields begin with the most significant bit of a big-endian one."""
    octets = values.astype(">u2").view(np.uint8)
    turned: NDArray[Any] = np.packbits(np.unpackbits(octets), bitorder="little").view("<u2")
    return turned


NATIVE = {data: Layout("<", 64, data) for data in (False, True)}
"""The layouts that tcpkmon writes, and readers hand out: without and with data."""
EVERY = tuple(
    Layout(order, bits, data) for data in (False, True) for bits in (64, 32) for order in "<>"
)
