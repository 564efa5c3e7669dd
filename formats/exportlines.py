# SPDX-License-Identifier: Apache-2.0
"""The snapshots of a PSC file as CSV or JSON lines, for formats.export."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy.typing as npt

from formats.escape import for_terminal
from formats.psc.linegroups import Cell, write_fixed, write_integers
from formats.psc.lines import Lines, Page, write_pages
from formats.times import format_utc

if TYPE_CHECKING:
    from formats.export import Export

Array = npt.NDArray[Any]


def write_lines(export: Export, form: str, out: BinaryIO) -> None:
    """Write CSV with a line of names ("csv"), or a JSON object a line ("json")."""
    capture = export.capture
    if form == "csv":
        out.write((",".join(export.names) + "\n").encode())
    cells = []
    for place, name in enumerate(export.names):
        before = "," if place else ""
        if form == "json":
            before = f"{before or '{'}{json.dumps(name)}:"
        column = capture.find_column(name)
        write = _writer(export, name, json.dumps if form == "json" else _csv_text)
        cells.append(Cell(column, capture.is_signed(column), before, write))
    after = "}\n" if form == "json" else "\n"
    lines = Lines(cells, after, capture.header.endian, capture.header.entry_size)
    write_pages(_pages(export, lines), out)


def _pages(export: Export, lines: Lines) -> Iterator[Page]:
    for piece in export.capture.chunks(lines.rows):
        page = lines.page()
        for rows in export.capture.blocks(piece.start, piece.stop):
            page.add(export.capture.snapshots_of(rows))
        yield page


def _writer(export: Export, name: str, quote: Callable[[str], str]) -> Callable[[Array], Any]:
    """What writes the cells of a column."""
    if export.capture.find_column(name).is_time:
        return functools.partial(_write_times, '"' if quote is json.dumps else "")
    text = export.texts(name)
    if text is None:
        return write_integers
    return functools.partial(_write_texts, lambda value: quote(text(value)))


def _write_texts(text: Callable[[Any], str], values: Array) -> Any:
    """One text for each distinct value."""
    import pyarrow

    from formats.export import encode

    encoded = encode(values)
    texts = [text(value) for value in encoded.dictionary.to_pylist()]
    return pyarrow.array(texts, pyarrow.string()).take(encoded.indices)


def _write_times(quote: str, times_ns: Array) -> Any:
    """Times in UTC, to the microsecond."""
    from pyarrow import compute

    cells = write_fixed(format_utc(times_ns, " "))
    return compute.binary_join_element_wise(quote, cells, quote, "") if quote else cells


def _csv_text(text: str) -> str:
    text = for_terminal(text)
    return '"' + text.replace('"', '""') + '"' if '"' in text or "," in text else text
