# SPDX-License-Identifier: Apache-2.0
"""PSC files written out byte by byte, and what they hold; the tests of the reader start here."""

from __future__ import annotations

import struct
from pathlib import Path


def from_hex(text: str) -> bytes:
    """Bytes from lines of hex; what follows a # is a comment."""
    return bytes.fromhex(" ".join(line.split("#", 1)[0] for line in text.splitlines()))


# A file as a NetBSD kernel of 1999 on i386 would give it: no KIND_ENDIAN and no KIND_MODS, sizes as
# 16 bits and pad (here with rubbish in the pad), a nameless last description, an unknown kind.
LITTLE = from_hex(
    """
    00 02 00 0c  30 2e 39 00 00 00 00 00                    # 000 KIND_VERSION "0.9"
    00 03 00 08  00 18 de ad                                # 012 KIND_TABLE_ENTRY_SIZE 24
    00 04 00 24  73 65 71 5f 6e 6f 00 00 00 00 00 00        # 020 KIND_DATA_DEFINITION "seq_no"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 00  04  00  00 00  00 00                #     at 0, 4 bytes, PM, all, INT_HOST
    00 04 00 24  74 69 6d 65 00 00 00 00 00 00 00 00        # 056 "time"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 04  08  00  00 00  00 00                #     at 4, 8 bytes, PM, all, INT_HOST
    00 04 00 24  6c 70 6f 72 74 00 00 00 00 00 00 00        # 092 "lport"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 0c  02  02  00 00  00 01                #     at 12, 2 bytes, INDIV, INT_NET
    00 04 00 24  72 70 6f 72 74 00 00 00 00 00 00 00        # 128 "rport"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 0e  02  02  00 00  00 01                #     at 14, 2 bytes, INDIV, INT_NET
    00 63 00 07  01 02 03                                   # 164 kind 99, 3 bytes, unknown
    00 04 00 24  73 6e 64 5f 66 61 63 6b 00 00 00 00        # 171 "snd_fack"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 10  00  02  00 04  00 00                #     absent: 0 bytes, INDIV, FACK
    00 04 00 24  73 6e 64 5f 63 77 6e 64 00 00 00 00        # 207 "snd_cwnd"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 10  04  02  00 00  00 00                #     at 16, 4 bytes, INDIV, all
    00 04 00 24  66 6c 61 67 73 00 00 00 00 00 00 00        # 243 "flags"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 14  04  02  00 00  00 02                #     at 20, 4 bytes, STRING
    00 04 00 24  00 00 00 00 00 00 00 00 00 00 00 00        # 279 "" ends the kernel's array
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 00  00  00  00 00  00 00
    00 00 00 04                                             # 315 KIND_END
    fe ff ff ff  40 dd 37 38  01 00 00 00  04 1f 13 ba      # 319 seq 4294967294, 943185216.000001,
                 b4 05 00 00  41 42 00 00                   #     1055 5050, cwnd 1460, "AB"
    ff ff ff ff  40 dd 37 38  a0 86 01 00  04 1f 13 ba      # 343 seq 4294967295, ....100000
                 68 0b 00 00  ff 00 0a 1b                   #     cwnd 2920, raw
    02 00 00 00  41 dd 37 38  00 00 00 00  04 20 13 bb      # 367 seq 2: two wrapped away
                 ff ff ff ff  00 00 00 00                   #     1056 5051, cwnd 4294967295
    """
)
LITTLE_DATA = 319
LITTLE_ENTRY = 24

# Big-endian, 32-bit values in the header, 64-bit u_long and timeval, columns out of order and of
# odd widths, and bytes 3 and 24 of the entry belonging to no column.
BIG = from_hex(
    """
    00 05 00 08  00 00 00 01                                # 000 KIND_ENDIAN big, 32 bits
    00 01 00 08  00 00 00 0f                                # 008 KIND_MODS 15, 32 bits
    00 03 00 08  00 00 00 2c                                # 016 KIND_TABLE_ENTRY_SIZE 44, 32 bits
    00 06 00 08  00 00 08 00                                # 024 KIND_MCLSIZE 2048
    00 04 00 24  6d 5f 63 6c 75 73 65 64 00 00 00 00        # 032 "m_clused"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 00  03  01  00 00  00 00                #     at 0, 3 bytes, SYS
    00 04 00 24  74 69 6d 65 00 00 00 00 00 00 00 00        # 068 "time"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 04  10  00  00 00  00 00                #     at 4, 16 bytes
    00 04 00 24  73 65 71 5f 6e 6f 00 00 00 00 00 00        # 104 "seq_no"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 1c  08  00  00 00  00 00                #     at 28, 8 bytes
    00 04 00 24  6c 70 6f 72 74 00 00 00 00 00 00 00        # 140 "lport"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 14  02  02  00 00  00 01                #     at 20, 2 bytes, INT_NET
    00 04 00 24  61 67 65 00 00 00 00 00 00 00 00 00        # 176 "age"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 16  05  02  00 08  00 00                #     at 22, 5 bytes, AUTO
    00 04 00 24  61 64 64 72 00 00 00 00 00 00 00 00        # 212 "addr"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 24  08  02  00 00  00 02                #     at 36, 8 bytes, STRING
    00 00 00 04                                             # 248 KIND_END
    01 02 03 ee  00 00 00 00 38 37 dd 40                    # 252 m_clused 66051; 943185216 s
                 00 00 00 00 00 0f 42 3f  04 1f             #     999999 us; lport 1055
                 01 02 03 04 05  ee                         #     age 4328719365
                 00 00 00 01 00 00 00 07                    #     seq 4294967303
                 0a 00 00 01 00 00 00 00                    #     addr 10.0.0.1 and four zeros
    """
)

# PDP-endian: the more significant 16-bit word first, each word little-endian.
PDP = from_hex(
    """
    00 05 00 08  00 02 00 00                                # 000 KIND_ENDIAN PDP, 16 bits and pad
    00 03 00 08  00 1a 00 00                                # 008 KIND_TABLE_ENTRY_SIZE 26
    00 04 00 24  73 65 71 5f 6e 6f 00 00 00 00 00 00        # 016 "seq_no"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 00  04  00  00 00  00 00                #     at 0, 4 bytes
    00 04 00 24  74 69 6d 65 00 00 00 00 00 00 00 00        # 052 "time"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 04  08  00  00 00  00 00                #     at 4, 8 bytes
    00 04 00 24  6c 70 6f 72 74 00 00 00 00 00 00 00        # 088 "lport"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 0c  02  02  00 00  00 01                #     at 12, 2 bytes, INT_NET
    00 04 00 24  77 69 64 65 00 00 00 00 00 00 00 00        # 124 "wide"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 0e  08  02  00 00  00 00                #     at 14, 8 bytes
    00 04 00 24  73 68 6f 72 74 00 00 00 00 00 00 00        # 160 "short"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 16  02  02  00 00  00 00                #     at 22, 2 bytes
    00 04 00 24  62 79 74 65 00 00 00 00 00 00 00 00        # 196 "byte"
                 00 00 00 00 00 00 00 00 00 00 00 00
                 00 18  01  02  00 00  00 00                #     at 24, 1 byte (25 is padding)
    00 00 00 04                                             # 232 KIND_END
    0b 0a 0d 0c  37 38 40 dd  01 00 a0 86  04 1f            # 236 0x0a0b0c0d; 943185216.100000; 1055
                 02 01 04 03 06 05 08 07                    #     wide 0x0102030405060708
                 34 12  7f  00                              #     short 0x1234, byte 127
    """
)


def record(kind: int, data: bytes) -> bytes:
    """A header record."""
    return struct.pack(">HH", kind, 4 + len(data)) + data


def describe(name: str | bytes, offset: int, length: int, flags: int = 0) -> bytes:
    """A KIND_DATA_DEFINITION record."""
    raw = name.encode() if isinstance(name, str) else name
    return record(4, struct.pack(">24sHBBHH", raw, offset, length, 2, 0, flags))


def entry_size(size: int) -> bytes:
    """A KIND_TABLE_ENTRY_SIZE record."""
    return record(3, struct.pack(">HH", size, 0))


END = record(0, b"")


def save(folder: Path, data: bytes, name: str = "sample.pm") -> Path:
    """Write a file into a test's own folder."""
    path = folder / name
    path.write_bytes(data)
    return path
