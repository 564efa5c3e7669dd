# SPDX-License-Identifier: Apache-2.0
"""Writes the files that the xgraph program of 1989 reads (-x), every record as a point.

TitleText: 1055.5050
XUnitText: seconds
YUnitText: bytes

"snd_cwnd
0.000000 1448
0.200000 2896

"sb_hiwat
...
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from formats.base.escape import for_terminal
from formats.base.files import already_there, create_file
from formats.pmgraph.clock import Seconds
from formats.pmgraph.connections import Connection, Finder, find_connections, key_columns
from formats.pmgraph.options import Selection
from formats.pmgraph.pages import choose_quantities, display_name
from formats.pmgraph.quantities import Quantity, derive, source_of
from formats.pmgraph.series import Unwrapper

if TYPE_CHECKING:
    from formats.psc.reader import Capture

Array = npt.NDArray[Any]

_OPEN_AT_ONCE = 64


def write_xgraph(
    capture: Capture, selection: Selection, folder: Path, force: bool = False
) -> list[Path]:
    """Write one file per connection, or with by_parameter one per column, and return their paths.

    They are named after the capture and the connection's ports (or the column), in `folder`.
    Sequence numbers are relative, as in the graphs. Raises FileError when a file is there already.
    """
    connections = find_connections(capture, selection.connections)
    chosen = choose_quantities(capture, selection)
    base = capture.path.name.removesuffix(".pm")
    if selection.by_parameter:
        paths = [folder / f"{base}.{_file_part(one.name)}.xg" for one in chosen]
        _refuse_present(paths, force)
        for one, path in zip(chosen, paths, strict=True):
            _write_parameter(capture, selection, one, connections, path, force)
        return paths
    paths = _name_files(connections, folder, base)
    _refuse_present(paths, force)
    for start in range(0, len(connections), _OPEN_AT_ONCE):
        some = slice(start, start + _OPEN_AT_ONCE)
        _write_connections(capture, selection, chosen, connections[some], paths[some], force)
    return paths


def _refuse_present(paths: Sequence[Path], force: bool) -> None:
    """Before anything is half done: raise FileError when one of the files is there already."""
    for path in paths:
        if not force and os.path.lexists(path):
            raise already_there(path)


def _name_files(connections: Sequence[Connection], folder: Path, base: str) -> list[Path]:
    """One path per connection; where ports came back, the connections are numbered."""
    counts: dict[str, int] = {}
    paths = []
    for one in connections:
        counts[one.ports] = counts.get(one.ports, 0) + 1
        number = f".{counts[one.ports]}" if counts[one.ports] > 1 else ""
        paths.append(folder / f"{base}.{one.ports}{number}.xg")
    return paths


def _file_part(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in name)


def _write_connections(
    capture: Capture,
    selection: Selection,
    chosen: Sequence[Quantity],
    connections: Sequence[Connection],
    paths: Sequence[Path],
    force: bool,
) -> None:
    seconds = Seconds(capture)
    unwrappers = [Unwrapper() for _ in connections]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(create_file(path, force)) for path in paths]
        units = sorted({one.unit for one in chosen if one.unit})
        for out, one in zip(files, connections, strict=True):
            _write_head(out, one.ports, ", ".join(units))
        _find_bases(capture, chosen, connections, unwrappers)
        for quantity in chosen:
            for out in files:
                _write_name(out, display_name(quantity, selection))
            factor = selection.scales.get(quantity.name, 1.0)
            points = _points(capture, quantity, connections, seconds, unwrappers)
            for index, times, values in points:
                _write_points(files[index], times, values, factor)


def _write_parameter(
    capture: Capture,
    selection: Selection,
    quantity: Quantity,
    connections: Sequence[Connection],
    path: Path,
    force: bool,
) -> None:
    seconds = Seconds(capture)
    factor = selection.scales.get(quantity.name, 1.0)
    with create_file(path, force) as out:
        _write_head(out, display_name(quantity, selection), quantity.unit)
        for one in connections:
            unwrappers = [Unwrapper()]
            _find_bases(capture, [quantity], [one], unwrappers)
            _write_name(out, one.ports)
            for _, times, values in _points(capture, quantity, [one], seconds, unwrappers):
                _write_points(out, times, values, factor)


def _points(
    capture: Capture,
    quantity: Quantity,
    connections: Sequence[Connection],
    seconds: Seconds,
    unwrappers: Sequence[Unwrapper],
) -> Iterator[tuple[int, Array, Array]]:
    """Yield (index of the connection, times, values) of one column, chunk by chunk."""
    for index, rows, columns in _pieces(capture, [quantity], connections, (seconds.column,)):
        times = seconds.of(columns)[rows]
        values = derive(capture, quantity.name, columns)[rows]
        if quantity.kind == "sequence":
            known = np.flatnonzero(values)
            times, values = times[known], values[known]
            if not len(known):
                continue
            values = unwrappers[index].relative(quantity.name, values)
        elif quantity.missing is not None:
            known = np.flatnonzero(values != quantity.missing)
            times, values = times[known], values[known]
        yield index, times, values


def _find_bases(
    capture: Capture,
    chosen: Sequence[Quantity],
    connections: Sequence[Connection],
    unwrappers: Sequence[Unwrapper],
) -> None:
    """Give each unwrapper the first numbers of all sequence columns, so that they share bases."""
    sequences = [one for one in chosen if one.kind == "sequence"]
    lacking = {(index, one.name) for index in range(len(connections)) for one in sequences}
    for index, rows, columns in _pieces(capture, sequences, connections, ()):
        first = {}
        for one in sequences:
            known = np.flatnonzero(columns[one.name][rows])
            if (index, one.name) in lacking and len(known):
                lacking.discard((index, one.name))
                first[one.name] = int(columns[one.name][rows[known[0]]])
        unwrappers[index].start(first)
        if not lacking:
            return


def _pieces(
    capture: Capture,
    chosen: Sequence[Quantity],
    connections: Sequence[Connection],
    more: tuple[str, ...],
) -> Iterator[tuple[int, Array, dict[str, Array]]]:
    """Yield (index of the connection, its rows, columns of the chunk), where it has rows."""
    finder = Finder(connections)
    needed = {source_of(capture, one.name) for one in chosen}.union(key_columns(capture), more)
    first = min((one.first_row for one in connections), default=0)
    last = max((one.last_row for one in connections), default=-1)
    for piece in capture.chunks():
        if not chosen or piece.stop <= first or piece.start > last:
            continue
        columns = capture.columns(needed, piece.start, piece.stop)
        snapshots = np.flatnonzero(~capture.control(piece.start, piece.stop))
        for index, rows in finder.split(columns, snapshots):
            yield index, rows, columns


def _write_head(out: BinaryIO, title: str, unit: str) -> None:
    lines = ("TitleText: " + title, "XUnitText: seconds", "YUnitText: " + for_terminal(unit))
    out.write(("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))


def _write_name(out: BinaryIO, name: str) -> None:
    out.write(f'\n"{name}\n'.encode("utf-8", "backslashreplace"))


def _write_points(out: BinaryIO, times: Array, values: Array, factor: float) -> None:
    values = values if factor == 1.0 else values * factor
    number = "{:.6f} {:d}\n" if values.dtype.kind in "iu" else "{:.6f} {:.12g}\n"
    pairs = zip(times.tolist(), values.tolist(), strict=True)
    out.write("".join(number.format(*pair) for pair in pairs).encode("ascii"))
