# SPDX-License-Identifier: Apache-2.0
"""The entries of a PSC file as lines of text: for pmgraph -T, and as CSV or JSON for exports."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.limits import MOST_TEXT_BYTES
from tcpkmon.formats.base.text import quote_csv, quote_spreadsheet
from tcpkmon.formats.lines import Cell, Kind, Plan, Rows, Source, Writer, write_pages
from tcpkmon.formats.psc.columns import Column
from tcpkmon.formats.psc.values import decode

if TYPE_CHECKING:
    from tcpkmon.formats.lines import Texts
    from tcpkmon.formats.psc.entries import Entries

Mask = npt.NDArray[np.bool_]
Text = Callable[[Any], str | None]
"""Returns the text for a value of a column, None for null. The value is an int or bytes."""

_PAGE_BYTES = 1 << 20
_CONNECTION = ("conn_id", "lport", "rport")
_QUOTES: dict[str, Callable[[str], str]] = {
    "csv": lambda text: quote_csv(for_terminal(text)),
    "spreadsheet": lambda text: quote_spreadsheet(for_terminal(text)),
    "json": json.dumps,
}
"""How each form writes text."""
_NULLS = {"json": "null"}
"""How a form writes null; the others write nothing."""


def write_lines(
    entries: Entries, texts: Mapping[str, Text | None], form: str, out: BinaryIO
) -> None:
    """Write the snapshots as CSV with a line of names ("csv", "spreadsheet"), or as JSON ("json").

    texts: for each column the function that returns its text; None for numbers and times. Raises
    UsageError for another form.
    """
    quote = _QUOTES.get(form)
    if quote is None:
        raise UsageError(f"{form} is for Klogger logs", "choose csv or json")
    is_json, null = form == "json", _NULLS.get(form, "")
    if not is_json:
        out.write((",".join(map(quote, texts)) + "\n").encode("utf-8", "backslashreplace"))
    cells = []
    # All columns share the memory for texts; a text takes up to eight times its value's bytes.
    share = MOST_TEXT_BYTES // max(1, sum(text is not None for text in texts.values()))
    before = "{" if is_json else ""
    for name, text in texts.items():
        column = entries.find_column(name)
        mark = '"' if is_json and column.is_time else ""
        before += f"{json.dumps(name)}:{mark}" if is_json else ""
        if text is not None:
            quoted = _quoted(text, quote, null, share // (256 + 8 * column.length))
            cells.append(text_cell(entries, column, before, quoted))
        elif column.is_time:
            cells.append(number_cell(entries, column, before, Kind.UTC, between=" "))
        else:
            none = entries.none_of(name)
            cells.append(number_cell(entries, column, before, none=none, null=null))
        before = f"{mark},"
    after = before[:-1] + ("}\n" if is_json else "\n")
    write_entries(
        entries, cells, after, lambda rows: ~entries.control_of(rows), out, with_losses=True
    )


def _quoted(
    text: Text, quote: Callable[[str], str], null: str, most: int
) -> Callable[[Any], str]:
    """The function that returns a value's text, quoted; it keeps `most` texts: values repeat."""

    def quoted(value: Any) -> str:
        plain = text(value)
        return null if plain is None else quote(plain)

    return functools.lru_cache(most)(quoted)


def number_cell(
    entries: Entries, column: Column, before: str, kind: Kind = Kind.NUMBER, **how: Any
) -> Cell:
    """The cell of a column that holds numbers or the time; `how` as in Cell."""
    order = entries.header.endian
    if column.is_integer and column.is_network:
        order = Endian.BIG
    source = Source.TIMEVAL if column.is_time else Source.INTEGER
    signed = entries.is_signed(column)
    return Cell(before, kind, column.offset, column.length, order, source, signed, **how)


def text_cell(
    entries: Entries, column: Column, before: str, text: Callable[[Any], str]
) -> Cell:
    """The cell of a column whose values text() converts."""
    at_start = Column(column.name, 0, column.length, flags=column.flags)
    signed = entries.is_signed(column)

    def text_of(value: bytes) -> str:
        if not column.is_integer:
            return text(value)
        rows = np.frombuffer(value, f"V{len(value)}")
        return text(int(decode(rows, at_start, entries.header.endian, signed)[0]))

    return Cell(before, Kind.TEXT, column.offset, column.length, text=text_of)


def write_entries(
    entries: Entries,
    cells: Sequence[Cell],
    after: str,
    choose: Callable[[Any], Mask | None],
    out: BinaryIO,
    with_losses: bool = False,
) -> None:
    """Write one line of these cells for each chosen entry of the file, in bounded memory.

    choose(rows), with rows as entries.read_into() reads them: the mask of the entries to write;
    None: all. with_losses: also count the losses, so that capture.lost needs no second pass.
    """
    size = entries.header.entry_size
    keys = [
        (column.offset, column.length)
        for column in map(entries.columns_by_name.get, _CONNECTION)
        if column is not None and column.is_integer
    ]
    plan = Plan(cells, after, size, keys if size >= 8 else ())
    rows = max(1, min(_PAGE_BYTES // size, len(entries)))
    losses = entries.count_losses() if with_losses else None
    column = entries.seq_column if losses is not None else None
    write_pages(
        entries.chunks(rows),
        lambda: _Worker(entries, plan, choose, rows, column),
        out,
        None if losses is None else lambda worker: losses.add(worker.numbers),
    )


class _Worker:
    """Reads a slice of the entries and returns the lines of those that choose() selects.

    numbers: the values of the column `counted` in the last slice.
    """

    def __init__(
        self,
        entries: Entries,
        plan: Plan,
        choose: Callable[[Any], Mask | None],
        rows: int,
        counted: Column | None,
    ) -> None:
        self._entries = entries
        self._choose = choose
        self._buffer = np.empty(rows, entries.entry_dtype)
        self._writer = Writer([plan])
        self._counted = counted
        self.numbers: npt.NDArray[Any] = np.empty(0, np.uint64)

    def __call__(self, piece: slice) -> Texts:
        rows = self._buffer[: piece.stop - piece.start]
        self._entries.read_into(rows, piece.start)
        if self._counted is not None:
            self.numbers = decode(rows, self._counted, self._entries.header.endian)
        mask = self._choose(rows)
        data = rows.view(np.uint8)
        if mask is None or mask.all():
            return self._writer.write(Rows(data, len(rows)))
        at = np.flatnonzero(mask)
        return self._writer.write(Rows(data, len(at), at * rows.dtype.itemsize))
