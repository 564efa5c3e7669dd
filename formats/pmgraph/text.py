# SPDX-License-Identifier: Apache-2.0
"""Turns a capture into tab-separated text (-T): whole columns at a time, in bounded memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from formats.escape import for_terminal
from formats.pmgraph.clock import ClockText
from formats.pmgraph.connections import key_columns, match_ports
from formats.pmgraph.options import Selection
from formats.pmgraph.quantities import derive, require, source_of
from formats.psc.linegroups import Cell, write_fixed, write_integers
from formats.psc.lines import Lines, Page, write_pages
from formats.psc.values import decode

if TYPE_CHECKING:
    from formats.psc import Capture

Array = npt.NDArray[Any]

_ALWAYS = ("time", "lport", "rport")
_PLAIN_ROWS = 1 << 14
_HEX = np.array([f"{number:02x}".encode() for number in range(256)]).view(np.uint16)


def choose_columns(capture: Capture, selection: Selection) -> tuple[str, ...]:
    """Columns to print: all of them, or time and ports and the chosen; raises UsageError."""
    if not selection.columns:
        return tuple(capture.names)
    require(capture, selection.columns)
    always = tuple(name for name in _ALWAYS if name in capture.names)
    return tuple(dict.fromkeys(always + selection.columns))


def write_text(capture: Capture, selection: Selection, out: BinaryIO, clock: str = "epoch") -> None:
    """Write the line of names and one line per record.

    Integers in decimal, raw bytes in hex, the time as `clock` says. Control entries are left out
    where columns or connections were chosen. Raises UsageError for columns that are not there.
    """
    names = choose_columns(capture, selection)
    text = ClockText(capture, clock)
    out.write(("# " + "\t".join(map(_heading, names)) + "\n").encode("utf-8", "backslashreplace"))
    try:
        from pyarrow import compute  # noqa: F401
    except ImportError:
        _write_plainly(capture, selection, names, text, out)
        return
    lines = Lines(
        _cells(capture, names, text), "\n", capture.header.endian, capture.header.entry_size
    )
    write_pages(_pages(capture, selection, lines), out)


def _pages(capture: Capture, selection: Selection, lines: Lines) -> Iterator[Page]:
    for piece in capture.chunks(lines.rows):
        page = lines.page()
        for rows in _narrowed(capture, selection, piece):
            page.add(rows)
        yield page


def _heading(name: str) -> str:
    return for_terminal(name) or "?"


def _narrowed(capture: Capture, selection: Selection, piece: slice) -> Iterator[Array]:
    """The entries to print, as they stand in the file, a few at a time."""
    is_narrowed = bool(selection.columns or selection.connections)
    keys = [
        (name, capture.columns_by_name[name])
        for name in (key_columns(capture) if selection.connections else ())
    ]
    for rows in capture.blocks(piece.start, piece.stop):
        if not is_narrowed:
            yield rows
            continue
        found = {name: decode(rows, column, capture.header.endian) for name, column in keys}
        mask = match_ports(found, selection.connections, len(rows)) & ~capture.control_of(rows)
        # As plain bytes: of a structured row, numpy need not copy what belongs to no column.
        yield rows if mask.all() else rows.view(f"V{rows.dtype.itemsize}")[mask]


def _cells(capture: Capture, names: Sequence[str], text: ClockText) -> list[Cell]:
    cells = []
    for place, name in enumerate(names):
        is_time = name == "time"
        column = capture.columns_by_name[text.column if is_time else source_of(capture, name)]
        write: Callable[[Array], Any] = write_integers
        if is_time and (column.is_time or column.is_integer):
            write = functools.partial(_write_times, text)
        elif not (column.is_time or column.is_integer):
            write = _write_digits
        elif name not in capture.columns_by_name:
            write = functools.partial(_write_derived, capture, name)
        cells.append(Cell(column, capture.is_signed(column), "\t" if place else "", write))
    return cells


def _write_times(text: ClockText, values: Array) -> Any:
    return write_fixed(text.format(values))


def _write_digits(values: Array) -> Any:
    return write_fixed(_printable(values))


def _write_derived(capture: Capture, name: str, values: Array) -> Any:
    return write_integers(derive(capture, name, {source_of(capture, name): values}))


def _write_plainly(
    capture: Capture, selection: Selection, names: Sequence[str], text: ClockText, out: BinaryIO
) -> None:
    """The same without pyarrow, and ten times slower."""
    columns = [cell.column for cell in _cells(capture, names, text)]
    for piece in capture.chunks(_PLAIN_ROWS):
        for rows in _narrowed(capture, selection, piece):
            if not len(rows):
                continue
            printed = []
            for name, column in zip(names, columns, strict=True):
                values = decode(rows, column, capture.header.endian, capture.is_signed(column))
                if name == "time" and values.dtype.kind in "iu":
                    values = text.format(values)
                else:
                    values = _printable(derive(capture, name, {source_of(capture, name): values}))
                texts = values.tolist()
                is_bytes = values.dtype.kind == "S"
                printed.append([t.decode("ascii") for t in texts] if is_bytes else map(str, texts))
            out.write(("\n".join(map("\t".join, zip(*printed, strict=True))) + "\n").encode())


def _printable(values: Array) -> Array:
    """Numbers as they are, raw bytes as hex digits ('S')."""
    if values.dtype.kind in "iu":
        return values
    width = values.dtype.itemsize
    digits = _HEX[np.ascontiguousarray(values).view(np.uint8).reshape(len(values), width)]
    return np.ascontiguousarray(digits).view(f"S{2 * width}").reshape(len(values))
