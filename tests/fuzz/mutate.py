# SPDX-License-Identifier: Apache-2.0
"""Changes inputs as an attacker would: bits, lengths, byte order, splices, right checksums."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.magnet.control import MAGIC as MAGNET_MAGIC
from tcpkmon.formats.magnet.control import Block, decode, encode, encode_header, text_records
from tcpkmon.formats.magnet.layout import CONTROL, EVERY, HEADER, NATIVE, TEXT, Layout

Change = Callable[[bytes, Sequence[bytes], random.Random], bytes]
MAGIC = b"KERNLOG\x01"
DUMP_MAGIC = b"KLOGDUMP"
_PREAMBLE, _HEAD = 24, 48
_NUMBERS = (
    0, 1, 2, 3, 7, 8, 16, 31, 32, 63, 64, 127, 128, 255, 256, 4095, 4096, 65535, 65536, 2**24,
    2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
_TEXTS = (
    "", "\0", "\n", "\x1b[2J", "é", "'", '"', "=1+1", "../x", "a/b", ".", "%s", "{0}", "NaN",
    "a" * 300, "\ud800", "\u202e", "timestamp", "serial", "type", "header", "index", "A", "MARK",
    "CLOCK", "LEDGER", "SNAPSHOT", "address", "bytes", "string", "enum",
)  # fmt: skip
_VALUES = (
    *_NUMBERS, *_TEXTS, -1, -(2**63), 0.5, 1e308, None, True, [], {}, [[]], 10**40,
    "int", "uint", "string5", "cpu", "pid", "name", "little", "big", float("nan"),
)  # fmt: skip
_TOKENS = (
    b"{", b"}", b"<", b">", b";", b",", b"=", b"[", b"]", b"//", b"/*", b"*/", b"event ", b"enum ",
    b"loglevel ", b"include ", b"omit ", b"using ", b"fields ", b"arch ", b"uint ", b"string9 ",
    b"@", b"\n", b'"', b"\\", b"-1", b"4294967296", b"\xff", b"\xed\xa0\x80", b"null", b"true",
    b"1e999", b'"op":', b'"events":', b"\xef\xbb\xbf", b"\r", b"\0",
)  # fmt: skip


def mutate(data: bytes, others: Sequence[bytes], chance: random.Random, most: int) -> bytes:
    """`data` changed once or several times, at most `most` bytes. others: where splices come from.

    The checksums of a Klogger log are made right again, but for one in eight.
    """
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
        change, dice = chance.choice(_CHANGES), chance.random()
        begin = _body_of_log(data)
        if data.startswith(MAGNET_MAGIC) and dice < 0.85:
            data = _change_magnet(data, change, others, chance)
        elif begin and dice < 0.4:
            data = _change_log_header(data, chance)
        elif begin and dice < 0.9:  # its header is JSON, in which a changed byte ends all reading
            data = data[:begin] + change(data[begin:], others, chance)
        elif not begin and dice < 0.3 and (changed := _change_records(data, chance)):
            data = changed
        else:
            data = change(data, others, chance)
    data = data[:most]
    return mend(data) if chance.random() < 0.875 else data


def mend(data: bytes) -> bytes:
    """A Klogger log with the checksums and sizes that belong to it; other data as it is."""
    at = _body_of_log(data)
    if not at:
        return data
    whole = bytearray(data)
    order = _order_of_log(data)
    struct.pack_into(order + "I", whole, 12, zlib.crc32(whole[_PREAMBLE:at]))
    while at + _HEAD <= len(whole):
        (body,) = struct.unpack_from(order + "Q", whole, at + 16)
        body = min(body, len(whole) - at - _HEAD)  # the last dump was cut, or its size was changed
        crc = zlib.crc32(whole[at + _HEAD : at + _HEAD + body])
        struct.pack_into(order + "I", whole, at + 32, crc)
        struct.pack_into(order + "I", whole, at + 36, zlib.crc32(whole[at : at + 36]))
        at += _HEAD + body
    return bytes(whole)


def _order_of_log(data: bytes) -> str:
    return "<" if data[11] == 0 else ">"


def _body_of_log(data: bytes) -> int:
    """Offset of the first dump of a Klogger log; 0 for other data."""
    if not data.startswith(MAGIC) or len(data) < _PREAMBLE:
        return 0
    (size,) = struct.unpack_from(_order_of_log(data) + "I", data, 8)
    return _PREAMBLE + size if size <= len(data) - _PREAMBLE else 0


def _change_log_header(data: bytes, chance: random.Random) -> bytes:
    """A Klogger log with one value of its header's JSON changed, copied or taken out."""
    order, begin = _order_of_log(data), _body_of_log(data)
    try:
        header = json.loads(data[_PREAMBLE:begin])
    except (ValueError, RecursionError):
        return data
    change_json(header, chance)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    preamble = MAGIC + struct.pack(order + "IIQ", len(text), zlib.crc32(text), 0)
    return preamble + text + data[begin:]


def _change_magnet(
    data: bytes, change: Change, others: Sequence[bytes], chance: random.Random
) -> bytes:
    """A MAGNeT file with a value of a control entry changed, or some records, or an entry copied,
    moved or taken out; all checksums are made right again."""
    parts = list(_parts_of_magnet(data))
    if len(parts) < 2:
        return data
    layout = _layout_of_magnet(data)
    place = chance.randrange(len(parts))
    what = chance.random()
    if isinstance(parts[place], bytes):
        parts[place] = change(parts[place], others, chance)
    elif what < 0.7 or not place:
        change_json(parts[place], chance)
    else:
        part = parts.pop(place)
        for _ in range(chance.randrange(3)):
            parts.insert(chance.randrange(1, len(parts) + 1), part)
    block, out = Block(layout.size), b""
    for number, part in enumerate(parts):
        if isinstance(part, bytes):
            out += part
            block.add(part[: len(part) // layout.size * layout.size])
            continue
        with suppress(OverflowError, TypeError, KeyError, ValueError, AttributeError):
            if number:
                told = block.values() if chance.random() < 0.9 else {}
                out += encode({**part, **told}, layout)
                block = Block(layout.size)
            else:
                out += encode_header(part, layout)
    return out


def _layout_of_magnet(data: bytes) -> Layout:
    for layout in EVERY:
        if layout.rows(data[: 2 * layout.size])["event"].tolist() == [HEADER, TEXT]:
            return layout
    return NATIVE[False]


def _parts_of_magnet(data: bytes) -> Iterator[Any]:
    """The values of the header, then records as bytes and values of control entries."""
    layout = _layout_of_magnet(data)
    rows, at, begin = layout.rows(data), 0, 0
    while at < len(rows):
        if rows["event"][at] not in (HEADER, CONTROL):
            at += 1
            continue
        if at > begin:
            yield data[begin * layout.size : at * layout.size]
        begin = at
        try:
            values = decode(rows[at : at + 1000], layout)
        except DamagedError:
            at += 1
            continue
        yield values
        at += 1 + text_records(int(rows["size"][at]), layout)
        begin = at
    yield data[begin * layout.size :]


def change_json(header: Any, chance: random.Random) -> None:
    """One value changed, copied or taken out."""
    where = chance.choice(_containers(header) or [[]])
    if where:
        keys = list(where) if isinstance(where, dict) else range(len(where))
        key = chance.choice(keys)
        what = chance.randrange(6)
        if what == 0:
            del where[key]
        elif what == 1 and isinstance(where, list):
            where.insert(chance.randrange(len(where) + 1), where[key])
        elif what == 2 and isinstance(where[key], int):
            where[key] += chance.choice((-8, -1, 1, 4, 8, 64))
        elif what == 3 and isinstance(where[key], str) and where[key]:
            text = mutate(where[key].encode("utf-8", "replace"), (), chance, 1 << 16)
            where[key] = text.decode("utf-8", "replace")
        elif what == 4 and isinstance(where, dict):
            where[chance.choice(list(where))] = where[key]
        else:
            like = [one for one in _VALUES if type(one) is type(where[key])]
            where[key] = chance.choice(like if like and chance.random() < 0.7 else _VALUES)


def _containers(value: Any) -> list[Any]:
    """The lists and objects in a JSON value."""
    if not isinstance(value, (dict, list)):
        return []
    inner = value.values() if isinstance(value, dict) else value
    return [value, *(found for one in inner for found in _containers(one))]


def _change_records(data: bytes, chance: random.Random) -> bytes:
    """A PSC file with one record of its header changed, copied, moved or taken out."""
    at, ends = 0, [0]
    while at + 4 <= len(data) and len(ends) < 500:
        kind, length = struct.unpack_from(">HH", data, at)
        if length < 4 or at + length > len(data):
            break
        at += length
        ends.append(at)
        if not kind:
            break
    if len(ends) < 3:
        return b""
    place = chance.randrange(len(ends) - 1)
    begin, end = ends[place : place + 2]
    record = bytearray(data[begin:end])
    what = chance.randrange(5)
    if what == 0:
        record = bytearray()
    elif what == 1:
        to = chance.choice(ends[:-1])
        return data[:to] + record + data[to:]
    elif what == 2:
        struct.pack_into(">H", record, 0, chance.choice((0, 1, 2, 3, 4, 5, 6, *range(256, 264))))
    elif what == 3 and len(record) == 36:  # a column: offset, length, scope, mask, flags
        field = chance.choice((28, 30, 31, 32, 34))
        record[field : field + 1 + (field in (28, 32, 34))] = (
            chance.choice((0, 1, 2, 3, 4, 8, 12, 16, 60, 64, 200)).to_bytes(2, "big")
            if field in (28, 32, 34)
            else bytes([chance.choice((0, 1, 2, 3, 4, 5, 8, 16, 24, 255))])
        )
    else:
        record[4:] = _number(bytes(record[4:]), (), chance) or b"\0"
        struct.pack_into(">H", record, 2, len(record) & 0xFFFF)
    return data[:begin] + record + data[end:]


def _bit(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    if not data:
        return b"\0"
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def _place(data: bytes, chance: random.Random) -> tuple[int, int]:
    """Offset and width of a number, aligned more often than not."""
    width = chance.choice((1, 2, 4, 4, 8, 8))
    at = chance.randrange(max(1, len(data) - width + 1))
    return (at - at % width if chance.random() < 0.7 else at), width


def _number(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """A number replaced by a telling one, one nearby, or that of a size or length."""
    at, width = _place(data, chance)
    order = chance.choice(("little", "big"))
    old = int.from_bytes(data[at : at + width], order)
    new = chance.choice(
        (chance.choice(_NUMBERS), old + chance.choice((-8, -1, 1, 8)), len(data), len(data) - at,
         old * 2, old >> 1, -old, chance.getrandbits(8 * width))
    )  # fmt: skip
    return data[:at] + (new % (1 << 8 * width)).to_bytes(width, order) + data[at + width :]


def _turn(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """A number in the other byte order."""
    at, width = _place(data, chance)
    return data[:at] + data[at : at + width][::-1] + data[at + width :]


def _block(data: bytes, chance: random.Random) -> tuple[int, int]:
    size = min(len(data), chance.choice((1, 4, 8, 24, 48, 64, 108, 128, chance.randrange(1, 600))))
    return chance.randrange(len(data) - size + 1), size


def _drop(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    at, size = _block(data, chance)
    return data[:at] if chance.random() < 0.1 else data[:at] + data[at + size :]


def _splice(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """A block of this or another input put in, or over what is there."""
    source = chance.choice((data, chance.choice(others) if others else data))
    begin, size = _block(source, chance)
    at = chance.randrange(len(data) + 1)
    rest = data[at:] if chance.random() < 0.5 else data[at + size :]
    return data[:at] + source[begin : begin + size] + rest


def _cross(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """The beginning of this input and the end of another."""
    other = chance.choice(others) if others else data
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


def _token(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(_TOKENS) * chance.choice((1, 1, 1, 2, 200)) + data[at:]


_CHANGES: tuple[Callable[[bytes, Sequence[bytes], random.Random], bytes], ...] = (
    _bit, _bit, _number, _number, _number, _turn, _drop, _splice, _splice, _cross, _token,
)  # fmt: skip
