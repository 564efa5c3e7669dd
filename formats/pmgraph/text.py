# SPDX-License-Identifier: Apache-2.0
"""Writes a capture as tab-separated text (-T), in bounded memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.ports import find_missing
from tcpkmon.formats.lines import Cell, Kind
from tcpkmon.formats.pmgraph.arrays import Array
from tcpkmon.formats.pmgraph.clock import ClockText
from tcpkmon.formats.pmgraph.connections import key_columns, match
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.quantities import factor_of, require, source_of
from tcpkmon.formats.psc.lines import number_cell, write_entries
from tcpkmon.formats.psc.reader import Capture
from tcpkmon.formats.psc.values import decode

_ALWAYS = ("time", "lport", "rport")


def choose_columns(capture: Capture, selection: Selection) -> tuple[str, ...]:
    """The columns to print: all, or time, ports and the chosen ones; raises UsageError."""
    if not selection.columns:
        return tuple(capture.names)
    require(capture, selection.columns)
    always = tuple(name for name in _ALWAYS if name in capture.names)
    return tuple(dict.fromkeys(always + selection.columns))


def write_text(capture: Capture, selection: Selection, out: BinaryIO, clock: str = "epoch") -> None:
    """Write a line of names and a line for each record.

    Integers are decimal, raw bytes hexadecimal, times in the format `clock`. Control entries are
    left out if columns or connections are chosen. Raises UsageError for missing columns, and where
    the file has none of the chosen connections.
    """
    names = choose_columns(capture, selection)
    text = ClockText(capture, clock)
    heading = "\t".join(for_terminal(name) or "?" for name in names)
    out.write(f"# {heading}\n".encode("utf-8", "backslashreplace"))
    seen: set[tuple[int, int]] = set()
    choose = functools.partial(_choose_entries, capture, selection, seen)
    write_entries(capture, _cells(capture, names, text), "\n", choose, out)
    if selection.connections and (note := find_missing(selection.connections, seen, capture.path)):
        say(f"pmgraph: {note}")


def _choose_entries(
    capture: Capture, selection: Selection, seen: set[tuple[int, int]], rows: Array
) -> Array | None:
    """(n,) whether an entry is printed; None: all are. seen: gets the ports of the chosen."""
    if not (selection.columns or selection.connections):
        return None
    found = {
        name: decode(rows, capture.columns_by_name[name], capture.header.endian)
        for name in (key_columns(capture) if selection.connections else ())
    }
    mask: Array = match(found, selection.connections, len(rows)) & ~capture.control_of(rows)
    if selection.connections and mask.any():
        ports = np.unique(np.stack((found["lport"][mask], found["rport"][mask])), axis=1)
        seen.update(map(tuple, ports.T.tolist()))
    return mask


def _cells(capture: Capture, names: Sequence[str], text: ClockText) -> list[Cell]:
    cells = []
    for place, name in enumerate(names):
        before = "\t" if place else ""
        column = capture.columns_by_name[
            text.column if name == "time" else source_of(capture, name)
        ]
        if not (column.is_time or column.is_integer):
            cells.append(Cell(before, Kind.HEX, column.offset, column.length))
        elif name == "time":
            cells.append(text.cell(before))
        else:
            factor = factor_of(capture, name)
            cells.append(number_cell(capture, column, before, factor=factor))
    return cells
