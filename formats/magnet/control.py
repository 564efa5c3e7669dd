# SPDX-License-Identifier: Apache-2.0
"""Control entries of MAGNeT files: JSON in records that no reader of events mistakes for one.

    record of     sockid      timestamp          event     size
    the header    "MAGNeT\\r\\n", CRC of the text    HEADER    bytes of the text
    an entry      CRC         CLOCK_MONOTONIC    CONTROL   bytes of the text
    its text      text, and in the data too      TEXT      bytes of the text in this record

Records with text follow until there is all of it; the rest of the last is zero. CRCs are CRC-32.
Each entry counts the records since the last one, its `block`, and has a CRC of each CHUNK of them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.causes import COLLECTOR_CAUSES, KERNEL_CAUSES
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.limits import MOST_CONTROL_BYTES
from tcpkmon.formats.magnet.layout import CONTROL, HEADER, TEXT, Layout

MAGIC = b"MAGNeT\r\n"
CHUNK = 1024
"""Records that have one CRC."""
CHECK, END = "CHECK", "END"
LEDGER = "LEDGER"
OLD = (LEDGER, "CHANGE", "TRIGGER", "UNSEEN")
"""In files of before, which captures wrote themselves."""
POINT_COUNTERS = (
    "attempts", "filtered", "unchanged", "limited", "written", *KERNEL_CAUSES, *COLLECTOR_CAUSES,
    "in_file",
)  # fmt: skip
"""Of an event on a CPU, in a LEDGER; one more, shed, in captures with a budget."""


class Block:
    """The records since the last control entry: their `count`, and the CRCs of the chunks."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.count = 0
        self.sums: list[int] = []

    def add(self, data: memoryview | bytes) -> None:
        """The next records, as their bytes."""
        view = memoryview(data).cast("B")
        while len(view):
            if self.count % CHUNK == 0:
                self.sums.append(0)
            piece = view[: (CHUNK - self.count % CHUNK) * self._size]
            self.sums[-1] = zlib.crc32(piece, self.sums[-1])
            self.count += len(piece) // self._size
            view = view[len(piece) :]

    def values(self) -> dict[str, Any]:
        """For a control entry."""
        return {"block": self.count, "sums": self.sums}


def encode(values: Mapping[str, Any], layout: Layout) -> bytes:
    """The records of a control entry; its time is values["time_ns"]."""
    text = json.dumps(values, separators=(",", ":")).encode()
    first = np.zeros(1, layout.dtype)
    first["sockid"], first["timestamp"] = zlib.crc32(text), values["time_ns"]
    first["event"], first["size"] = CONTROL, len(text)
    return first.tobytes() + _texts(text, layout)


def encode_header(values: Mapping[str, Any], layout: Layout) -> bytes:
    """The records of the file's header."""
    text = json.dumps(values, separators=(",", ":")).encode()
    first = np.zeros(1, layout.dtype)
    first["event"], first["size"] = HEADER, len(text)
    begin = MAGIC + zlib.crc32(text).to_bytes(4, layout.byteorder)
    return begin + first.tobytes()[len(begin) :] + _texts(text, layout)


def _texts(text: bytes, layout: Layout) -> bytes:
    room = len(layout.room)
    count = text_records(len(text), layout)
    rows = np.zeros(count, layout.dtype)
    rows["event"] = TEXT
    rows["size"] = np.minimum(room, len(text) - room * np.arange(count))
    octets = rows.view(np.uint8).reshape(count, layout.size)
    padded = np.frombuffer(text.ljust(count * room, b"\0"), np.uint8)
    octets[:, layout.room] = padded.reshape(count, room)
    return rows.tobytes()


def text_records(length: int, layout: Layout) -> int:
    """How many records hold a text of so many bytes."""
    return -(-length // len(layout.room))


def decode(rows: NDArray[Any], layout: Layout) -> dict[str, Any]:
    """The values of the control entry, or of the header, in these records. DamagedError."""
    first, texts = rows[:1], rows[1:]
    length = int(first["size"][0])
    if not 0 < length <= MOST_CONTROL_BYTES or len(texts) < text_records(length, layout):
        raise DamagedError("a control entry is not whole")
    texts = texts[: text_records(length, layout)]
    octets = texts.view(np.uint8).reshape(len(texts), layout.size)
    data = octets[:, layout.room].tobytes()
    text = data[:length]
    begin = first.tobytes()
    if int(first["event"][0]) == HEADER:
        told = int.from_bytes(begin[len(MAGIC) : len(MAGIC) + 4], layout.byteorder)
        is_clean = not any(begin[len(MAGIC) + 4 : layout.bits // 8 + 8])
    else:
        told, is_clean = int(first["sockid"][0]), True
    again = np.frombuffer(_texts(text, layout), layout.dtype)
    is_clean = is_clean and not any(begin[layout.bits // 8 + 16 :])
    if told != zlib.crc32(text) or not is_clean or again.tobytes() != texts.tobytes():
        raise DamagedError("the checksum of a control entry is wrong")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError("a control entry is no JSON") from error
    if not isinstance(values, dict):
        raise DamagedError("a control entry is no JSON object")
    if int(first["event"][0]) == CONTROL and not _is_good(values, int(first["timestamp"][0])):
        raise DamagedError("a control entry lacks what each has")
    return values


def _is_good(values: Mapping[str, Any], time_ns: int) -> bool:
    """Whether the values that each control entry has are there."""
    block, sums = number(values, "block"), values.get("sums")
    return (
        isinstance(values.get("kind"), str)
        and number(values, "time_ns") == time_ns
        and number(values, "number") is not None
        and number(values, "records") is not None
        and block is not None
        and isinstance(sums, list)
        and len(sums) == -(-block // CHUNK)
        and all(type(one) is int and 0 <= one < 1 << 32 for one in sums)
    )


def number(values: Mapping[str, Any], name: str, most: int = (1 << 64) - 1) -> int | None:
    """A value that is a number from 0 to `most`; None where it is not."""
    value = values.get(name)
    return value if type(value) is int and 0 <= value <= most else None


def points_of(values: Mapping[str, Any]) -> Any:
    """(n, 2 + POINT_COUNTERS) int64, the events of a LEDGER: CPU, code, counters. DamagedError."""
    width, rows = 2 + len(POINT_COUNTERS), values.get("points")
    if not isinstance(rows, list) or not all(
        isinstance(row, list)
        and len(row) in (width, width + 1)
        and all(type(value) is int and 0 <= value < 1 << 63 for value in row)
        for row in rows
    ):
        raise DamagedError("a LEDGER has no good points")
    return np.array([row[:width] for row in rows], np.int64).reshape(-1, width)
