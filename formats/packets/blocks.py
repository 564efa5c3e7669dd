# SPDX-License-Identifier: Apache-2.0
"""The blocks of pcapng (draft-ietf-opsawg-pcapng), as bytes.

    block     type u32 | length u32 | body, padded to 4 bytes | length u32
    option    code u16 | length u16 | value, padded to 4 bytes
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

SECTION, INTERFACE, PACKET, SIMPLE, ENHANCED = 0x0A0D0D0A, 1, 2, 3, 6
CUSTOM = 0x00000BAD
MAGIC = 0x1A2B3C4D
"""Tells the byte order of a section."""
VERSION = (1, 0)
UNKNOWN_LENGTH = (1 << 64) - 1

END, COMMENT = 0, 1
NAME, DESCRIPTION, RESOLUTION, OFFSET = 2, 3, 9, 14
SYSTEM, APPLICATION = 3, 4
FLAGS = 2
IN, OUT = 1, 2
"""Directions of a packet, in its flags."""
RAW_IP = 101
"""The link type of packets that begin with the IP header."""
NANOSECONDS = 9
MOST_VALUE = (1 << 16) - 1
"""Bytes of the value of an option."""
_HEAD = struct.Struct("<II")
_TAIL = struct.Struct("<I")
_ENHANCED = struct.Struct("<IIIIIII")
END_OF_OPTIONS = bytes(4)


@dataclass(frozen=True)
class Interface:
    """link: the type of its packets. units: of its times, a second. offset_s: added to them."""

    link: int
    units: int = 1_000_000
    offset_s: int = 0


def option(code: int, value: bytes, order: str = "<") -> bytes:
    """One option. Its value has at most MOST_VALUE bytes."""
    return struct.pack(f"{order}HH", code, len(value)) + value + bytes(-len(value) % 4)


def text_option(code: int, text: str, order: str = "<") -> bytes:
    """An option that is text, of which an option's most bytes are kept."""
    value = text.encode("utf-8", "backslashreplace")[:MOST_VALUE]
    return option(code, value.decode("utf-8", "ignore").encode(), order)


def block(kind: int, body: bytes) -> bytes:
    """One block. The body is padded already."""
    length = len(body) + 12
    return _HEAD.pack(kind, length) + body + _TAIL.pack(length)


def section(
    application: str, system: str = "", comments: Iterable[str] = (), more: bytes = b""
) -> bytes:
    """The head of a section, whose length is not told. more: further options."""
    options = b"".join(text_option(COMMENT, text) for text in comments)
    if system:
        options += text_option(SYSTEM, system)
    options += text_option(APPLICATION, application)
    options += more
    body = struct.pack("<IHHQ", MAGIC, *VERSION, UNKNOWN_LENGTH)
    return block(SECTION, body + options + END_OF_OPTIONS)


def interface(link: int, name: str = "", description: str = "", snap: int = 0,
              resolution: int = NANOSECONDS) -> bytes:  # fmt: skip
    """An interface. snap: bytes that are kept of each packet, 0: all. resolution: of its times, as
    a power of ten."""
    options = text_option(NAME, name) if name else b""
    options += text_option(DESCRIPTION, description) if description else b""
    options += option(RESOLUTION, bytes([resolution])) + END_OF_OPTIONS
    return block(INTERFACE, struct.pack("<HHI", link, 0, snap) + options)


def enhanced(number: int, time: int, packet: bytes, length: int, options: bytes = b"") -> bytes:
    """A packet of an interface. length: that it had on the wire. options: with their end."""
    padding = bytes(-len(packet) % 4)
    total = 32 + len(packet) + len(padding) + len(options)
    head = _ENHANCED.pack(ENHANCED, total, number, time >> 32, time & 0xFFFFFFFF, len(packet),
                          length)  # fmt: skip
    return b"".join((head, packet, padding, options, _TAIL.pack(total)))
