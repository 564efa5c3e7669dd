# SPDX-License-Identifier: Apache-2.0
"""Makes a clean MAGNeT file from a damaged one, which it never touches."""

from __future__ import annotations

import os
from collections.abc import Set
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.control import EndReason, LossCause
from tcpkmon.formats.base.limits import MOST_MISSING
from tcpkmon.formats.magnet.control import CHUNK, END, LEDGER, Block, encode
from tcpkmon.formats.magnet.header import MagnetFile
from tcpkmon.formats.magnet.layout import LOST, MOST_LOST
from tcpkmon.formats.magnet.walk import Entry, Piece, Walk
from tcpkmon.formats.verify.magnet.check import verify_magnet
from tcpkmon.formats.verify.mending import Repair, mend, new_file
from tcpkmon.formats.verify.segment import previous_of


def repair_magnet(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> Repair:
    """Write the sound records of the file at `path` to the new file `out`.

    Records that are not as they were written, as far as CRCs tell, are left out: LOST of the cause
    "damaged" counts them. Those after the last control entry are kept while they make sense. END
    comes last, its reason `error` unless the file was whole.

    Raises UsageError if both are the same file, FileError if `out` is there already or cannot be
    written, DamagedError if the header cannot be read. `out` is there only if all went well.
    """
    missing = kept = 0

    def clean(source: MagnetFile, skip: Set[int], to: IO[bytes]) -> None:
        nonlocal missing, kept
        cleaner = _Cleaner(source, skip, to)
        cleaner.run()
        kept, missing = cleaner.kept, missing + cleaner.missing

    with MagnetFile(path) as file, new_file(path, out) as target:
        report = mend(file, target, out, clean, MagnetFile, verify_magnet)
        return Repair("records", kept, file.cut_bytes, report, missing=missing)


class _Cleaner:
    """Copies a file, a block at a time: the records between two control entries.

    skip: control entries that are left out, by the number of their first record. kept: records that
    were copied; missing: those newly counted as lost.
    """

    def __init__(self, file: MagnetFile, skip: Set[int], to: IO[bytes]) -> None:
        self.kept = 0
        self.missing = 0
        self._file = file
        self._skip = skip
        self._to = to
        self._block = Block(file.layout.size)
        self._waiting: list[NDArray[Any]] = []
        self._entries = self._records = 0
        self._ledgers = previous_of(file.header.get("settings")).checkpoints
        self._next = self._told = 0
        """Of the damaged file: the number of the next control entry, and how many records the last
        one has before it."""
        self._time_ns = 0

    def run(self) -> None:
        """Copy the whole file."""
        file = self._file
        self._to.write(file.read(0, file.first).tobytes())
        ended = False
        for found in Walk(file):
            if isinstance(found, Piece):
                self._waiting.append(found.rows)
            elif not ended:
                ended = self._close_block(found)
        if not ended:
            self._keep(self._sensible(self._rows()))
            values = {"kind": END, "time_ns": self._time_ns, "reason": int(EndReason.ERROR)}
            self._write_entry(values)

    def _rows(self) -> NDArray[Any]:
        # As bytes: numpy joins structured rows without what belongs to no field.
        data, self._waiting = b"".join(rows.tobytes() for rows in self._waiting), []
        return self._file.layout.rows(data)

    def _sensible(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Those before the first of an unknown event."""
        codes = rows["event"]
        good = self._file.is_known(codes) & ((codes != LOST) | (rows["size"] > 0))
        return rows if good.all() else rows[: int(np.argmin(good))]

    def _close_block(self, entry: Entry) -> bool:
        """Keep what the CRCs of a control entry prove, from both ends; whether it is END."""
        rows, values = self._rows(), entry.values
        expected = values["records"] - self._told
        if values["number"] < self._next or not 0 <= expected <= MOST_MISSING:
            return False  # it is there twice, or makes no sense
        first, last = self._proven(rows, values["sums"], values["block"], expected)
        self._keep(rows[:first])
        self._lose(expected - first - last, values["time_ns"])
        self._keep(rows[len(rows) - last :])
        self._next, self._told = values["number"] + 1, values["records"]
        self._time_ns = values["time_ns"]
        if entry.start in self._skip:
            return False
        if entry.kind == LEDGER:
            values["checkpoint"] = self._ledgers
            self._ledgers += 1
        self._write_entry(values)
        return entry.kind == END

    def _proven(
        self, rows: NDArray[Any], sums: list[int], told: int, expected: int
    ) -> tuple[int, int]:
        """How many records at the beginning and at the end are as they were written."""
        first = 0
        if told == expected:  # otherwise the entry before it, with its CRCs, is missing
            first = _matching(rows, sums, told)
        back, left = 0, min(len(rows) - first, told - first)
        for number in range(len(sums) - 1, -1, -1):
            size = min(CHUNK, told - number * CHUNK)
            stop = len(rows) - back
            if size > left or not _is_sound(rows[stop - size : stop], sums[number]):
                break
            back, left = back + size, left - size
        return first, back

    def _keep(self, rows: NDArray[Any]) -> None:
        data = np.ascontiguousarray(rows).tobytes()
        self._block.add(data)
        self.kept += len(rows)
        self._records += len(rows)
        self._to.write(data)

    def _lose(self, count: int, time_ns: int) -> None:
        """LOST records for so many."""
        count = max(0, count)
        self.missing += count
        sizes = [MOST_LOST] * (count // MOST_LOST) + [count % MOST_LOST] * (count % MOST_LOST > 0)
        rows = np.zeros(len(sizes), self._file.layout.dtype)
        rows["event"], rows["size"], rows["sockid"] = LOST, sizes, LossCause.DAMAGED
        rows["timestamp"] = time_ns
        self._keep(rows)
        self.kept -= len(rows)

    def _write_entry(self, values: dict[str, Any]) -> None:
        """A control entry, which counts what is in the new file."""
        told = {"number": self._entries, "records": self._records, **self._block.values()}
        self._to.write(encode({**values, **told}, self._file.layout))
        self._entries += 1
        self._block = Block(self._file.layout.size)


def _matching(rows: NDArray[Any], sums: list[int], told: int) -> int:
    """How many records from the beginning on have these CRCs."""
    for number, crc in enumerate(sums):
        start, stop = number * CHUNK, min((number + 1) * CHUNK, told)
        if stop > len(rows) or not _is_sound(rows[start:stop], crc):
            return start
    return told


def _is_sound(rows: NDArray[Any], crc: int) -> bool:
    block = Block(rows.dtype.itemsize)
    block.add(np.ascontiguousarray(rows).tobytes())
    return block.sums == [crc]
