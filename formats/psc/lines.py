# SPDX-License-Identifier: Apache-2.0
"""The entries of a PSC file as lines of text, for pmgraph -T and export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from formats.base.byteorder import Endian
from formats.lines import Cell, Kind, Plan, Rows, Source, make_writer, write_pages
from formats.psc.columns import Column
from formats.psc.values import decode

if TYPE_CHECKING:
    from formats.lines import Texts
    from formats.psc.entries import Entries

Mask = npt.NDArray[np.bool_]

_PAGE_BYTES = 1 << 20
_CONNECTION = ("conn_id", "lport", "rport")


def number_cell(
    capture: Entries, column: Column, before: str, kind: Kind = Kind.NUMBER, **how: Any
) -> Cell:
    """The cell of a column of numbers, or of the time; `how` as in Cell."""
    order = capture.header.endian
    if column.is_integer and column.is_network:
        order = Endian.BIG
    source = Source.TIMEVAL if column.is_time else Source.INTEGER
    signed = capture.is_signed(column)
    return Cell(before, kind, column.offset, column.length, order, source, signed, **how)


def text_cell(capture: Entries, column: Column, before: str, text: Callable[[Any], str]) -> Cell:
    """The cell of a column of which text() tells each value, an int or bytes, as text."""
    alone = Column(column.name, 0, column.length, flags=column.flags)
    signed = capture.is_signed(column)

    def text_of(value: bytes) -> str:
        if not column.is_integer:
            return text(value)
        rows = np.frombuffer(value, f"V{len(value)}")
        return text(int(decode(rows, alone, capture.header.endian, signed)[0]))

    return Cell(before, Kind.TEXT, column.offset, column.length, text=text_of)


class _Worker:
    """Reads some entries and makes lines of those that `choose` has in its mask (None: of all).

    numbers: of the column `counted`, of the entries that it read last.
    """

    def __init__(
        self,
        capture: Entries,
        plan: Plan,
        choose: Callable[[Any], Mask | None],
        rows: int,
        counted: Column | None,
    ) -> None:
        self._entries = capture
        self._choose = choose
        self._room = np.empty(rows, capture.entry_dtype)
        self._writer = make_writer([plan])
        self._counted = counted
        self.numbers: npt.NDArray[Any] = np.empty(0, np.uint64)

    def __call__(self, piece: slice) -> Texts:
        rows = self._room[: piece.stop - piece.start]
        self._entries.read_into(rows, piece.start)
        if self._counted is not None:
            self.numbers = decode(rows, self._counted, self._entries.header.endian)
        mask = self._choose(rows)
        data = rows.view(np.uint8)
        if mask is None or mask.all():
            return self._writer.write(Rows(data, len(rows)))
        at = np.flatnonzero(mask)
        return self._writer.write(Rows(data, len(at), at * rows.dtype.itemsize))


def write_entries(
    capture: Entries,
    cells: Sequence[Cell],
    after: str,
    choose: Callable[[Any], Mask | None],
    out: BinaryIO,
    with_losses: bool = False,
) -> None:
    """Write a line of these cells for each entry of the file, in bounded memory.

    choose: which of some entries, as capture.read_into() gives them, are wanted; None: all.
    with_losses: count what is missing meanwhile, so that capture.lost need not.
    """
    size = capture.header.entry_size
    keys = [
        (column.offset, column.length)
        for column in map(capture.columns_by_name.get, _CONNECTION)
        if column is not None and column.is_integer
    ]
    plan = Plan(cells, after, size, keys if size >= 8 else ())
    rows = max(1, min(_PAGE_BYTES // size, len(capture)))
    losses = capture.count_losses() if with_losses else None
    column = capture.seq_column if losses is not None else None
    write_pages(
        capture.chunks(rows),
        lambda: _Worker(capture, plan, choose, rows, column),
        out,
        None if losses is None else lambda worker: losses.add(worker.numbers),
    )
