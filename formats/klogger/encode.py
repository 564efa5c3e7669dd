# SPDX-License-Identifier: Apache-2.0
"""Ring records and the collector's own events to the bytes of a Klogger log; the reader undoes it.

    preamble   8 magic | u32 header bytes | u32 crc32 of the header | u64 0
    header     JSON, padded with blanks to a multiple of 8 bytes
    dump, again and again:
      head     8 magic | u32 index | u32 records | u64 body bytes | u64 first serial
               | u32 crc32 of the body | u32 crc32 of the 36 bytes before | u64 0
      body     u16 event number of each record, padded with zeros to a multiple of 8 bytes
               then each record: u32 number | u32 bytes | u64 serial | u64 time | payload

All in the byte order of the machine that writes.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.base.errors import UsageError
from formats.klogger.table import NUMBERS, RECORD_HEAD_BYTES, LogEvent, LogField, LogFormat

MAGIC = b"KERNLOG\x01"
PREAMBLE = struct.Struct("=8sIIQ")
HEADER_BYTES_MAX = 16 << 20
DUMP_MAGIC = b"KLOGDUMP"
DUMP_HEAD = struct.Struct("=8sIIQQIIQ")
DUMP_HEAD_BYTES = DUMP_HEAD.size
HEAD_CRC_AT = 36
DUMP_BYTES_MAX = 1 << 30
"""A larger body is no dump: readers refuse it, the writer begins another dump in time."""
DUMP_FINISH = "DUMP_FINISH"

_HEAD = np.dtype([("number", "=u4"), ("size", "=u4"), ("serial", "=u8"), ("time", "=u8")])


@dataclass(frozen=True)
class Packed:
    """Records ready for a dump: the event number of each, and their bytes, one after the other.

    numbers: (n,) uint16. body: (bytes,) uint8, a multiple of 8; it belongs to the receiver.
    first_serial is that of the first record, 0 where there is none.
    """

    numbers: NDArray[np.uint16]
    body: NDArray[np.uint8]
    first_serial: int


def encode_preamble(header: Mapping[str, Any]) -> bytes:
    """The beginning of a file: the preamble and the header. Raises UsageError if it is no header.

    header: see make_header(); LogFormat.of() of it must be good.
    """
    LogFormat.of(header)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
    data = text.encode("utf-8", "backslashreplace")
    data += b" " * (-len(data) % 8)
    if len(data) > HEADER_BYTES_MAX:
        raise UsageError(f"a log's header of {len(data)} bytes is larger than {HEADER_BYTES_MAX}")
    return PREAMBLE.pack(MAGIC, len(data), zlib.crc32(data), 0) + data


def pack_records(
    numbers: NDArray[Any],
    rows: NDArray[Any],
    serials: NDArray[Any],
    times_ns: NDArray[Any],
    payload_sizes: NDArray[Any],
    payload_start: int = RECORD_HEAD_BYTES,
) -> Packed:
    """Records from a ring as records of a log.

    numbers: (n,) event numbers, 0 to 255. rows: (n,) structured or void, of any stride, of one
    ring record each. serials, times_ns: (n,) unsigned 64-bit, as they shall stand in the file.
    payload_sizes: (256,) payload bytes by event number, as LogFormat.payload_sizes. payload_start:
    where the payload begins in a row (24; 0 for SNAPSHOT, which is the whole entry).

    A payload that a row is less than 8 bytes too short for is filled with zeros (the row was
    not padded). Raises UsageError for a number without a size, or rows that are shorter yet.
    """
    numbers = np.asarray(numbers)
    count = len(numbers)
    if not count:
        return Packed(np.empty(0, np.uint16), np.empty(0, np.uint8), 0)
    if not len(rows) == len(serials) == len(times_ns) == count:
        raise UsageError("numbers, rows, serials and times of records differ in length")
    used = np.flatnonzero(np.bincount(numbers, minlength=NUMBERS))
    if used[-1] >= NUMBERS or (payload_sizes[used] < 0).any():
        raise UsageError(f"no event has the number {_first_unknown(used, payload_sizes)}")
    room = rows.dtype.itemsize - payload_start
    if room + 8 <= payload_sizes[used].max() or room < 0:
        raise UsageError(f"rows of {rows.dtype.itemsize} bytes are too short for their payloads")
    # As plain bytes: of a structured row, numpy need not copy what belongs to no field.
    rows = rows.getfield(np.dtype(f"V{rows.dtype.itemsize}"), 0)
    widths = np.unique(payload_sizes[used])
    if len(widths) == 1:
        records = _records(numbers, rows, serials, times_ns, int(widths[0]), payload_start)
        body = records.view(np.uint8)
    else:
        body = _pack_mixed(numbers, rows, serials, times_ns, payload_sizes, widths, payload_start)
    return Packed(numbers.astype(np.uint16), body, int(serials[0]))


def _first_unknown(used: NDArray[Any], payload_sizes: NDArray[Any]) -> int:
    return next(int(n) for n in used if n >= NUMBERS or payload_sizes[n] < 0)


def _records(
    numbers: NDArray[Any],
    rows: NDArray[Any],
    serials: NDArray[Any],
    times_ns: NDArray[Any],
    width: int,
    payload_start: int,
) -> NDArray[Any]:
    """Records whose payloads all have `width` bytes, (n,) structured."""
    size = RECORD_HEAD_BYTES + width
    taken = min(width, rows.dtype.itemsize - payload_start)
    make = np.empty if taken == width else np.zeros
    records = make(len(numbers), np.dtype(f"V{size}"))
    head = records.getfield(_HEAD, 0)
    head["number"] = numbers
    head["size"] = size
    head["serial"] = serials
    head["time"] = times_ns
    if taken:
        kind = np.dtype(f"V{taken}")
        records.getfield(kind, RECORD_HEAD_BYTES)[:] = rows.getfield(kind, payload_start)
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
    """Records of several sizes: those of each size at once, then spread over the body."""
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
    """One event that the collector makes itself.

    values: by field; ints, enum values by name or number, text (cut to fit, at a character's
    end), bytes. Fields that are not named are zero. Raises UsageError for a name that the event or
    enum lacks and a number that does not fit.
    """
    return pack_events(log, name, [values], serial, [time_ns])


def pack_events(
    log: LogFormat,
    name: str,
    rows: Sequence[Mapping[str, int | str | bytes]],
    first_serial: int,
    times_ns: Sequence[int],
) -> Packed:
    """As pack_event(), several events of one name, with the serials from `first_serial` on."""
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
                column[index] = _stored(log, event, field, values[key])
    return pack_records(
        np.full(len(rows), event.number),
        payload if event.size else np.zeros(len(rows), "V8"),
        np.arange(first_serial, first_serial + len(rows), dtype=np.uint64),
        np.array(times_ns, np.uint64),
        log.payload_sizes,
        payload_start=0,
    )


def _stored(log: LogFormat, event: LogEvent, field: LogField, value: int | str | bytes) -> Any:
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
    """The text in UTF-8, at most `most` bytes of it, no character cut in two."""
    data = text.encode("utf-8", "surrogateescape")
    if len(data) <= most:
        return data
    end = most
    while end and data[end] & 0xC0 == 0x80:
        end -= 1
    # Bytes that are no UTF-8 (and so no character's) are cut where they are.
    return data[: end if most - end < 4 else most]


def finish_dump(
    log: LogFormat, index: int, parts: Sequence[Packed], serial: int, time_ns: int
) -> bytes:
    """A whole dump: head, the records of `parts` (the first is DUMP_BEGIN), and DUMP_FINISH.

    index: number of the dump in its file, from 0. serial, time_ns: those of DUMP_FINISH. Raises
    UsageError when the body is larger than DUMP_BYTES_MAX: keep what is collected for one dump
    well below.
    """
    count = sum(len(part.numbers) for part in parts) + 1
    finish_bytes = RECORD_HEAD_BYTES + log.event(DUMP_FINISH).size
    padding = -2 * count % 8
    body_bytes = 2 * count + padding + sum(part.body.nbytes for part in parts) + finish_bytes
    if body_bytes > DUMP_BYTES_MAX:
        raise UsageError(f"a dump of {body_bytes} bytes is larger than {DUMP_BYTES_MAX}")
    finish = pack_event(log, DUMP_FINISH, {"bytes": body_bytes}, serial, time_ns)
    every = [*parts, finish]
    pieces: list[bytes | NDArray[Any]] = [
        *(part.numbers for part in every),
        bytes(padding),
        *(part.body for part in every),
    ]
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece.data if isinstance(piece, np.ndarray) else piece, crc)
    first = next(part.first_serial for part in every if len(part.numbers))
    head = DUMP_HEAD.pack(DUMP_MAGIC, index, count, body_bytes, first, crc, 0, 0)
    seal = struct.pack("=I", zlib.crc32(head[:HEAD_CRC_AT]))
    data = [piece.data if isinstance(piece, np.ndarray) else piece for piece in pieces]
    return b"".join([head[:HEAD_CRC_AT], seal, head[HEAD_CRC_AT + 4 :], *data])
