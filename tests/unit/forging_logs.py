# SPDX-License-Identifier: Apache-2.0
"""Forges Klogger logs and MAGNeT files as forging.py does PSC files.

Written after docs/klogger-format.md and docs/magnet-format.md alone. encode(leave=...) leaves one
of the places as it was.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

LOG_PLACES = ("serial", "sum", "finish", "in_file", "written", "attempts", "serials", "read")
MAGNET_PLACES = ("records", "block", "sums", "in_file", "written", "attempts", "serials", "read")
"""What counts or sums up records. sum: of a dump."""
_HEAD = 24
_FIRST, _ENTRY, _TEXT = 1 << 31, (1 << 31) + 1, (1 << 31) + 2


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


class MagnetFile:
    """A file of 64 bits, little-endian. Of a record nobody knows the CPU; which one loses it in the
    ledger is this class's choice."""

    def __init__(self, data: bytes) -> None:
        self._size = next(size for size in (24, 120)
                          if struct.unpack_from("<I", data, size + 16)[0] == _TEXT)  # fmt: skip
        self._items: list[tuple[bytes, dict[str, Any] | None, int]] = []
        self._times: dict[int, int] = {}
        at = 0
        while at < len(data):
            _, time, event, size = struct.unpack_from("<QQIi", data, at)
            begin, text = at, b""
            at += self._size
            while event in (_FIRST, _ENTRY) and len(text) < size:
                text += data[at : at + 16] + data[at + 24 : at + self._size]
                at += self._size
            told = json.loads(text[:size]) if event == _ENTRY else None
            self._items.append((data[begin:at], told, time))

    @property
    def records(self) -> list[int]:
        """The places of records of events among all items."""
        return [at for at, (raw, told, _) in enumerate(self._items)
                if told is None and 3 < struct.unpack_from("<I", raw, 16)[0] < _FIRST]  # fmt: skip

    def drop(self, which: Iterable[int]) -> None:
        """Take out records, by their place among them."""
        records = self.records
        self._times |= {records[at]: 0 for at in which}

    def double(self, which: Iterable[int]) -> None:
        """Have records twice."""
        records = self.records
        self._times |= {records[at]: 2 for at in which}

    def encode(self, leave: Collection[str] = ()) -> bytes:
        """The file. leave: of MAGNET_PLACES, those that are not rewritten."""
        out, block, count = [], list[bytes](), 0
        more, rows = Counter[tuple[int, int]](), self._rows()
        for at, (raw, was, time) in enumerate(self._items):
            if was is not None:
                told = json.loads(json.dumps(was))
                sums = [zlib.crc32(b"".join(block[low : low + 1024]))
                        for low in range(0, len(block), 1024)]  # fmt: skip
                new = {"records": count, "block": len(block), "sums": sums}
                told |= {name: value for name, value in new.items() if name not in leave}
                if told.get("kind") == "LEDGER":
                    _rewrite(told, more, leave)
                out.append(self._text(told, time))
                block = []
                continue
            times = self._times.get(at, 1)
            if times != 1:
                code = struct.unpack_from("<I", raw, 16)[0]
                found = next(key for key, left in rows.items() if key[1] == code and left > 0)
                rows[found] -= 1
                more[found] += times - 1
            if struct.unpack_from("<I", raw, 16)[0] < _FIRST:
                block += [raw] * times
                count += times
            out += [raw] * times
        return b"".join(out)

    def _rows(self) -> dict[tuple[int, int], int]:
        """How many records each CPU and event has in the file, as the last ledger says."""
        *_, last = (told for _, told, _ in self._items if told and told.get("kind") == "LEDGER")
        return {(row[0], row[1]): row[16] for row in last["points"]}

    def _text(self, told: dict[str, Any], time: int) -> bytes:
        text = json.dumps(told, separators=(",", ":")).encode()
        out = [struct.pack("<QQIi", zlib.crc32(text), time, _ENTRY, len(text))]
        out[0] += bytes(self._size - 24)
        step = self._size - 8
        for low in range(0, len(text), step):
            part = text[low : low + step]
            padded = part + bytes(step - len(part))
            out.append(padded[:16] + struct.pack("<Ii", _TEXT, len(part)) + padded[16:])
        return b"".join(out)


def _rewrite(
    told: dict[str, Any], more: Counter[tuple[int, int]], leave: Collection[str]
) -> None:
    for row in told["points"]:
        for name, place in (("attempts", 2), ("written", 6), ("in_file", 16)):
            row[place] += 0 if name in leave else more[row[0], row[1]]
    for row in told["cpus"]:
        total = sum(count for (cpu, _), count in more.items() if cpu == row[0])
        for name, place in (("serials", 1), ("read", 2)):
            row[place] += 0 if name in leave else total
