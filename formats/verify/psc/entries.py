# SPDX-License-Identifier: Apache-2.0
"""How verify reads a capture: whole columns of a segment at once, control entries as words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base import control, facts
from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.psc.columns import CLASSIC, CLASSIC_BYTES
from tcpkmon.formats.psc.header import KIND_SCHEMA, KIND_SETTINGS
from tcpkmon.formats.psc.values import decode, words
from tcpkmon.formats.verify.report import I64, U64, Mask

if TYPE_CHECKING:
    from tcpkmon.formats.psc.reader import Capture

_WORDS_USED = {
    control.Start.location: 6,
    control.Clock.location: 7,
    control.Loss.location: 5,
    control.Checkpoint.location: 6,
    control.End.location: 5,
    control.Ledger.location: 10,
    control.Program.location: 8,
    control.Change.location: 10,
}
_NEEDED = ("seq_no", "callvalue", "location", "lport", "rport")


@dataclass
class ControlRows:
    """The control entries of a segment: n rows, absolute entry numbers, words as u64 (n, 10)."""

    index: I64
    location: I64
    callvalue: I64
    words: U64
    pairs: U64 = field(init=False)
    """The five u64 of each row, (n, 5)."""

    def __post_init__(self) -> None:
        self.pairs = self.words[:, 0::2] | (self.words[:, 1::2] << np.uint64(32))

    def __len__(self) -> int:
        return len(self.index)

    def take(self, which: npt.NDArray[Any]) -> ControlRows:
        """The rows that a mask or an index array chooses."""
        return ControlRows(
            self.index[which], self.location[which], self.callvalue[which], self.words[which]
        )

    def decode(self, row: int) -> control.Control:
        """One row as its dataclass."""
        words = [int(word) for word in self.words[row]]
        return facts.decode(int(self.callvalue[row]), int(self.location[row]), words)


NO_ROWS = ControlRows(
    np.zeros(0, np.int64),
    np.zeros(0, np.int64),
    np.zeros(0, np.int64),
    np.zeros((0, control.WORDS_COUNT), np.uint64),
)


class Segment:
    """The entries start to stop of a capture, read once; columns are taken from them in turn."""

    def __init__(self, capture: Capture, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self.rows = capture.rows(start, stop)
        self._capture = capture
        self._fields: Mapping[str, Any] = self.rows.dtype.fields or {}

    def __len__(self) -> int:
        return self.stop - self.start

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """A column that holds integers or the time, in native byte order."""
        if name in self._fields and self._fields[name][0].kind == "u":
            values = self.rows[name]
            return values.astype(values.dtype.newbyteorder("="))
        column = self._capture.columns_by_name[name]
        return decode(self.rows, column, self._capture.header.endian)

    def wide(self, name: str) -> I64:
        """An integer column as int64; values of 2^63 and more come out negative."""
        return self.numbers(name).astype(np.uint64).view(np.int64)

    def time_ns(self) -> I64:
        """The column `time`, ns since the epoch."""
        if "tv_sec" not in self._fields:
            return self.numbers("time").astype(np.int64)
        seconds = self.rows["tv_sec"].astype(np.int64)
        return seconds * 1_000_000_000 + self.rows["tv_usec"].astype(np.int64) * 1000

    def stamp_ns(self, entry: int) -> int | None:
        """The time of the entry with this number, monotonic if the file has that."""
        name = "time_ns" if is_number(self._capture, "time_ns") else "time"
        column = self._capture.columns_by_name.get(name)
        if column is None or not (column.is_integer or column.is_time):
            return None
        row = self.rows[entry - self.start :][:1]
        return int(decode(row, column, self._capture.header.endian)[0])

    def strange_tails(self, rows: ControlRows) -> I64:
        """Entry numbers of control entries that are not zero where they must be.

        That is: in the words their kind has no use for, and beyond the classic 64 bytes but for
        `seq` and `time_ns`.
        """
        if not len(rows):
            return rows.index
        used = np.zeros(control.WORDS_COUNT, np.bool_)
        wrong = np.zeros(len(rows), np.bool_)
        for kind, count in _WORDS_USED.items():
            used[:] = np.arange(control.WORDS_COUNT) < count
            wrong |= (rows.location == kind) & np.any(rows.words[:, ~used], axis=1)
        size = self.rows.dtype.itemsize
        unused = np.arange(size) >= CLASSIC_BYTES
        for name in ("seq", "time_ns"):
            column = self._capture.columns_by_name.get(name)
            if column is not None:
                unused[column.offset : column.offset + column.length] = False
        raw = self.rows.view(f"V{size}")[rows.index - self.start].tobytes()
        tail = np.frombuffer(raw, np.uint8).reshape(len(rows), size)[:, unused]
        found: I64 = rows.index[wrong | np.any(tail, axis=1)]
        return found

    def control_rows(self, mask: Mask) -> ControlRows:
        """The entries start + i for which mask[i], taken as control entries."""
        local = np.flatnonzero(mask)
        if not len(local):
            return NO_ROWS
        # As plain bytes: of a structured row, numpy need not copy what belongs to no column.
        chosen = self.rows.view(f"V{self.rows.dtype.itemsize}")[local]
        columns, endian = self._capture.columns_by_name, self._capture.header.endian
        return ControlRows(
            local + self.start,
            decode(chosen, columns["location"], endian).astype(np.int64),
            decode(chosen, columns["callvalue"], endian).astype(np.int64),
            words(chosen, endian).astype(np.uint64),
        )


def is_number(capture: Capture, name: str) -> bool:
    """Whether the file has this column and it holds integers."""
    column = capture.columns_by_name.get(name)
    return column is not None and column.length > 0 and column.is_integer


def has_our_header(capture: Capture) -> bool:
    """Whether the header has kinds that only a capture of tcpkmon has: settings that say that a
    file was anonymised are none."""
    kinds = set(capture.header.extras)
    if KIND_SCHEMA in kinds or KIND_SETTINGS not in kinds:
        return KIND_SCHEMA in kinds
    settings = capture.settings
    return not isinstance(settings, dict) or set(settings) != {"anonymised"}


def is_ours(capture: Capture) -> bool:
    """Whether tcpkmon wrote this file: by its own header kinds, or by its first control entries.

    False for a file without the columns that control entries need, even if its header is ours.
    """
    at = {
        column.name: (column.offset, column.length)
        for column in capture.header.columns
        if column.is_integer
    }
    fits = all(at.get(name) == CLASSIC[name] for name in _NEEDED)
    if not fits or capture.header.entry_size < CLASSIC_BYTES or capture.header.endian == Endian.PDP:
        return False
    if has_our_header(capture):
        return True
    first = min(len(capture), 4096)
    location = capture.column("location", 0, first)
    known = (location == control.Start.location) | (location == control.Checkpoint.location)
    return bool(np.any(known & capture.control(0, first)))
