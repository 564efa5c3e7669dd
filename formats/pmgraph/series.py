# SPDX-License-Identifier: Apache-2.0
"""Reads a capture once and collects the curves and events of each connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.sequence import ahead, has_numbers, unwrap
from tcpkmon.formats.base.thinning import bins_of
from tcpkmon.formats.pmgraph.arrays import Array, Columns, Mask
from tcpkmon.formats.pmgraph.clock import Seconds
from tcpkmon.formats.pmgraph.connections import Connection, read_chunks
from tcpkmon.formats.pmgraph.downsample import Curve
from tcpkmon.formats.pmgraph.quantities import (
    SEQUENCES,
    Quantity,
    derive,
    has_locations,
    is_number,
    source_of,
)
from tcpkmon.formats.pmgraph.symbols import SYMBOLS
from tcpkmon.formats.psc.reader import Capture


@dataclass
class Trace:
    """The data of one connection: curves by column, times of events by location name."""

    connection: Connection
    limits: tuple[float, float]
    curves: dict[str, Curve]
    events: dict[str, Array] = field(default_factory=dict)


class Unwrapper:
    """Converts 32-bit sequence numbers of one connection into bytes since its first one.

    Columns of the same direction have the same base, so that snd_max and snd_fack meet. Zero means
    that the kernel had no number yet, unless the record's state says that it has one.
    """

    def __init__(self) -> None:
        self._base: dict[str, int] = {}
        self._last: dict[str, int] = {}

    def start(self, names: Sequence[str], columns: Columns, rows: Array, numbered: Mask) -> bool:
        """Note the first number of each column; the earliest of a direction becomes its base.

        rows: (n,) indices into the columns. numbered: of all rows, see numbered(). Returns whether
        all columns have a first number.
        """
        first = {}
        for name in (name for name in names if name not in self._last):
            known = np.flatnonzero((columns[name][rows] != 0) | numbered[rows])
            if len(known):
                first[name] = int(columns[name][rows[known[0]]])
        for name, number in first.items():
            direction = SEQUENCES[name]
            if direction not in self._base:
                rivals = [n for other, n in first.items() if SEQUENCES[other] == direction]
                self._base[direction] = min(rivals, key=lambda rival: ahead(rival, number))
            base = self._base[direction]
            self._last[name] = base + ahead(number, base)
        return all(name in self._last for name in names)

    def known_points(
        self, one: Quantity, times: Array, values: Array, numbered: Mask
    ) -> tuple[Array, Array]:
        """Times and values of the records that have a value; sequence numbers relative to the base.

        Records must follow those of the last call, and start() must have had them. numbered: of
        these rows.
        """
        if one.missing is None:
            return times, values
        is_number = one.kind == "sequence"
        known = np.flatnonzero((values != one.missing) | (numbered & is_number))
        times, values = times[known], values[known]
        if is_number and len(known):
            whole = unwrap(values, np.array([self._last[one.name]]))
            self._last[one.name] = int(whole[-1])
            values = whole - self._base[SEQUENCES[one.name]]
        return times, values


def state_columns(capture: Capture) -> tuple[str, ...]:
    """The columns that numbered() takes, if the capture has them."""
    names = ("location", "callvalue", "state")
    return names if has_locations(capture) and all(is_number(capture, n) for n in names) else ()


def numbered(columns: Columns, states: Sequence[str]) -> Mask:
    """(n,) whether the records have sequence numbers; False where the states do not say.

    states: of state_columns().
    """
    return has_numbers(columns) if states else np.zeros(len(next(iter(columns.values()))), np.bool_)


def gather(
    capture: Capture,
    connections: Sequence[Connection],
    quantities: Sequence[Quantity],
    seconds: Seconds,
    bins: int,
    zoom: tuple[float, float] | None = None,
) -> list[Trace]:
    """A trace for each connection, in order; in memory that depends on `bins`, not on the file.

    bins: pixel columns of the graphs. zoom: the seconds that are drawn.
    """
    if zoom is not None:
        return _read(capture, connections, quantities, seconds, bins, [zoom] * len(connections),
                     zoom)  # fmt: skip
    limits = [_ends(one, seconds) for one in connections]
    traces = _read(capture, connections, quantities, seconds, bins, limits)
    found = [trace.limits for trace in traces]
    if found == limits:
        return traces
    # A clock stepped, or a time is damaged: there is a record before the first or after the last.
    return _read(capture, connections, quantities, seconds, bins, found)


def _read(
    capture: Capture,
    connections: Sequence[Connection],
    quantities: Sequence[Quantity],
    seconds: Seconds,
    bins: int,
    limits: Sequence[tuple[float, float]],
    zoom: tuple[float, float] | None = None,
) -> list[Trace]:
    """The traces, in one pass; their limits are the times of all records and those in `limits`.

    zoom: what is outside is left out.
    """
    traces = [
        Trace(one, ends, {quantity.name: Curve(ends, bins, zoom, quantity.kind != "code")
                          for quantity in quantities})
        for one, ends in zip(connections, limits, strict=True)
    ]
    marks = [_Marks(trace.limits, bins) for trace in traces]
    unwrappers = [Unwrapper() for _ in traces]
    codes = _event_codes(capture)
    sequences = [one.name for one in quantities if one.kind == "sequence"]
    states = state_columns(capture) if sequences else ()
    needed = {source_of(capture, one.name) for one in quantities} | {*states}
    needed.update((seconds.column,), ("location",) if codes else ())
    for columns, groups in read_chunks(capture, connections, needed):
        times = seconds.of(columns)
        values = {one.name: derive(capture, one.name, columns) for one in quantities}
        known = numbered(columns, states)
        for index, rows in groups:
            unwrappers[index].start(sequences, values, rows, known)
            at = times[rows]
            if zoom is None:
                begin, end = traces[index].limits
                traces[index].limits = min(begin, float(at.min())), max(end, float(at.max()))
            for one in quantities:
                of = values[one.name][rows]
                points = unwrappers[index].known_points(one, at, of, known[rows])
                traces[index].curves[one.name].add(*points)
            if codes:
                shown = slice(None) if zoom is None else (at >= zoom[0]) & (at <= zoom[1])
                marks[index].add(at[shown], columns["location"][rows][shown], codes)
    for trace, mark in zip(traces, marks, strict=True):
        trace.events = mark.by_name()
    return traces


def _ends(one: Connection, seconds: Seconds) -> tuple[float, float]:
    """The times of a connection's first and last record, the earlier one first."""
    pair = [float(seconds.at(row, row + 1)[0]) for row in (one.first_row, one.last_row)]
    return min(pair), max(pair)


def within(
    connections: Sequence[tuple[Sequence[Connection], Seconds]], zoom: tuple[float, float] | None
) -> list[list[Connection]]:
    """Of each capture those that have a record in this time, or around it. FileError: none has."""
    if zoom is None:
        return [list(some) for some, _ in connections]
    ends = [[(one, *_ends(one, seconds)) for one in some] for some, seconds in connections]
    found = [[one for one, first, last in some if first <= zoom[1] and last >= zoom[0]]
             for some in ends]  # fmt: skip
    if not any(found):
        begin, end = (f"{time:g} s" for time in zoom)
        first = min(each[1] for some in ends for each in some)
        last = max(each[2] for some in ends for each in some)
        raise FileError(f"no records of these connections from {begin} to {end}",
                        f"they have some from {first:.3f} s to {last:.3f} s")  # fmt: skip
    return found


class _Marks:
    """Times of events, at most one for each pixel column and kind."""

    def __init__(self, limits: tuple[float, float], bins: int) -> None:
        self._limits, self._bins = limits, bins
        self._seen: dict[str, dict[int, float]] = {}

    def add(self, times: Array, locations: Array, codes: dict[int, str]) -> None:
        for code in np.unique(locations).tolist():
            if code not in codes:
                continue
            at = times[locations == code]
            columns, first = np.unique(bins_of(at, *self._limits, self._bins), return_index=True)
            seen = self._seen.setdefault(codes[code], {})
            for column, time in zip(columns.tolist(), at[first].tolist(), strict=True):
                seen.setdefault(column, time)

    def by_name(self) -> dict[str, Array]:
        names = (name for name in SYMBOLS if name in self._seen)
        return {name: np.sort(list(self._seen[name].values())) for name in names}


def _event_codes(capture: Capture) -> dict[int, str]:
    if not has_locations(capture) or not is_number(capture, "location"):
        return {}
    names = {code: capture.location_name(code) for code in range(224)}
    return {code: name for code, name in names.items() if name in SYMBOLS}
