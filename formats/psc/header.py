# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes the header of a PSC file: everything before the first entry.

All numbers in the header are in network order. The header is a list of records; KIND_END is last:

     0        2        4                    length
    +--------+--------+--------------------+
    | kind   | length | data               |      length includes kind and length
    +--------+--------+--------------------+

    kind                         length  data
    0     KIND_END               4
    1     KIND_MODS              8       u16 psc_mods, u16 pad
    2     KIND_VERSION           12      8 bytes of text, NUL padded
    3     KIND_TABLE_ENTRY_SIZE  8       u16 bytes in one entry, u16 pad
    4     KIND_DATA_DEFINITION   36      struct tpm_entry_description, below
    5     KIND_ENDIAN            8       u32: 0 little, 1 big, 2 PDP
    6     KIND_MCLSIZE           8       u32 bytes in an mbuf cluster (on Linux: in a page)
    0x100 HOST                   any     UTF-8: node name
    0x101 KERNEL                 any     UTF-8: release, version and machine
    0x102 CLOCK                  28      u64 monotonic ns, u64 realtime ns, u64 uncertainty ns
    0x103 SCHEMA                 any     UTF-8: the schema's text; several records are joined
    0x104 SETTINGS               any     UTF-8: JSON of how it was captured; several are joined
    0x105 CHECKSUM               8       u32 CRC-32 of the whole header, with zeros in its place

    struct tpm_entry_description:
     0                      24       26     27     28     30     32
    +----------------------+--------+------+------+------+------+
    | name_string, NUL pad | offset |length|scope | mask | flags|
    +----------------------+--------+------+------+------+------+
     24 bytes               u16      u8     u8     u16    u16

MODS, TABLE_ENTRY_SIZE and ENDIAN may be 16 bits and pad, or 32 bits: the report's table and its
appendix differ, so both are read.
"""

from __future__ import annotations

import functools
import json
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.base.errors import DamagedError, UsageError
from tcpkmon.formats.base.limits import (
    MOST_COLUMNS,
    MOST_HEADER_BYTES,
    MOST_HEADER_RECORDS,
    MOST_SETTINGS_CHARACTERS,
)
from tcpkmon.formats.base.text import text_of
from tcpkmon.formats.psc.columns import (
    MODS_RENO,
    NAME_BYTES,
    Column,
    check_columns,
    find_conflict,
)

KIND_END = 0
KIND_MODS = 1
KIND_VERSION = 2
KIND_TABLE_ENTRY_SIZE = 3
KIND_DATA_DEFINITION = 4
KIND_ENDIAN = 5
KIND_MCLSIZE = 6
KIND_HOST = 0x100
KIND_KERNEL = 0x101
KIND_CLOCK = 0x102
KIND_SCHEMA = 0x103
KIND_SETTINGS = 0x104
KIND_CHECKSUM = 0x105

HEADER_DAMAGED = "the header's checksum is wrong: columns, their places or texts may be wrong too"
VERSION_BYTES = 8
TEXT_BYTES_MAX = 65528  # the largest for which a text record ends on a word boundary

_RECORD = struct.Struct(">HH")
_DESCRIPTION = struct.Struct(f">{NAME_BYTES}sHBBHH")
_PADDED = struct.Struct(">HH")
_LONG = struct.Struct(">L")
_PACKETS = tuple(map(bytes.fromhex, (
    "d4c3b2a1", "a1b2c3d4", "4d3cb2a1", "a1b23c4d", "0a0d0d0a",
)))  # fmt: skip
"""With these begin files of packets: pcap in both byte orders, in us and ns; pcapng."""
_FOREIGN = (
    (b"\x7fELF", "a program"), (b"\x1f\x8b", "compressed by gzip"),
    (b"\xfd7zXZ", "compressed by xz"), (b"BZh", "compressed by bzip2"),
    (b"PK\3\4", "a ZIP archive"), (b"SQLite format 3\0", "a database of SQLite"),
    (b"PERFILE2", "of perf record"),
)  # fmt: skip
_LOOKED_AT = 512
_FIRST_BYTES = 1 << 18
_CLOCK = struct.Struct(">QQQ")
_U64_MAX = (1 << 64) - 1


@dataclass(frozen=True)
class Header:
    """The values in a PSC header. `extras`: the data of all other kinds, in file order."""

    mods: int
    version: str
    entry_size: int
    columns: tuple[Column, ...]
    endian: Endian = Endian.LITTLE
    mclsize: int = 0
    extras: dict[int, list[bytes]] = field(default_factory=dict)
    has_checksum: bool = False
    is_intact: bool = field(default=True, compare=False)
    """False if it does not have its checksum."""

    def text(self, kind: int) -> str | None:
        """The joined text of a kind from 0x100, or None; bytes that are not UTF-8 as \\xff."""
        if kind not in self.extras:
            return None
        return b"".join(self.extras[kind]).rstrip(b"\0").decode("utf-8", "backslashreplace")

    @functools.cached_property
    def settings(self) -> dict[str, Any] | None:
        """How the file was captured, if the header says it; None if that cannot be read."""
        text = self.text(KIND_SETTINGS)
        if text is None:
            return {}
        try:
            found = json.loads(text[:MOST_SETTINGS_CHARACTERS])
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def clock(self) -> tuple[int, int, int] | None:
        """(monotonic ns, realtime ns, uncertainty ns) at the start, or None."""
        data = b"".join(self.extras.get(KIND_CLOCK, []))
        if len(data) != _CLOCK.size:
            return None
        mono_ns, realtime_ns, uncertainty_ns = _CLOCK.unpack(data)
        return mono_ns, realtime_ns, uncertainty_ns


def writer_header(
    columns: Iterable[Column],
    entry_size: int,
    *,
    mods: int,
    version: str,
    mclsize: int,
    host: str = "",
    kernel: str = "",
    clock: tuple[int, int, int] | None = None,
    schema: str = "",
    settings: Mapping[str, Any] | None = None,
) -> Header:
    """The header of a new file in the byte order of this machine.

    clock: (monotonic ns, realtime ns, uncertainty ns). schema: its text. settings: any JSON object.
    Empty values have no record.
    """
    extras: dict[int, list[bytes]] = {}
    for kind, text in ((KIND_HOST, host), (KIND_KERNEL, kernel)):
        if text:
            extras[kind] = text_data(text)
    if clock is not None:
        extras[KIND_CLOCK] = [_CLOCK.pack(*(min(max(ns, 0), _U64_MAX) for ns in clock))]
    if schema:
        extras[KIND_SCHEMA] = text_data(schema)
    if settings:
        extras[KIND_SETTINGS] = text_data(json.dumps(settings, ensure_ascii=False))
    endian = Endian.LITTLE if sys.byteorder == "little" else Endian.BIG
    return Header(mods, version, entry_size, tuple(columns), endian, mclsize, extras, True)


def text_data(text: str) -> list[bytes]:
    """The text in pieces that fit into a record, NUL padded to a word."""
    data = text.encode("utf-8", "replace")
    data += b"\0" * (-len(data) % 4)
    return [data[start : start + TEXT_BYTES_MAX] for start in range(0, len(data), TEXT_BYTES_MAX)]


def encode_header(header: Header) -> bytes:
    """The bytes of a header. Raises UsageError for values that the format cannot hold."""
    check_columns(header.columns, header.entry_size)
    version = header.version.encode("utf-8", "replace")
    if len(version) > VERSION_BYTES:
        raise UsageError(f"version {header.version!r} is longer than {VERSION_BYTES} bytes")
    try:
        parts = [
            _record(KIND_VERSION, version.ljust(VERSION_BYTES, b"\0")),
            _record(KIND_MODS, _PADDED.pack(header.mods, 0)),
            _record(KIND_ENDIAN, _LONG.pack(header.endian)),
            _record(KIND_MCLSIZE, _LONG.pack(header.mclsize)),
            _record(KIND_TABLE_ENTRY_SIZE, _PADDED.pack(header.entry_size, 0)),
        ]
        parts += [_record(KIND_DATA_DEFINITION, _description(it)) for it in header.columns]
        for kind, listed in header.extras.items():
            if kind <= KIND_MCLSIZE or kind == KIND_CHECKSUM:
                raise UsageError(f"header kind {kind} is not one for extras")
            parts += [_record(kind, data) for data in listed]
    except struct.error as error:
        raise UsageError(f"a value does not fit the PSC header: {error}") from error
    if header.has_checksum:
        checksum_at = sum(map(len, parts)) + _RECORD.size
        parts.append(_record(KIND_CHECKSUM, bytes(_LONG.size)))
    parts.append(_record(KIND_END, b""))
    encoded = b"".join(parts)
    if header.has_checksum:
        encoded = _sealed(encoded, checksum_at)
    if len(encoded) > MOST_HEADER_BYTES or len(parts) > MOST_HEADER_RECORDS:
        raise UsageError(f"a PSC header of {len(encoded)} bytes is too long")
    return encoded


def _sealed(header: bytes, checksum_at: int) -> bytes:
    """The header with its checksum, whatever is in that place."""
    before, after = header[:checksum_at], header[checksum_at + _LONG.size :]
    crc = zlib.crc32(before + bytes(_LONG.size) + after)
    return before + _LONG.pack(crc) + after


def _record(kind: int, data: bytes) -> bytes:
    return _RECORD.pack(kind, _RECORD.size + len(data)) + data


def _description(column: Column) -> bytes:
    name = column.name.encode()
    return _DESCRIPTION.pack(
        name, column.offset, column.length, column.scope, column.mask, column.flags
    )


def decode_header(data: bytes | memoryview, size: int) -> tuple[Header, int]:
    """The header at the start of a file, and the offset of its first entry.

    data: the whole file, or at least its first MOST_HEADER_BYTES bytes. size: of the file [bytes].
    Raises DamagedError, which names the offset.
    """
    if bytes(data[:4]) in _PACKETS:
        raise DamagedError(
            "it holds packets (pcap), not snapshots of TCP", "tcpdump and Wireshark read it"
        )
    if what := _foreign(bytes(data[:_LOOKED_AT])):
        raise DamagedError(
            f"not a capture: it seems to be {what}",
            "a capture is a PSC file, a Klogger log, a MAGNeT file, or a folder of them",
        )
    single: dict[int, tuple[int, bytes]] = {}
    columns: list[Column] = []
    columns_at: list[int] = []
    extras: dict[int, list[bytes]] = {}
    checksums: list[int] = []
    for kind, at, value in _records(memoryview(data), size):
        if kind == KIND_DATA_DEFINITION:
            column = _decode_description(at, value)
            if column is None:
                continue
            columns.append(column)
            columns_at.append(at)
            if len(columns) > MOST_COLUMNS:
                raise _damaged(at, f"more than {MOST_COLUMNS} columns")
        elif kind == KIND_CHECKSUM:
            if len(value) != _LONG.size:
                raise _damaged(at, f"a checksum of {len(value)} bytes, not {_LONG.size}")
            checksums.append(at + _RECORD.size)
        elif kind > KIND_MCLSIZE:
            extras.setdefault(kind, []).append(value)
        elif kind in single:
            raise _damaged(at, f"header kind {kind} is there twice")
        else:
            single[kind] = at, value
    end, _ = single[KIND_END]
    if KIND_TABLE_ENTRY_SIZE not in single:
        raise _damaged(end, "the header ends without the size of an entry (kind 3)")
    at = single[KIND_TABLE_ENTRY_SIZE][0]
    entry_size = _short(single, KIND_TABLE_ENTRY_SIZE, 0)
    if not entry_size:
        raise _damaged(at, "the size of an entry is 0")
    problem = find_conflict(columns, entry_size)
    if problem:
        raise _damaged(columns_at[problem[0]], problem[1])
    if not any(column.length for column in columns):
        raise _damaged(end, "the header describes no column (kind 4)")
    endian = _short(single, KIND_ENDIAN, Endian.LITTLE)
    if endian not in tuple(Endian):
        raise _damaged(single[KIND_ENDIAN][0], f"unknown byte order {endian}")
    stop = end + _RECORD.size
    whole = bytes(data[:stop]) if checksums else b""
    header = Header(
        mods=_short(single, KIND_MODS, MODS_RENO),
        version=text_of(single.get(KIND_VERSION, (0, b""))[1]),
        entry_size=entry_size,
        columns=tuple(columns),
        endian=Endian(endian),
        mclsize=_mclsize(single),
        extras=extras,
        has_checksum=bool(checksums),
        is_intact=all(_sealed(whole, at) == whole for at in checksums),
    )
    return header, stop


def read_header(read: Callable[[int], bytes], size: int) -> tuple[Header, int]:
    """decode_header() of a file of this size. read(n): its first n bytes. Few are read first: the
    header is seldom longer."""
    try:
        return decode_header(read(min(size, _FIRST_BYTES)), size)
    except DamagedError:
        return decode_header(read(min(size, MOST_HEADER_BYTES)), size)


def _foreign(begin: bytes) -> str:
    """What else a file is that begins so; empty where that is not known."""
    known = (what for magic, what in _FOREIGN if begin.startswith(magic))
    text = begin.decode("utf-8", "ignore")
    is_text = begin.strip() and len(text.encode()) > len(begin) - 4  # its last letter may be cut
    is_text = is_text and all(each.isprintable() or each in "\t\r\n\f\033" for each in text)
    return next(known, "plain text" if is_text else "")


def _records(data: memoryview, size: int) -> Iterable[tuple[int, int, bytes]]:
    """The kind, offset and data of each record up to KIND_END."""
    at = 0
    for _ in range(MOST_HEADER_RECORDS):
        if at + _RECORD.size > MOST_HEADER_BYTES:
            raise _damaged(at, f"the header is longer than {MOST_HEADER_BYTES} bytes")
        if at + _RECORD.size > min(len(data), size):
            raise _damaged(at, "the file ends within the header (no KIND_END)")
        kind, length = _RECORD.unpack_from(data, at)
        if length < _RECORD.size:
            raise _damaged(at, f"header kind {kind} has length {length}, less than its own 4")
        if kind == KIND_END and length != _RECORD.size:
            raise _damaged(at, f"KIND_END has length {length}, not 4")
        if at + length > size:
            raise _damaged(at, f"header kind {kind} of {length} bytes goes beyond the file's end")
        if at + length > len(data):
            raise _damaged(at, f"the header is longer than {MOST_HEADER_BYTES} bytes")
        yield kind, at, bytes(data[at + _RECORD.size : at + length])
        if kind == KIND_END:
            return
        at += length
    raise _damaged(at, f"the header has more than {MOST_HEADER_RECORDS} records")


def _decode_description(at: int, data: bytes) -> Column | None:
    """A column; None for TPM_STR_LAST, the last element of the kernel's array, without a name."""
    if len(data) != _DESCRIPTION.size:
        raise _damaged(at, f"a column description of {len(data)} bytes, not {_DESCRIPTION.size}")
    name, offset, length, scope, mask, flags = _DESCRIPTION.unpack(data)
    text = text_of(name)
    if not text and not length:
        return None
    if not text:
        raise _damaged(at, "a column without a name")
    return Column(text, offset, length, scope, mask, flags)


def _short(single: Mapping[int, tuple[int, bytes]], kind: int, missing: int) -> int:
    """A 16-bit value, stored as u16, as u16 and pad, or as u32."""
    if kind not in single:
        return missing
    at, data = single[kind]
    if len(data) not in (2, 4):
        raise _damaged(at, f"header kind {kind} has {len(data)} bytes of data, not 4")
    first = int.from_bytes(data[:2], "big")
    return first or int.from_bytes(data, "big")


def _mclsize(single: Mapping[int, tuple[int, bytes]]) -> int:
    if KIND_MCLSIZE not in single:
        return 0
    at, data = single[KIND_MCLSIZE]
    if len(data) != _LONG.size:
        raise _damaged(at, f"header kind {KIND_MCLSIZE} has {len(data)} bytes of data, not 4")
    return int.from_bytes(data, "big")


def _damaged(at: int, what: str) -> DamagedError:
    return DamagedError(f"at offset {at}: {what}", "the file is damaged, or not a PSC file")
