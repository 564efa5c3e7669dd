# SPDX-License-Identifier: Apache-2.0
"""Forges PSC files: records go or come twice, and all that counts them is rewritten to fit.

Written after docs/psc-format.md alone, without tcpkmon's own codecs: what both understand wrong
would not be found otherwise. encode(leave=...) leaves one of the places as it was.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterable
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
