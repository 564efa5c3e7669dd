# SPDX-License-Identifier: Apache-2.0
"""Writes the time-sequence graph as a file for xplot, in tcptrace's signs and colours.

    white   segments: a bar with an arrow at each end       red     those sent again, with an R
    green   the ACK line                                    yellow  the edge of the peer's window
    blue    the edge of the congestion window               purple  highest sacked
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.pmgraph.arrays import Array
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.sequence_pages import broken
from tcpkmon.formats.pmgraph.sequence_reading import Drawn, read_drawn

_BINS = 20_000
"""xplot zooms, so that it gets more than a picture."""
_CURVES = (
    ("acked", "green"), ("window", "yellow"), ("cwnd", "blue"), ("sacked", "purple"),
    ("rcv_nxt", "green"), ("rcv_window", "yellow"),
)  # fmt: skip
_RECEIVED = ("rcv_nxt", "rcv_window", "received")


def write_xplot(
    source: Source, selection: Selection, path: Path, around: str = "", force: bool = False
) -> list[str]:
    """Write FILE, the direction with more data; of several connections FILE's name gets a number.
    Returns notes."""
    drawn, notes = read_drawn(source, selection, _BINS, around)
    for number, one in enumerate(drawn, 1):
        to = path if len(drawn) == 1 else path.with_stem(f"{path.stem}-{number}")
        with create_file(to, force=force) as out:
            for line in _lines(one):
                out.write(line.encode("ascii", "replace") + b"\n")
        if one.found.thinned:
            notes.append(f"{for_terminal(str(to))}: thinned to {_BINS} columns; --zoom shows more")
    return notes


def _lines(one: Drawn) -> Iterator[str]:
    bars = one.found.bars
    received = _bytes(bars["received"].all()) > _bytes(bars["sent"].all())
    title = for_terminal(one.title).replace(" \u2192 ", "_<==_" if received else "_==>_")
    yield from ("timeval unsigned", "title", f"{title} (time sequence graph)", "xlabel", "time",
                "ylabel", "sequence number")  # fmt: skip
    for name, colour in _CURVES:
        if name in one.found.curves and (name in _RECEIVED) == received:
            yield colour
            points = one.found.curves[name].points()
            yield from _steps(*broken(*points, one.spans))
    for name, colour in (("sent", "white"), ("received", "white"), ("again", "red")):
        if (name in _RECEIVED) != received:
            continue
        yield colour
        times, begins, ends = bars[name].all()
        for at, low, high in zip(times.tolist(), begins.tolist(), ends.tolist(), strict=True):
            time = f"{at:.6f}"
            yield f"darrow {time} {_number(low)}"
            yield f"uarrow {time} {_number(high)}"
            yield f"line {time} {_number(low)} {time} {_number(high)}"
            if name == "again":
                yield from (f"atext {time} {_number(high)}", "R")
    yield from _not_known(one)
    yield "go"


def _steps(times: Array, values: Array) -> Iterator[str]:
    """The lines of a stair; none where a value is not known."""
    before: tuple[float, float] | None = None
    for at, value in zip(times.tolist(), values.tolist(), strict=True):
        if before is not None and np.isfinite(before[1]):
            low = _number(before[1])
            if at > before[0]:
                yield f"line {before[0]:.6f} {low} {at:.6f} {low}"
            if np.isfinite(value) and value != before[1]:
                yield f"line {at:.6f} {low} {at:.6f} {_number(value)}"
        before = at, value


def _not_known(one: Drawn) -> Iterator[str]:
    """A line at the bottom over each time in which records are missing."""
    begin, end = one.found.limits
    yield "orange"
    for low, high in zip(one.spans.begin.tolist(), one.spans.end.tolist(), strict=True):
        if high >= begin and low <= end:
            yield f"line {max(low, begin):.6f} 0 {min(high, end):.6f} 0"
            yield from (f"atext {max(low, begin):.6f} 0", "records lost: not known")


def _bytes(bars: tuple[Array, Array, Array]) -> float:
    _, begins, ends = bars
    return float((ends - begins).sum())


def _number(value: float) -> int:
    # xplot's sequence numbers are unsigned: what is below the first one stands at the bottom.
    return int(min(max(value, 0), (1 << 32) - 1))
