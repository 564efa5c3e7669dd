# SPDX-License-Identifier: Apache-2.0
"""Reads a capture once and gathers what the graphs show: curves and events per connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from formats.pmgraph.clock import Seconds
from formats.pmgraph.connections import Connection, Finder, key_columns
from formats.pmgraph.downsample import Curve
from formats.pmgraph.quantities import (
    SEQUENCES,
    Quantity,
    derive,
    has_locations,
    is_number,
    source_of,
)

if TYPE_CHECKING:
    from formats.psc.reader import Capture

Array = npt.NDArray[Any]

EVENTS = (
    "RETRANSMIT", "RTO", "LOSS_PROBE", "ZERO_WINDOW_PROBE", "REO_TIMEOUT", "CWND_UNDO",
    "CONG_STATE", "STATE_CHANGE", "RESET_SENT", "RESET_RECEIVED",
)  # fmt: skip
"""Locations that are marked in the graphs."""


@dataclass
class Trace:
    """What is drawn of one connection: curves by column, times of events by location name."""

    connection: Connection
    limits: tuple[float, float]
    curves: dict[str, Curve]
    events: dict[str, Array] = field(default_factory=dict)


class Unwrapper:
    """Turns 32-bit sequence numbers of one connection into bytes since its first one.

    Columns of the same direction share their base, so that snd_max and snd_fack meet. Zero means
    that the kernel had no number yet; such points are left out.
    """

    def __init__(self) -> None:
        self._base: dict[str, int] = {}
        self._last: dict[str, tuple[int, int]] = {}

    def start(self, first: dict[str, int]) -> None:
        """Take each column's first number; the earliest of a direction becomes its base."""
        for name, number in first.items():
            direction = SEQUENCES[name]
            if direction not in self._base:
                rivals = [n for other, n in first.items() if SEQUENCES[other] == direction]
                self._base[direction] = min(rivals, key=lambda rival: _signed(rival - number))
            if name not in self._last:
                self._last[name] = (number, _signed(number - self._base[direction]))

    def relative(self, name: str, numbers: Array) -> Array:
        """Bytes since the base, int64, of numbers that follow those given before; none is zero."""
        last, at = self._last[name]
        steps = np.diff(np.r_[np.uint32(last), numbers.astype(np.uint32)]).view(np.int32)
        places: Array = at + np.cumsum(steps, dtype=np.int64)
        self._last[name] = (int(numbers[-1]), int(places[-1]))
        return places


def _signed(difference: int) -> int:
    """A difference of two sequence numbers as the shorter way round, -2^31 to 2^31 - 1."""
    return (difference + 2**31) % 2**32 - 2**31


def gather(
    capture: Capture,
    connections: Sequence[Connection],
    quantities: Sequence[Quantity],
    seconds: Seconds,
    bins: int,
) -> list[Trace]:
    """Return one trace per connection, in order; one pass over the file, bounded memory."""
    traces = [_start_trace(seconds, connection, quantities, bins) for connection in connections]
    marks = [_Marks(trace.limits, bins) for trace in traces]
    unwrappers = [Unwrapper() for _ in traces]
    finder = Finder(connections)
    codes = _event_codes(capture)
    needed = {source_of(capture, one.name) for one in quantities}
    needed.update(key_columns(capture), (seconds.column,), ("location",) if codes else ())
    first = min((connection.first_row for connection in connections), default=0)
    last = max((connection.last_row for connection in connections), default=-1)
    for piece in capture.chunks():
        start, stop = piece.start, piece.stop
        if stop <= first or start > last:
            continue
        columns = capture.columns(needed, start, stop)
        times = seconds.of(columns)
        values = {one.name: derive(capture, one.name, columns) for one in quantities}
        locations = columns["location"] if codes else None
        snapshots = np.flatnonzero(~capture.control(start, stop))
        for index, rows in finder.split(columns, snapshots):
            mine = {name: column[rows] for name, column in values.items()}
            _add(traces[index], quantities, times[rows], mine, unwrappers[index])
            if locations is not None:
                marks[index].add(times[rows], locations[rows], codes)
    for trace, mark in zip(traces, marks, strict=True):
        trace.events = mark.by_name()
    return traces


def _start_trace(
    seconds: Seconds, connection: Connection, quantities: Sequence[Quantity], bins: int
) -> Trace:
    rows = (connection.first_row, connection.last_row)
    ends = [float(seconds.at(row, row + 1)[0]) for row in rows]
    limits = (min(ends), max(ends))
    return Trace(connection, limits, {one.name: Curve(limits, bins) for one in quantities})


def _add(
    trace: Trace,
    quantities: Sequence[Quantity],
    times: Array,
    columns: dict[str, Array],
    unwrapper: Unwrapper,
) -> None:
    sequences = [one.name for one in quantities if one.kind == "sequence"]
    known = {name: np.flatnonzero(columns[name]) for name in sequences}
    unwrapper.start({n: int(columns[n][rows[0]]) for n, rows in known.items() if len(rows)})
    for one in quantities:
        values = columns[one.name]
        if one.kind == "sequence":
            rows = known[one.name]
            if len(rows):
                trace.curves[one.name].add(times[rows], unwrapper.relative(one.name, values[rows]))
        elif one.missing is not None:
            rows = np.flatnonzero(values != one.missing)
            trace.curves[one.name].add(times[rows], values[rows])
        else:
            trace.curves[one.name].add(times, values)


class _Marks:
    """Times of events, at most one per pixel column and kind."""

    def __init__(self, limits: tuple[float, float], bins: int) -> None:
        self._begin = limits[0]
        self._per_second = bins / max(limits[1] - limits[0], 1e-12)
        self._seen: dict[str, dict[int, float]] = {}

    def add(self, times: Array, locations: Array, codes: dict[int, str]) -> None:
        for code in np.unique(locations).tolist():
            if code not in codes:
                continue
            at = times[locations == code]
            columns = ((at - self._begin) * self._per_second).astype(np.int64)
            columns, first = np.unique(columns, return_index=True)
            seen = self._seen.setdefault(codes[code], {})
            for column, time in zip(columns.tolist(), at[first].tolist(), strict=True):
                seen.setdefault(column, time)

    def by_name(self) -> dict[str, Array]:
        names = (name for name in EVENTS if name in self._seen)
        return {name: np.sort(list(self._seen[name].values())) for name in names}


def _event_codes(capture: Capture) -> dict[int, str]:
    if not has_locations(capture) or not is_number(capture, "location"):
        return {}
    names = {code: capture.location_name(code) for code in range(224)}
    return {code: name for code, name in names.items() if name in EVENTS}
