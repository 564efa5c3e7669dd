# SPDX-License-Identifier: Apache-2.0
"""Reads a MAGNeT file from start to end: pieces of records and control entries, in their order.

What the control entries tell of the records before them is checked here, for all who read: that
none is missing, there twice, or changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.limits import MOST_CONTROL_BYTES, MOST_DAMAGE
from tcpkmon.formats.magnet.control import CHUNK, END, Block, decode, text_records
from tcpkmon.formats.magnet.header import MagnetFile
from tcpkmon.formats.magnet.layout import CONTROL, FIRST_CONTROL, LOST, TEXT

PIECE_RECORDS = 1 << 16
_NONE: NDArray[np.int64] = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Piece:
    """Records in the layout of the file; start: the number of the first in the file.

    Those with codes that the header lacks are among them.
    """

    start: int
    rows: NDArray[Any]


@dataclass(frozen=True)
class Entry:
    """A control entry of `count` records. sound: the records of its block are as it tells."""

    start: int
    count: int
    values: dict[str, Any]
    sound: bool

    @property
    def kind(self) -> str:
        """CHECK, LEDGER, CHANGE or END."""
        return str(self.values["kind"])


class Walk:
    """Iterate over it once. Then, or in between:

    problems: what is wrong, each with the number of its record; the first MOST_DAMAGE. total: how
    many there were. records: those of events so far. lost: what LOST records count. open: records
    since the last control entry. ended: the last entry of the file is END. cut_at: the place of a
    control entry that is cut short by the file's end.
    """

    def __init__(self, file: MagnetFile) -> None:
        self._file = file
        self.problems: list[tuple[int, str]] = []
        self.total = 0
        self.records = 0
        self.lost = 0
        self.entries = 0
        self.ended = False
        self.cut_at: int | None = None
        self._block = Block(file.layout.size)
        self._rows, self._start = file.read(0, 0), 0
        self._controls = self._others = _NONE
        """Of the records in memory, those of control entries, and those that are no TEXT."""

    @property
    def open(self) -> int:
        """Records that no control entry follows."""
        return self._block.count

    def __iter__(self) -> Iterator[Piece | Entry]:
        file, at = self._file, self._file.first
        while at < file.count:
            rows = self._from(at)
            where = int(np.searchsorted(self._controls, at - self._start))
            stop = len(rows)
            if where < len(self._controls):
                stop = int(self._controls[where]) + self._start - at
            if stop:
                yield self._records(at, rows[:stop])
                at += stop
                continue
            found = self._control(at)
            at += found if isinstance(found, int) else found.count
            if isinstance(found, Entry):
                yield found
        if file.cut_bytes:
            self._note(file.count, f"the last record is cut short, {file.cut_bytes} bytes")

    def _note(self, at: int, what: str) -> None:
        self.total += 1
        if len(self.problems) < MOST_DAMAGE:
            self.problems.append((at, what))

    def _from(self, at: int) -> NDArray[Any]:
        """The records from a place on that are in memory, one at least."""
        if not self._start <= at < self._start + len(self._rows):
            self._start = at
            self._rows = self._file.read(at, min(PIECE_RECORDS, self._file.count - at))
            codes = self._rows["event"]
            has_header = self._file.has_header
            self._controls = np.flatnonzero(codes >= FIRST_CONTROL) if has_header else _NONE
            self._others = np.flatnonzero(codes != TEXT) if len(self._controls) else _NONE
        return self._rows[at - self._start :]

    def _records(self, at: int, rows: NDArray[Any]) -> Piece:
        if self.ended:
            self._note(at, "records follow END")
            self.ended = False
        codes = rows["event"]
        self._block.add(rows.view(np.uint8).data)
        self.records += len(rows)
        if self._file.has_header:
            counts = np.maximum(rows["size"][codes == LOST], 0)
            self.lost += int(counts.astype(np.int64).sum())
        known = self._file.is_known(codes)
        if not known.all():
            strange = np.flatnonzero(~known)
            what = f"{len(strange)} record(s) of unknown events, the first {codes[strange[0]]}"
            self._note(at + int(strange[0]), what)
        return Piece(at, rows)

    def _control(self, at: int) -> Entry | int:
        """The control entry at a place; how many records to skip where there is none."""
        here, texts = self._from(at), self._texts(at)
        first = here[:1]
        try:
            if int(first["event"][0]) != CONTROL:
                raise DamagedError("a part of a control entry without its beginning")
            length = min(max(int(first["size"][0]), 0), MOST_CONTROL_BYTES)
            count, left = 1 + text_records(length, self._file.layout), self._file.count - at
            # Only the last record of a text that is whole has less than it could.
            are_full = here["size"][1 : 1 + texts] == len(self._file.layout.room)
            if count > left and 1 + texts == left and are_full.all():
                self.cut_at = at
                raise DamagedError("the last control entry is cut short")
            count = min(count, left)
            if count > 1 + texts and 1 + texts < len(here):
                raise DamagedError("a control entry is not whole")
            rows = here[:count] if count <= len(here) else self._file.read(at, count)
            values = decode(rows, self._file.layout)
        except DamagedError as error:
            self._note(at, error.message)
            return 1 + texts
        sound = self._judge(at, values)
        self.entries = values["number"] + 1
        self.records = values["records"]
        self._block = Block(self._file.layout.size)
        return Entry(at, count, values, sound)

    def _texts(self, at: int) -> int:
        """How many records of TEXT follow the one at a place, as far as they are in memory."""
        place = at - self._start + 1
        where = int(np.searchsorted(self._others, place))
        end = int(self._others[where]) if where < len(self._others) else len(self._rows)
        return end - place

    def _judge(self, at: int, values: dict[str, Any]) -> bool:
        """Whether the records since the last entry are what this one tells."""
        before = self.total
        if self.ended:
            self._note(at, "a control entry follows END")
        self.ended = values["kind"] == END
        if values["number"] != self.entries:
            what = f"control entry {values['number']} where {self.entries} is due"
            self._note(at, what)
        block, told = self._block, values["block"]
        if block.count != told:
            self._note(at, f"{told} records before a control entry are {block.count}")
        elif block.sums != values["sums"]:
            pairs = zip(block.sums, values["sums"], strict=True)
            wrong = next(n for n, (one, other) in enumerate(pairs) if one != other)
            place = at - block.count + CHUNK * wrong
            self._note(place, "the checksum of records is wrong: some are not as they were written")
        elif values["records"] != self.records:
            what = f"{values['records']} records before a control entry are {self.records}"
            self._note(at, what)
        return self.total == before
