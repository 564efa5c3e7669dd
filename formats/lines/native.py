# SPDX-License-Identifier: Apache-2.0
"""Writes lines by lines.c, which the installation compiles."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base.compiled import find_compiled
from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.base.installing import how_to_install
from tcpkmon.formats.base.limits import MOST_TEXT_BYTES
from tcpkmon.formats.lines.cells import Cell, Kind, Plan, Rows

_VERSION = 3
"""As in lines.c; a library with another number belongs to another tcpkmon."""

_OUT_BYTES = 1 << 22
_LINE_MAX = 1 << 30
_AHEAD_ROWS = 256
_AHEAD_BYTES = 1 << 16
_TEXT_BYTES = 32
_SLOT_BITS = 10
DONE, FULL, MISSING = range(3)
"""enum result of lines.c."""

_CELL = np.dtype(
    [
        ("factor", "u8"), ("zero", "u8"), ("none", "u8"), ("offset", "u4"), ("size", "u4"),
        ("before", "u4"), ("table", "u4"), ("kind", "u1"), ("source", "u1"), ("order", "u1"),
        ("signed", "u1"), ("digits", "u1"), ("between", "u1"), ("has_none", "u1"),
        ("null_size", "u1"), ("null", "S8"),
    ]
)  # fmt: skip
"""struct cell_spec of plan.h."""

_SIGNATURES: dict[str, tuple[Any, str]] = {
    "lines_version": (ctypes.c_int, ""),
    "lines_new": (ctypes.c_void_p, ""),
    "lines_free": (None, "p"),
    "lines_table": (ctypes.c_int, "p4"),
    "lines_text": (ctypes.c_int, "p4pp4"),
    "lines_forget": (None, "p4"),
    "lines_plan": (ctypes.c_int, "p44pp44p4"),
    "lines_write": (ctypes.c_int, "pp88ppp4p8p"),
    "lines_column": (ctypes.c_int, "p4p8pp8p"),
}


@functools.cache
def find_library() -> ctypes.CDLL:
    """The compiled lines.c. TcpkmonError if there is none of this version."""
    place = Path(__file__).with_name("_lines")
    if (library := find_compiled(place, _VERSION, _SIGNATURES)) is None:
        raise TcpkmonError(f"{place}*.so is missing, or of another version: text cannot be written",
                           how_to_install("tcpkmon"))  # fmt: skip
    return library


class Writer:
    """Writes rows of these plans; for one thread at a time. TcpkmonError without lines.c."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        library = find_library()
        self._plans = list(plans)
        self._library = library
        self._handle = library.lines_new()
        if not self._handle:
            raise MemoryError
        self._finalizer = weakref.finalize(self, library.lines_free, self._handle)
        self._text_bytes = 0
        """Size of all tables in bytes, roughly."""
        self._emptied_at = -1
        """The row for which the tables were emptied last."""
        self._tables: dict[tuple[int, int], int] = {}
        for number, plan in enumerate(plans):
            self._add_plan(number, plan)
        self._buffers = [np.empty(_OUT_BYTES, np.uint8)]

    def _add_plan(self, number: int, plan: Plan) -> None:
        befores = [cell.before.encode("utf-8", "backslashreplace") for cell in plan.cells]
        text = b"".join(befores) + plan.after.encode("utf-8", "backslashreplace")
        cells = np.zeros(len(plan.cells), _CELL)
        for place, (cell, before) in enumerate(zip(plan.cells, befores, strict=True)):
            table = 0
            if cell.kind == Kind.TEXT:
                table = self._library.lines_table(self._handle, cell.length)
                self._tables[number, place] = table
            cells[place] = (
                cell.factor % 2**64, cell.zero % 2**64, (cell.none or 0) % 2**64, cell.offset,
                cell.length, len(before), table, cell.kind, cell.source, cell.order,
                cell.is_signed, cell.digits, ord(cell.between), cell.none is not None,
                len(cell.null), cell.null.encode("ascii"),
            )  # fmt: skip
        keys = np.array(plan.keys, np.uint32).reshape(-1)
        code = self._library.lines_plan(
            self._handle, plan.size, len(cells), cells.ctypes.data, text, len(text),
            len(plan.keys), keys.ctypes.data, _SLOT_BITS if plan.keys else 0,
        )  # fmt: skip
        if code == -1:
            raise ValueError("a plan that cannot be")
        if code != number:
            raise MemoryError

    def write(self, rows: Rows) -> list[memoryview]:
        """The lines of the rows, in pieces that are valid until the next call."""
        self._emptied_at = -1
        offsets = rows.offsets.ctypes.data if rows.offsets is not None else None
        plans = rows.plans.ctypes.data if rows.plans is not None else None
        sides = np.array([side.ctypes.data for side in rows.sides], np.uintp)
        done = np.zeros(3, np.uint64)
        pieces: list[memoryview] = []
        place, used = 0, 0
        while True:
            buffer = self._buffers[place]
            code = self._library.lines_write(
                self._handle, rows.data.ctypes.data, len(rows.data), rows.count, offsets, plans,
                sides.ctypes.data, len(sides), buffer.ctypes.data + used, len(buffer) - used,
                done.ctypes.data,
            )  # fmt: skip
            row, written, extra = done.tolist()
            pieces.append(buffer.data[used : used + written])
            used += written
            if code == DONE:
                return pieces
            if code == FULL:
                place, used = self._next_buffer(place, extra), 0
            elif code == MISSING:
                self._add_texts(rows, row, extra)
            else:
                raise ValueError("rows of the wrong kind")

    def _next_buffer(self, place: int, line_bytes: int) -> int:
        """The index of the next output buffer, with room for `line_bytes`."""
        if line_bytes > _LINE_MAX:
            raise TcpkmonError(f"a line of {line_bytes} bytes is too long")
        place += 1
        if place == len(self._buffers):
            self._buffers.append(np.empty(0, np.uint8))
        if len(self._buffers[place]) < line_bytes:
            self._buffers[place] = np.empty(max(_OUT_BYTES, line_bytes), np.uint8)
        return place

    def _add_texts(self, rows: Rows, row: int, place: int) -> None:
        """Add the texts for the cell at `place` of this row and of the rows that follow."""
        number = int(rows.plans[row]) if rows.plans is not None else 0
        cell = self._plans[number].cells[place]
        assert cell.text is not None
        table = self._tables[number, place]
        # Once for a row, which needs the texts of all its cells at the same time.
        if self._text_bytes > MOST_TEXT_BYTES and self._emptied_at != row:
            for other in self._tables.values():
                self._library.lines_forget(self._handle, other)
            self._text_bytes, self._emptied_at = 0, row
        for value in _values(rows, row, number, self._plans[number].size, cell):
            text = cell.text(value).encode("utf-8", "backslashreplace")
            if self._library.lines_text(self._handle, table, value, text, len(text)):
                raise MemoryError
            self._text_bytes += _TEXT_BYTES + len(value) + len(text)


def _values(rows: Rows, row: int, number: int, size: int, cell: Cell) -> set[bytes]:
    """The values of a cell in a row and in the next rows of the same plan."""
    ahead = max(1, min(_AHEAD_ROWS, _AHEAD_BYTES // cell.length))
    which: npt.NDArray[Any] = np.arange(row, min(row + ahead, rows.count))
    if rows.plans is not None:
        which = which[rows.plans[which] == number]
    starts = which * size if rows.offsets is None else rows.offsets[which]
    # Offsets outside of the data are skipped here; lines_write() reports them.
    starts = starts[(starts >= 0) & (starts <= len(rows.data) - size)] + cell.offset
    data = rows.data[starts[:, None] + np.arange(cell.length)].tobytes()
    return {data[at : at + cell.length] for at in range(0, len(data), cell.length)}
