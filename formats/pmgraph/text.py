# SPDX-License-Identifier: Apache-2.0
"""Turns a capture into tab-separated text (-T): whole columns at a time, in bounded memory."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from formats.escape import for_terminal
from formats.pmgraph import quantities
from formats.pmgraph.clock import ClockText
from formats.pmgraph.connections import key_columns, match_ports
from formats.pmgraph.options import Selection

if TYPE_CHECKING:
    from formats.psc import Capture

Array = npt.NDArray[Any]

_ALWAYS = ("time", "lport", "rport")
_THREADS = 2
_HEX = np.array([f"{number:02x}".encode() for number in range(256)]).view(np.uint16)


def choose_columns(capture: Capture, selection: Selection) -> tuple[str, ...]:
    """Columns to print: all of them, or time and ports and the chosen; raises UsageError."""
    if not selection.columns:
        return tuple(capture.names)
    quantities.require(capture, selection.columns)
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
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: collections.deque[Future[bytes | memoryview]] = collections.deque()
        try:
            for columns in _read(capture, selection, names, text):
                waiting.append(pool.submit(_format, capture, names, columns, text))
                if len(waiting) > _THREADS:
                    out.write(waiting.popleft().result())
            while waiting:
                out.write(waiting.popleft().result())
        finally:
            for future in waiting:
                future.cancel()


def _heading(name: str) -> str:
    return for_terminal(name) or "?"


def _read(
    capture: Capture, selection: Selection, names: Sequence[str], text: ClockText
) -> Iterator[dict[str, Array]]:
    """Yield the columns to print, by the file's names, of the records to print, chunk by chunk."""
    needed = {quantities.source_of(capture, name) for name in names if name != "time"}
    needed |= {text.column} if "time" in names else set()
    keys = key_columns(capture) if selection.connections else ()
    is_narrowed = bool(selection.columns or selection.connections)
    for piece in capture.chunks():
        columns = capture.columns(needed | set(keys), piece.start, piece.stop)
        if is_narrowed:
            rows = piece.stop - piece.start
            mask = match_ports(columns, selection.connections, rows)
            mask &= ~capture.control(piece.start, piece.stop)
            if not mask.all():
                columns = {name: values[mask] for name, values in columns.items()}
        yield {name: columns[name] for name in needed}


def _format(
    capture: Capture, names: Sequence[str], columns: Mapping[str, Array], text: ClockText
) -> bytes | memoryview:
    printed = [
        text.format(columns[text.column])
        if name == "time" and columns[text.column].dtype.kind in "iu"
        else _printable(quantities.derive(capture, name, columns))
        for name in names
    ]
    return join_columns(printed)


def _printable(values: Array) -> Array:
    """Numbers as they are, raw bytes as hex digits ('S')."""
    if values.dtype.kind in "iu":
        return values
    width = values.dtype.itemsize
    digits = _HEX[np.ascontiguousarray(values).view(np.uint8).reshape(len(values), width)]
    return np.ascontiguousarray(digits).view(f"S{2 * width}").reshape(len(values))


def join_columns(columns: Sequence[Array]) -> bytes | memoryview:
    """Lines of tab-separated values: integers, and texts of one width each ('S')."""
    if not columns or not len(columns[0]):
        return b""
    try:
        import pyarrow
        from pyarrow import csv
    except ImportError:
        return join_plainly(columns)
    table = pyarrow.Table.from_arrays(
        [_to_arrow(column) for column in columns], [str(place) for place in range(len(columns))]
    )
    sink = pyarrow.BufferOutputStream()
    options = csv.WriteOptions(
        include_header=False, delimiter="\t", quoting_style="none", batch_size=16384
    )
    csv.write_csv(table, sink, options)
    return memoryview(sink.getvalue())


def join_plainly(columns: Sequence[Array]) -> bytes:
    """The same as join_columns() without pyarrow, and some five times slower."""
    texts = (
        map(str, column.tolist())
        if column.dtype.kind in "iu"
        else (text.decode("ascii") for text in column.tolist())
        for column in columns
    )
    lines = "\n".join(map("\t".join, zip(*texts, strict=True)))
    return lines.encode("ascii") + b"\n"


def _to_arrow(column: Array) -> Any:
    import pyarrow

    if column.dtype.kind in "iu":
        return pyarrow.array(column)
    width = column.dtype.itemsize
    data = np.ascontiguousarray(column)
    if np.any(data.view(np.uint8).reshape(len(data), width)[:, -1] == 0):  # of different widths
        return pyarrow.array([text.decode("ascii") for text in column.tolist()], pyarrow.utf8())
    offsets = np.arange(0, (len(data) + 1) * width, width, dtype=np.int32)
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)]
    return pyarrow.Array.from_buffers(pyarrow.utf8(), len(data), buffers)
