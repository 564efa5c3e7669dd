# SPDX-License-Identifier: Apache-2.0
"""Klogger logs for tests: a schema with every kind of field, ring rows, whole files."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.klogger.describe import SNAPSHOT_NUMBER, describe_event, make_header
from tcpkmon.formats.klogger.encode import (
    Packed,
    encode_preamble,
    finish_dump,
    pack_event,
    pack_records,
)
from tcpkmon.formats.klogger.table import LogFormat
from tcpkmon.formats.schema import Schema, load, parse
from tcpkmon.formats.schema.resolve import merge

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "bpf" / "schemata" / "base.conf"
SAMPLE = """
enum policy { NORMAL, FIFO, RR, BATCH = -3 }
event SCHEDOUT { int pid }
event COUNTED { int pid; ulonglong l2_cache_misses_user }
event EMPTY { }
event EVERY {
    short a; ushort b; int c; uint d; longlong e; ulonglong f; long g; ulong h;
    policy how; string5 text; string4 raw // @raw
    string16 addr // @address
}
"""
CLOCK = (1_000_000_000, 1_732_200_000_000_000_000, 120)
Values = Mapping[str, "int | str | bytes"]


def make_schema(text: str = SAMPLE) -> Schema:
    """base, and the events of `text`."""
    return merge([load([BASE]), parse(text)])


def describe_events(schema: Schema) -> list[dict[str, Any]]:
    """A table of all events of a schema, numbered from 32 on; SNAPSHOT has its own number."""
    return [
        describe_event(schema, event, SNAPSHOT_NUMBER if event.name == "SNAPSHOT" else number)
        for number, event in enumerate(schema.events, 32)
    ]


def sample_header(text: str = SAMPLE, cpu: int = 0, **changes: Any) -> dict[str, Any]:
    schema = make_schema(text)
    header = make_header(
        schema, describe_events(schema), cpu=cpu, cpus=2, host="here", kernel="6.18.0",
        version="0.1.0", buffer_bytes=4 << 20, low_water_percent=10, clock=CLOCK,
        settings={"schema": ["sample"]},
    )  # fmt: skip
    return {**header, **changes}


class LogMaker:
    """Writes a log event by event; serials rise by themselves, a dump ends when asked."""

    def __init__(self, text: str = SAMPLE, cpu: int = 0, **changes: Any) -> None:
        self.header = sample_header(text, cpu, **changes)
        self.format = LogFormat.of(self.header)
        self.serial = 0
        self.time_ns = CLOCK[0]
        self.dumps: list[bytes] = []
        self._parts: list[Packed] = []

    def skip(self, serials: int) -> LogMaker:
        """Lose so many events."""
        self.serial += serials
        return self

    def add(self, name: str, values: Values | None = None, at: int | None = None) -> LogMaker:
        """One event, 1 us after the one before it, or `at` ns after the log's start."""
        self._begin()
        self._parts.append(self._pack(name, values or {}, at))
        return self

    def add_rows(
        self, numbers: NDArray[Any], rows: NDArray[Any], times_ns: NDArray[Any]
    ) -> LogMaker:
        """Many ring records."""
        self._begin()
        serials = np.arange(self.serial + 1, self.serial + 1 + len(rows), dtype=np.uint64)
        sizes = self.format.payload_sizes
        self._parts.append(pack_records(numbers, rows, serials, times_ns, sizes))
        self.serial += len(rows)
        self.time_ns = int(times_ns[-1])
        return self

    def end_dump(self) -> LogMaker:
        self.serial += 1
        self.time_ns += 1000
        index = len(self.dumps)
        sealed = finish_dump(self.format, index, self._parts, self.serial, self.time_ns)
        self.dumps.append(sealed)
        self._parts = []
        return self

    def data(self) -> bytes:
        """The file, a dump that is under way ended."""
        if self._parts:
            self.end_dump()
        return encode_preamble(self.header) + b"".join(self.dumps)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.data())
        return path

    def _begin(self) -> None:
        if not self._parts:
            self._parts.append(self._pack("DUMP_BEGIN", {"index": len(self.dumps)}, None))

    def _pack(self, name: str, values: Values, at: int | None) -> Packed:
        self.serial += 1
        self.time_ns = self.time_ns + 1000 if at is None else CLOCK[0] + at
        return pack_event(self.format, name, values, self.serial, self.time_ns)


def write_big_endian(path: Path, header: Mapping[str, Any], name: str, payload: bytes) -> Path:
    """The log of a big-endian machine with one event, serial 2 at 2^40 ns."""
    numbers = {event["name"]: event["number"] for event in header["events"]}
    names = ("DUMP_BEGIN", name, "DUMP_FINISH")
    payloads = (struct.pack(">IIQQ", 0, 0, 0, 0), payload, struct.pack(">Q", 144))
    body = struct.pack(">4H", *(numbers[one] for one in names), 0)
    for serial, (one, data) in enumerate(zip(names, payloads, strict=True), 1):
        body += struct.pack(">IIQQ", numbers[one], 24 + len(data), serial, 1 << 40) + data
    start = struct.pack(">8sIIQQI", b"KLOGDUMP", 0, 3, len(body), 1, zlib.crc32(body))
    dump = start + struct.pack(">IQ", zlib.crc32(start), 0) + body
    text = json.dumps({**header, "byteorder": "big"}).encode()
    text += b" " * (-len(text) % 8)
    preamble = struct.pack(">8sIIQ", b"KERNLOG\x01", len(text), zlib.crc32(text), 0)
    path.write_bytes(preamble + text + dump)
    return path


def ring_rows(payloads: Sequence[bytes], entry_size: int, gap: int = 16) -> NDArray[Any]:
    """Ring records as a drain hands them out: strided, with the payload at byte 24."""
    stride = entry_size + gap
    raw = np.full(len(payloads) * stride, 0xEE, np.uint8)
    kind = np.dtype(
        {
            "names": ["low", "time", "cpu", "location"],
            "formats": ["=u4", "=u8", "=u4", "=u4"],
            "offsets": [0, 4, 12, 16],
            "itemsize": entry_size,
        }
    )
    for place, payload in enumerate(payloads):
        begin = place * stride + 24
        raw[begin : begin + len(payload)] = np.frombuffer(payload, np.uint8)
    rows: NDArray[Any] = np.ndarray((len(payloads),), kind, raw.data, 0, (stride,))
    return rows
