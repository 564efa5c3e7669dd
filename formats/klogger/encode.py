# SPDX-License-Identifier: Apache-2.0
"""Encodes ring records and the collector's own events as a Klogger log; the reader decodes it.

    +-----------------+
    | preamble        |  8 magic | u32 header bytes | u32 crc32 of the header | u64 0
    | header          |  JSON, padded with spaces to a multiple of 8 bytes
    +-----------------+
    | dump 0:  head   |  8 magic | u32 index | u32 records | u64 body bytes | u64 first serial
    |                 |  | u32 crc32 of the body | u32 crc32 of the 36 bytes before | u64 0
    |          body   |  list of the u16 event numbers of all records, padded with zeros to a
    |                 |  multiple of 8 bytes
    |                 |  records: u32 number | u32 bytes | u64 serial | u64 time | payload
    +-----------------+
    | dump 1 ...      |

All numbers have the byte order of the machine that writes. The first record of a dump is
DUMP_BEGIN, the last is DUMP_FINISH.
"""

from __future__ import annotations

import functools
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.limits import MOST_DUMP_BYTES, MOST_LOG_HEADER_BYTES
from tcpkmon.formats.klogger.table import NUMBERS, RECORD_HEAD_BYTES, LogEvent, LogField, LogFormat

MAGIC = b"KERNLOG\x01"
PREAMBLE = struct.Struct("=8sIIQ")
DUMP_MAGIC = b"KLOGDUMP"
DUMP_HEAD = struct.Struct("=8sIIQQIIQ")
DUMP_HEAD_BYTES = DUMP_HEAD.size
HEAD_CRC_AT = 36
SPARE_AT = 40
DUMP_FINISH = "DUMP_FINISH"

_HEAD = np.dtype([("number", "=u4"), ("size", "=u4"), ("serial", "=u8"), ("time", "=u8")])


@dataclass(frozen=True)
class Packed:
    """n records, ready for a dump.

    numbers: (n,) uint16, their event numbers. body: (bytes,) uint8, the encoded records, a multiple
    of 8; the receiver owns it. first_serial: 0 if n is 0.
    """

    numbers: NDArray[np.uint16]
    body: NDArray[np.uint8]
    first_serial: int


def encode_preamble(header: Mapping[str, Any]) -> bytes:
    """The preamble and the header of a file; header: of make_header().

    Raises UsageError if it is too large, and DamagedError if LogFormat.of() refuses it.
    """
    LogFormat.of(header)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
    data = text.encode("utf-8", "backslashreplace")
    data += b" " * (-len(data) % 8)
    if len(data) > MOST_LOG_HEADER_BYTES:
        most = MOST_LOG_HEADER_BYTES
        raise UsageError(f"a log's header of {len(data)} bytes is larger than {most}")
    return PREAMBLE.pack(MAGIC, len(data), zlib.crc32(data), 0) + data


def pack_records(
    numbers: NDArray[Any],
    rows: NDArray[Any],
    serials: NDArray[Any],
    times_ns: NDArray[Any],
    payload_sizes: NDArray[Any],
    payload_start: int = RECORD_HEAD_BYTES,
) -> Packed:
    """Encode n ring records as records of a log.

    numbers: (n,) event numbers, 0 to 255. rows: (n,) structured or void, of any stride, one ring
    record each. serials, times_ns: (n,) unsigned 64-bit. payload_sizes: (256,) payload bytes by
    event number, as LogFormat.payload_sizes. payload_start: offset of the payload in a row (24;
    0 for SNAPSHOT, whose payload is the whole entry).

    A row may lack the padding of its payload, up to 7 bytes: they are zeros in the log. Raises
    UsageError for a number without a size, and for shorter rows.
    """
    numbers = np.asarray(numbers)
    count = len(numbers)
    if not count:
        return Packed(np.empty(0, np.uint16), np.empty(0, np.uint8), 0)
    if not len(rows) == len(serials) == len(times_ns) == count:
        raise UsageError("numbers, rows, serials and times of records differ in length")
    used = np.flatnonzero(np.bincount(numbers, minlength=NUMBERS))
    if used[-1] >= NUMBERS or (payload_sizes[used] < 0).any():
        unknown = next(n for n in used if n >= NUMBERS or payload_sizes[n] < 0)
        raise UsageError(f"no event has the number {unknown}")
    room = rows.dtype.itemsize - payload_start
    if room + 8 <= payload_sizes[used].max() or room < 0:
        raise UsageError(f"rows of {rows.dtype.itemsize} bytes are too short for their payloads")
    # As plain bytes: numpy may skip the bytes of a structured row that belong to no field.
    rows = rows.getfield(np.dtype(f"V{rows.dtype.itemsize}"), 0)
    widths = np.unique(payload_sizes[used])
    if len(widths) == 1:
        records = _records(numbers, rows, serials, times_ns, int(widths[0]), payload_start)
        body = records.view(np.uint8)
    else:
        body = _pack_mixed(numbers, rows, serials, times_ns, payload_sizes, widths, payload_start)
    return Packed(numbers.astype(np.uint16), body, int(serials[0]))


def _records(
    numbers: NDArray[Any],
    rows: NDArray[Any],
    serials: NDArray[Any],
    times_ns: NDArray[Any],
    width: int,
    payload_start: int,
) -> NDArray[Any]:
    """Records whose payloads all have `width` bytes, (n,) void."""
    size = RECORD_HEAD_BYTES + width
    copied = min(width, rows.dtype.itemsize - payload_start)
    make = np.empty if copied == width else np.zeros
    records = make(len(numbers), np.dtype(f"V{size}"))
    head = records.getfield(_HEAD, 0)
    head["number"] = numbers
    head["size"] = size
    head["serial"] = serials
    head["time"] = times_ns
    if copied:
        payload = np.dtype(f"V{copied}")
        records.getfield(payload, RECORD_HEAD_BYTES)[:] = rows.getfield(payload, payload_start)
    return records


def _pack_mixed(
    numbers: NDArray[Any],
    rows: NDArray[Any],
    serials: NDArray[Any],
    times_ns: NDArray[Any],
    payload_sizes: NDArray[Any],
    widths: NDArray[Any],
    payload_start: int,
) -> NDArray[np.uint8]:
    """Records of several sizes: encodes those of one size at once, and puts each in its place."""
    words_each = (payload_sizes[numbers] + RECORD_HEAD_BYTES) // 8
    ends = np.cumsum(words_each)
    starts = ends - words_each
    words = np.empty(int(ends[-1]), np.uint64)
    for width in widths.tolist():
        at = np.flatnonzero(words_each == (width + RECORD_HEAD_BYTES) // 8)
        block = _records(numbers[at], rows[at], serials[at], times_ns[at], width, payload_start)
        table = block.view(np.uint64).reshape(len(at), -1)
        words[starts[at][:, None] + np.arange(table.shape[1])] = table
    return words.view(np.uint8)


def pack_event(
    log: LogFormat,
    name: str,
    values: Mapping[str, int | str | bytes],
    serial: int,
    time_ns: int,
) -> Packed:
    """Encode one of the collector's own events.

    values, by field name: int, enum value by name or number, text (cut at the end of a character
    if it is too long), bytes. Other fields are zero. Raises UsageError for a name that the event or
    enum lacks, and for a number that does not fit.
    """
    return pack_events(log, name, [values], serial, [time_ns])


def pack_events(
    log: LogFormat,
    name: str,
    rows: Sequence[Mapping[str, int | str | bytes]],
    first_serial: int,
    times_ns: Sequence[int],
) -> Packed:
    """As pack_event(), for several events of one name, with serials from `first_serial` on."""
    event = log.event(name)
    payload = np.zeros(len(rows), np.dtype((np.void, event.size)) if event.size else np.dtype("V0"))
    table = payload.view(event.dtype) if event.size else payload
    for key in dict.fromkeys(key for values in rows for key in values):
        field = event.find_field(key)
        if field is None:
            raise UsageError(f"event {name} has no field '{key}'")
        column = table[key]
        for index, values in enumerate(rows):
            if key in values:
                column[index] = _encode(log, event, field, values[key])
    return pack_records(
        np.full(len(rows), event.number),
        payload if event.size else np.zeros(len(rows), "V8"),
        np.arange(first_serial, first_serial + len(rows), dtype=np.uint64),
        np.array(times_ns, np.uint64),
        log.payload_sizes,
        payload_start=0,
    )


def _encode(log: LogFormat, event: LogEvent, field: LogField, value: int | str | bytes) -> Any:
    where = f"field '{field.name}' of event {event.name}"
    if field.kind not in ("int", "enum"):
        if isinstance(value, int):
            raise UsageError(f"{where} holds text, not {value}")
        data = _cut(value, field.length) if isinstance(value, str) else value
        if len(data) > field.length:
            raise UsageError(f"{where} has {field.length} bytes, not {len(data)}")
        return data if field.kind == "string" else np.void(data.ljust(field.length, b"\0"))
    if isinstance(value, str) and field.kind == "enum":
        by_name = {text: number for number, text in log.enums.get(field.type, {}).items()}
        if value not in by_name:
            raise UsageError(f"{where}: enum {field.type} has no '{value}'")
        value = by_name[value]
    if not isinstance(value, (int, np.integer)):
        raise UsageError(f"{where} holds a number, not {value!r:.60}")
    bits = 8 * field.length
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if field.signed else (0, (1 << bits) - 1)
    if not least <= value <= most:
        raise UsageError(f"{where} cannot hold {value}")
    return value


def _cut(text: str, most: int) -> bytes:
    """At most `most` bytes of the text in UTF-8, whole characters only."""
    data = text.encode("utf-8", "surrogateescape")
    if len(data) <= most:
        return data
    end = most
    while end and data[end] & 0xC0 == 0x80:
        end -= 1
    # Four such bytes are no character of UTF-8: they may be cut anywhere.
    return data[: end if most - end < 4 else most]


def finish_dump(
    log: LogFormat, index: int, parts: Sequence[Packed], serial: int, time_ns: int
) -> bytes:
    """A whole dump: head, the records of `parts` (the first is DUMP_BEGIN), and DUMP_FINISH.

    index: number of the dump in its file, from 0. serial, time_ns: of DUMP_FINISH. Raises
    UsageError if the body is larger than MOST_DUMP_BYTES.
    """
    count = sum(len(part.numbers) for part in parts) + 1
    finish_bytes = RECORD_HEAD_BYTES + log.event(DUMP_FINISH).size
    padding = -2 * count % 8
    body_bytes = 2 * count + padding + sum(part.body.nbytes for part in parts) + finish_bytes
    if body_bytes > MOST_DUMP_BYTES:
        raise UsageError(f"a dump of {body_bytes} bytes is larger than {MOST_DUMP_BYTES}")
    finish = pack_event(log, DUMP_FINISH, {"bytes": body_bytes}, serial, time_ns)
    every = [*parts, finish]
    body: list[bytes | memoryview] = [part.numbers.data for part in every]
    body += [bytes(padding), *(part.body.data for part in every)]
    crc = functools.reduce(lambda crc, piece: zlib.crc32(piece, crc), body, 0)
    first = next(part.first_serial for part in every if len(part.numbers))
    head = DUMP_HEAD.pack(DUMP_MAGIC, index, count, body_bytes, first, crc, 0, 0)
    head_crc = struct.pack("=I", zlib.crc32(head[:HEAD_CRC_AT]))
    return b"".join([head[:HEAD_CRC_AT], head_crc, head[HEAD_CRC_AT + 4 :], *body])
