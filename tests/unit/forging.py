# SPDX-License-Identifier: Apache-2.0
"""Forges PSC files and logs: records go or come twice, and what counts them is rewritten to fit.

Written after docs/psc-format.md and klogger-format.md alone, without tcpkmon's own codecs: what
both understand wrong would not be found otherwise. encode(leave=...) leaves one of the places as it
was.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

PLACES = ("seq", "serial", "checkpoint", "end", "in_file", "written", "attempts", "serials", "read")
"""What counts records: numbers of entries, serials, entries before a checkpoint and END, and the
counters of LEDGER, COLLECTOR and CPU rows."""
_DEFINITION, _CHECKPOINT, _END, _LEDGER, _CPU, _COLLECTOR = 4, 228, 230, 231, 233, 235
_WORDS = 24


class PscFile:
    """The entries of a file without losses; rows: (n, bytes)."""

    def __init__(self, data: bytes) -> None:
        at, columns, size = 0, {}, 0
        while True:
            kind, length = struct.unpack_from(">HH", data, at)
            if kind == 3:
                (size,) = struct.unpack_from(">H", data, at + 4)
            elif kind == _DEFINITION:
                name = data[at + 4 : at + 28].rstrip(b"\0").decode()
                columns[name] = struct.unpack_from(">HB", data, at + 28)
            at += length
            if kind == 0:
                break
        self._header, self._columns = data[:at], columns
        self.rows = np.frombuffer(data[at:], np.uint8).reshape(-1, size).copy()
        self._old = np.arange(len(self.rows))
        """Of each row, which one it was."""
        self._was = self.rows.copy()

    def column(self, name: str, rows: Any = None) -> Any:
        """(n,) the numbers of a column, little-endian."""
        offset, length = self._columns[name]
        raw = np.ascontiguousarray((self.rows if rows is None else rows)[:, offset:][:, :length])
        return raw.view(f"<u{length}").ravel().astype(np.int64)

    @property
    def snapshots(self) -> Any:
        """The rows that are no control entries."""
        return np.flatnonzero(self._is_snapshot(self.rows))

    @property
    def records(self) -> Any:
        """As snapshots: the name that is the same for all formats."""
        return self.snapshots

    def drop(self, which: Iterable[int]) -> None:
        """Take out snapshots, by their place among the snapshots."""
        gone = set(self.snapshots[list(which)].tolist())
        self.keep([at for at in range(len(self.rows)) if at not in gone])

    def double(self, which: Iterable[int]) -> None:
        """Put in snapshots twice."""
        twice = set(self.snapshots[list(which)].tolist())
        self.keep([at for at in range(len(self.rows)) for _ in range(1 + (at in twice))])

    def put(self, name: str, values: Any) -> None:
        """Other numbers in a column; values: (n,)."""
        self._set(self.rows, name, values)

    def encode(self, leave: Collection[str] = ()) -> bytes:
        """The file. leave: of PLACES, those that are not rewritten."""
        rows, before = self.rows.copy(), self._counts_before()
        if "seq" not in leave:
            self._set(rows, "seq_no", self.column("seq_no", self._was)[0] + np.arange(len(rows)))
        if "serial" not in leave:
            self._number(rows)
        location, told = self.column("location"), self.column("callvalue")
        for at in np.flatnonzero(~self._is_snapshot(rows)).tolist():
            more, kind, what = before[at], int(location[at]), int(told[at])
            if kind == _CHECKPOINT:
                since = more  # its group counts what was before it
            if kind in (_CHECKPOINT, _END):
                place = "checkpoint" if kind == _CHECKPOINT else "end"
                self._add(rows, at, 0, 0 if place in leave else at - int(self._old[at]))
            elif kind == _CPU:
                total = sum(count for (cpu, _), count in since.items() if cpu == what)
                self._add(rows, at, 0, 0 if "serials" in leave else total)
                self._add(rows, at, 2, 0 if "read" in leave else total)
            elif kind in (_LEDGER, _COLLECTOR):
                count = since[what >> 16, what & 0xFFFF]
                words = {"attempts": 0, "written": 6} if kind == _LEDGER else {"in_file": 8}
                for name, word in words.items():
                    self._add(rows, at, word, 0 if name in leave else count)
        return self._header + rows.tobytes()

    def keep(self, which: list[int]) -> None:
        """Take out all rows but these, control entries too."""
        self.rows, self._old = self.rows[which], self._old[which]

    def _is_snapshot(self, rows: Any) -> Any:
        location = self.column("location", rows)
        ports = self.column("lport", rows) | self.column("rport", rows)
        return (location < 224) | (location == 226) | (ports != 0)

    def _counts_before(self) -> list[Counter[tuple[int, int]]]:
        """Before each row, how many snapshots of a CPU and location there are more than were."""
        found, now, at = [], Counter[tuple[int, int]](), 0
        were = self._is_snapshot(self._was)
        cpu, location = self.column("cpu", self._was), self.column("location", self._was)
        for old in self._old.tolist():
            for gone in range(at, old + 1):
                if were[gone]:
                    now[int(cpu[gone]), int(location[gone])] -= 1
            at = max(at, old + 1)
            found.append(now.copy())
            if were[old]:
                now[int(cpu[old]), int(location[old])] += 1
                found[-1] = now.copy()
        return found

    def _number(self, rows: Any) -> None:
        """Each CPU's serials run on from its first one."""
        serial, cpu = self.column("serial", rows), self.column("cpu", rows)
        plain = self._is_snapshot(rows)
        first = self.column("serial", self._was)
        for one in set(cpu[plain].tolist()):
            mine = np.flatnonzero(plain & (cpu == one))
            order = np.argsort(serial[mine], kind="stable")
            was = self._is_snapshot(self._was) & (self.column("cpu", self._was) == one)
            serial[mine[order]] = first[was].min() + np.arange(len(mine))
        self._set(rows, "serial", serial)

    def _set(self, rows: Any, name: str, values: Any) -> None:
        offset, length = self._columns[name]
        raw = np.asarray(values).astype(f"<u{length}").reshape(-1, 1).view(np.uint8)
        rows[:, offset : offset + length] = raw

    def _add(self, rows: Any, at: int, word: int, more: int) -> None:
        """To a control entry's number of 64 bits."""
        begin = _WORDS + 4 * word
        number = int.from_bytes(rows[at, begin : begin + 8].tobytes(), "little") + more
        rows[at, begin : begin + 8] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)


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
