# SPDX-License-Identifier: Apache-2.0
"""Writes files for the xgraph program of 1989 (-x), with every record as a point.

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
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.files import already_there, create_file
from tcpkmon.formats.base.limits import MOST_LISTED
from tcpkmon.formats.base.ports import find_missing
from tcpkmon.formats.pmgraph.arrays import Array
from tcpkmon.formats.pmgraph.clock import Seconds
from tcpkmon.formats.pmgraph.connections import Connection, find_connections, read_chunks
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.pages import choose_quantities, display_name
from tcpkmon.formats.pmgraph.quantities import Quantity, derive, source_of
from tcpkmon.formats.pmgraph.series import Unwrapper, numbered, state_columns
from tcpkmon.formats.pmgraph.together import choose_all, common_quantities
from tcpkmon.formats.psc.reader import Capture

_OPEN_AT_ONCE = 64
_MOST_BASE = 100


def write_xgraph(
    capture: Capture, selection: Selection, folder: Path, force: bool = False
) -> list[Path]:
    """Write a file for each connection, or with by_parameter for each column; returns their paths.

    Their names are the capture's, with the connection's ports or the column, in `folder`. Sequence
    numbers are relative, as in the graphs. Raises FileError if a file exists already.
    """
    connections = find_connections(capture, selection.connections)
    if note := find_missing(selection.connections, connections.port_pairs(), capture.path):
        say(f"pmgraph: {note}")
    if len(connections) > MOST_LISTED:
        raise UsageError(
            f"{capture.path} has {len(connections)} connections, more than the {MOST_LISTED} that "
            "-x writes",
            "choose some with -p",
        )
    chosen = choose_quantities(capture, selection)
    writer = _PointWriter(capture, selection)
    base = capture.path.name.removesuffix(".pm")
    if selection.by_parameter:
        return _write_parameters(selection, chosen, [(writer, connections)], folder, base,
                                 force)  # fmt: skip
    paths = _name_files(connections, folder, base)
    _refuse_existing(paths, force)
    for start in range(0, len(connections), _OPEN_AT_ONCE):
        some = slice(start, start + _OPEN_AT_ONCE)
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(create_file(path, force)) for path in paths[some]]
            writer.write_connections(files, chosen, connections[some])
    return paths


def write_together(
    captures: Sequence[Capture], selection: Selection, folder: Path, by_clock: bool,
    force: bool = False,
) -> tuple[list[Path], list[str]]:  # fmt: skip
    """Write a file for each column with the connections of several captures; paths and notes.

    The names of the curves begin with the capture's label. by_clock: see together.choose_all().
    """
    shown, notes = choose_all(captures, selection, by_clock, MOST_LISTED)
    chosen = common_quantities(captures, selection)
    base = "+".join(capture.path.name.removesuffix(".pm") for capture in captures)[:_MOST_BASE]
    writers = [
        (_PointWriter(one.capture, selection, one.seconds, f"{one.label}: "), one.connections)
        for one in shown
    ]
    return _write_parameters(selection, chosen, writers, folder, base, force), notes


def _write_parameters(
    selection: Selection, chosen: Sequence[Quantity],
    writers: Sequence[tuple[_PointWriter, Sequence[Connection]]], folder: Path, base: str,
    force: bool,
) -> list[Path]:  # fmt: skip
    """Write a file for each column, with the connections of each writer; returns their paths."""
    paths = [folder / f"{base}.{_file_part(one.name)}.xg" for one in chosen]
    _refuse_existing(paths, force)
    for one, path in zip(chosen, paths, strict=True):
        with create_file(path, force) as out:
            _write_head(out, display_name(one, selection), one.unit)
            for writer, connections in writers:
                writer.write_curves(out, one, connections)
    return paths


def _refuse_existing(paths: Sequence[Path], force: bool) -> None:
    """Before the first one is written. FileError."""
    for path in paths:
        if not force and os.path.lexists(path):
            raise already_there(path)


def _name_files(connections: Sequence[Connection], folder: Path, base: str) -> list[Path]:
    """A path for each connection; connections with the same ports get a number."""
    counts: dict[str, int] = {}
    paths = []
    for one in connections:
        counts[one.ports] = counts.get(one.ports, 0) + 1
        number = f".{counts[one.ports]}" if counts[one.ports] > 1 else ""
        paths.append(folder / f"{base}.{one.ports}{number}.xg")
    return paths


def _file_part(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in name)


class _PointWriter:
    """Writes the points of a capture into open files."""

    def __init__(
        self, capture: Capture, selection: Selection, seconds: Seconds | None = None,
        label: str = "",
    ) -> None:  # fmt: skip
        self._capture = capture
        self._selection = selection
        self._seconds = seconds or Seconds(capture)
        self._label = label

    def write_connections(
        self, files: Sequence[BinaryIO], chosen: Sequence[Quantity], some: Sequence[Connection]
    ) -> None:
        """Write each connection into its file."""
        units = sorted({one.unit for one in chosen if one.unit})
        for out, connection in zip(files, some, strict=True):
            _write_head(out, connection.ports, ", ".join(units))
        unwrappers = self._find_bases(chosen, some)
        for one in chosen:
            for out in files:
                _write_name(out, display_name(one, self._selection))
            self._write_points(one, some, unwrappers, files)

    def write_curves(
        self, out: BinaryIO, one: Quantity, connections: Sequence[Connection]
    ) -> None:
        """Write a column of all connections into a file that has its head."""
        for connection in connections:
            _write_name(out, self._label + connection.ports)
            unwrappers = self._find_bases([one], [connection])
            self._write_points(one, [connection], unwrappers, [out])

    def _write_points(
        self,
        one: Quantity,
        connections: Sequence[Connection],
        unwrappers: Sequence[Unwrapper],
        files: Sequence[BinaryIO],
    ) -> None:
        """Write a column of each connection into its file."""
        factor = self._selection.scales.get(one.name, 1.0)
        states = state_columns(self._capture) if one.kind == "sequence" else ()
        needed = {source_of(self._capture, one.name), self._seconds.column, *states}
        for columns, groups in read_chunks(self._capture, connections, needed):
            times, values = self._seconds.of(columns), derive(self._capture, one.name, columns)
            known = numbered(columns, states)
            for index, rows in groups:
                points = unwrappers[index].known_points(
                    one, times[rows], values[rows], known[rows]
                )
                _write_lines(files[index], *points, factor)

    def _find_bases(
        self, chosen: Sequence[Quantity], connections: Sequence[Connection]
    ) -> list[Unwrapper]:
        """An unwrapper for each connection, started with all sequence columns: they share bases."""
        unwrappers = [Unwrapper() for _ in connections]
        names = [one.name for one in chosen if one.kind == "sequence"]
        lacking = set(range(len(connections))) if names else set()
        states = state_columns(self._capture) if names else ()
        for columns, groups in read_chunks(self._capture, connections, {*names, *states}):
            if not lacking:
                break
            for index, rows in groups:
                if unwrappers[index].start(names, columns, rows, numbered(columns, states)):
                    lacking.discard(index)
        return unwrappers


def _write_head(out: BinaryIO, title: str, unit: str) -> None:
    lines = ("TitleText: " + title, "XUnitText: seconds", "YUnitText: " + for_terminal(unit))
    out.write(("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))


def _write_name(out: BinaryIO, name: str) -> None:
    out.write(f'\n"{name}\n'.encode("utf-8", "backslashreplace"))


def _write_lines(out: BinaryIO, times: Array, values: Array, factor: float) -> None:
    values = values if factor == 1.0 else values * factor
    number = "{:.6f} {:d}\n" if values.dtype.kind in "iu" else "{:.6f} {:.12g}\n"
    pairs = zip(times.tolist(), values.tolist(), strict=True)
    out.write("".join(number.format(*pair) for pair in pairs).encode("ascii"))
