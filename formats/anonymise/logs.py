# SPDX-License-Identifier: Apache-2.0
"""A Klogger log without what could name somebody: as many dumps, of the same size."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from tcpkmon.formats.anonymise.kinds import ADDRESS_TEXT, KEEP, PORT_PAIR, kind_of
from tcpkmon.formats.anonymise.rows import Place, Rows
from tcpkmon.formats.anonymise.settings import LeftOut, header_of, only
from tcpkmon.formats.anonymise.who import Who
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.files import open_plain
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.encode import (
    DUMP_HEAD,
    DUMP_HEAD_BYTES,
    DUMP_MAGIC,
    HEAD_CRC_AT,
    MAGIC,
    PREAMBLE,
    encode_preamble,
)
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.klogger.table import LogEvent, LogField
from tcpkmon.formats.klogger.walk import DumpHead, list_bytes

_HEADER = (
    "format", "byteorder", "cpu", "cpus", "host", "kernel", "tcpkmon", "buffer_bytes",
    "low_water_percent", "clock", "schema", "settings", "events",
)  # fmt: skip
_EVENT = ("number", "name", "size", "fields")
_FIELD = ("name", "kind", "signed", "offset", "length", "type", "network", "none")


def anonymise_log(path: Path, to: IO[bytes], who: Who, left_out: LeftOut) -> None:
    """Write the new log. The old one is sound, or ends within a dump, which is left out."""
    with LogReader(path) as reader, open_plain(path) as plain:
        header = header_of(reader.header, _HEADER, _EVENT, who, left_out)
        for event in header["events"]:
            event["fields"] = [only(one, _FIELD) for one in event["fields"]]
        preamble = encode_preamble(header)
        order = reader.format.order
        crc = zlib.crc32(preamble[PREAMBLE.size :])
        size = len(preamble) - PREAMBLE.size
        to.write(struct.pack(order + PREAMBLE.format[1:], MAGIC, size, crc, 0))
        to.write(preamble[PREAMBLE.size :])
        dumps = _Dumps(order, to)
        events = {event.number: _Rows(event, order, who) for event in reader.format.events}
        for batch in reader.batches():
            if batch.dump != dumps.index:
                head = reader.walked.found[-1]
                plain.seek(head.body)
                dumps.begin(head, plain.read(2 * head.count))
            dumps.add(_replaced(batch, events))
        dumps.finish()
        if reader.walked.end < reader.walked.size:
            left_out.repaired.append(f"{path.name}: the end, which is no whole dump")


class _Rows(Rows):
    """The payloads of an event."""

    def __init__(self, event: LogEvent, order: str, who: Who) -> None:
        self.event = event
        super().__init__(event.size, [_place(event, one, order) for one in event.fields], who)


def _place(event: LogEvent, field: LogField, order: str) -> Place:
    kind = kind_of(event.name, field.name, field.kind, field.length)
    if event.name == "RECONCILED" and kind == PORT_PAIR:
        kind = KEEP  # of a summary it is a count: see _replaced()
    if field.kind in ("string", "address"):
        return Place(field.offset, field.length, kind, "")
    if kind == ADDRESS_TEXT:
        kind = "texts"
    return Place(field.offset, field.length, kind, ">" if field.network else order)


def _replaced(batch: LogBatch, events: Mapping[int, _Rows]) -> bytes:
    words = batch.words.copy()
    for number in np.unique(batch.numbers).tolist():
        rows = events[number]
        width = rows.event.size // 8
        if not width:
            continue
        places = batch.starts[batch.numbers == number][:, None] + np.arange(width)
        octets = words[places].view(np.uint8).reshape(len(places), -1)
        made = rows(octets)
        if rows.event.name == "RECONCILED" and "ports" in rows.who.replaced:
            _reconciled(rows, made)
        words[places] = made.view(np.uint64)
    data: bytes = words.tobytes()
    return data


def _reconciled(rows: _Rows, octets: Any) -> None:
    """The ports of differences."""
    typed = octets.view(rows.event.dtype)[:, 0]
    if {"what", "ports"} <= set(typed.dtype.names or ()):
        for row in np.flatnonzero(typed["what"] != 0).tolist():
            typed["ports"][row] = rows.who.ports(int(typed["ports"][row]))


class _Dumps:
    """Writes dumps of the same records, whose checksum is known when all of them are there."""

    def __init__(self, order: str, to: IO[bytes]) -> None:
        self.index = -1
        self._order = order
        self._to = to
        self._head: DumpHead | None = None
        self._at = self._crc = self._size = 0

    def begin(self, head: DumpHead, numbers: bytes) -> None:
        """The next dump, after the one before."""
        self.finish()
        self._head, self.index, self._at = head, head.index, self._to.tell()
        self._crc = self._size = 0
        self._to.write(bytes(DUMP_HEAD_BYTES))
        self.add(numbers.ljust(list_bytes(head.count), b"\0"))

    def add(self, data: bytes) -> None:
        """More of the body."""
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        self._to.write(data)

    def finish(self) -> None:
        """The head of the last dump."""
        head = self._head
        if head is None:
            return
        if self._size != head.body_bytes:
            raise DamagedError(f"dump {head.index} is damaged", "tcpkmon repair")
        data = struct.pack(self._order + DUMP_HEAD.format[1:], DUMP_MAGIC, head.index, head.count,
                           head.body_bytes, head.first_serial, self._crc, 0, 0)  # fmt: skip
        seal = struct.pack(f"{self._order}I", zlib.crc32(data[:HEAD_CRC_AT]))
        end = self._to.tell()
        self._to.seek(self._at)
        self._to.write(data[:HEAD_CRC_AT] + seal + data[HEAD_CRC_AT + 4 :])
        self._to.seek(end)
        self._head = None
