# SPDX-License-Identifier: Apache-2.0
"""Forges Klogger logs as forging.py does PSC files.

Written after docs/klogger-format.md alone. encode(leave=...) leaves one of the places as it was.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

LOG_PLACES = ("serial", "sum", "finish", "in_file", "written", "attempts", "serials", "read")
"""What counts or sums up records. sum: of a dump."""
_HEAD = 24


class LogFile:
    """A log of one CPU. dumps: lists of [number, serial, time, payload]."""

    def __init__(self, data: bytes) -> None:
        (length,) = struct.unpack_from("<I", data, 8)
        self._head, at = data[: _HEAD + length], _HEAD + length
        events = json.loads(self._head[_HEAD:])["events"]
        self._fields = {
            one["name"]: {field["name"]: (field["offset"], field["length"])
                          for field in one["fields"]} for one in events
        }  # fmt: skip
        self._names = {one["number"]: one["name"] for one in events}
        self.dumps: list[list[list[Any]]] = []
        while at < len(data):
            _, _, count, nbytes, _, _, _, _ = struct.unpack_from("<8sIIQQIIQ", data, at)
            place, records = at + 48 + (2 * count + 7) // 8 * 8, []
            for _ in range(count):
                number, size, serial, time = struct.unpack_from("<IIQQ", data, place)
                payload = bytearray(data[place + 24 : place + size])
                records.append([number, serial, time, payload, 1])
                place += size
            self.dumps.append(records)
            at += 48 + nbytes

    @property
    def records(self) -> list[list[Any]]:
        """Those that are of no base event."""
        return [one for one in self._all() if self._is_plain(one)]

    def drop(self, which: Iterable[int]) -> None:
        """Take out records, by their place among them."""
        self._times(which, 0)

    def double(self, which: Iterable[int]) -> None:
        """Have records twice."""
        self._times(which, 2)

    def encode(self, leave: Collection[str] = ()) -> bytes:
        """The file. leave: of LOG_PLACES, those that are not rewritten."""
        out, more, shift = [self._head], Counter[int](), 0
        for index, dump in enumerate(self.dumps):
            written: list[tuple[int, int, int, bytearray]] = []
            for record in dump:
                number, serial, time, payload, times = record
                for again in range(times):
                    new = serial if "serial" in leave else serial + shift + again
                    written.append((number, new, time, bytearray(payload)))
                shift += times - 1
                more[self._key(record)] += times - 1
                if times:
                    self._rewrite(written[-1], more, leave)
            out.append(self._dump(index, written, leave))
        return b"".join(out)

    def _all(self) -> Iterator[list[Any]]:
        for dump in self.dumps:
            yield from dump

    def _times(self, which: Iterable[int], times: int) -> None:
        records = self.records
        for at in which:
            records[at][4] = times

    def _is_plain(self, record: list[Any]) -> bool:
        return self._names[record[0]] not in _BASE

    def _key(self, record: list[Any]) -> int:
        """What the ledger counts it under: its event, or its location."""
        if self._names[record[0]] != "SNAPSHOT":
            return int(record[0])
        offset, length = self._fields["SNAPSHOT"]["location"]
        return int.from_bytes(record[3][offset : offset + length], "little")

    def _add(self, record: tuple[int, int, int, bytearray], name: str, more: int) -> None:
        offset, length = self._fields[self._names[record[0]]][name]
        value = int.from_bytes(record[3][offset : offset + length], "little") + more
        record[3][offset : offset + length] = value.to_bytes(length, "little")

    def _rewrite(
        self, record: tuple[int, int, int, bytearray], more: Counter[int], leave: Collection[str]
    ) -> None:
        name = self._names[record[0]]
        if name == "LEDGER":
            offset, length = self._fields[name]["number"]
            number = int.from_bytes(record[3][offset : offset + length], "little")
            for what in {"attempts", "written", "in_file"} - {*leave}:
                self._add(record, what, more[number])
        elif name == "CPU_LEDGER":
            for what in {"serials", "read"} - {*leave}:
                self._add(record, what, sum(more.values()))

    def _dump(
        self, index: int, written: list[tuple[int, int, int, bytearray]], leave: Collection[str]
    ) -> bytes:
        numbers = b"".join(struct.pack("<H", record[0]) for record in written)
        numbers += bytes(-len(numbers) % 8)
        size = len(numbers) + sum(24 + len(record[3]) for record in written)
        for record in written:
            if self._names[record[0]] == "DUMP_FINISH" and "finish" not in leave:
                offset, length = self._fields["DUMP_FINISH"]["bytes"]
                record[3][offset : offset + length] = size.to_bytes(length, "little")
        body = numbers + b"".join(
            struct.pack("<IIQQ", number, 24 + len(payload), serial, time) + payload
            for number, serial, time, payload in written
        )
        crc = zlib.crc32(body) ^ ("sum" in leave)
        head = struct.pack("<8sIIQQI", b"KLOGDUMP", index, len(written), len(body), written[0][1],
                           crc)  # fmt: skip
        return head + struct.pack("<IQ", zlib.crc32(head), 0) + body


_BASE = frozenset((
    "KLOGGER_START", "KLOGGER_FINISH", "PROCESS_EXISTS", "LOGGING_EVENT", "DUMP_BEGIN",
    "DUMP_FINISH", "MARK", "SOCKET_EXISTS", "CLOCK", "LEDGER", "CPU_LEDGER", "PROGRAM_LEDGER",
    "CHANGE", "TRIGGER", "RECONCILED",
))  # fmt: skip


