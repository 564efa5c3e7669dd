# SPDX-License-Identifier: Apache-2.0
"""Time-sequence graphs as xplot files, as tcptrace writes them (its page on xplot; xplot(1)).

    timeval unsigned        the axes: seconds since 1970, and a number
    title ...
    green line T1 Y T2 Y    acknowledged so far; yellow: the receive window's edge
    white darrow T Y        sent up to here; red R and a line: a segment that was sent again
    purple ...              the congestion window's edge, which no packet tells
    go
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.pmgraph.arrays import Array
from tcpkmon.formats.pmgraph.connections import title_of
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.sequence import ACKED, CWND, SENT, WINDOW, Sequenced, read_sequences
from tcpkmon.formats.psc.reader import Capture

_BINS = 20_000
"""Parts of the time axis of which each has four points of a curve at most."""
_COLOURS = ((ACKED, "green"), (WINDOW, "yellow"), (CWND, "purple"), (SENT, "white"))


def write_xplot(
    capture: Capture, selection: Selection, path: Path, force: bool = False
) -> tuple[list[Path], list[str]]:
    """A file for each connection: `path`, or with its ports before the ending where there are
    several; and notes for stderr. FileError."""
    found, _, notes = read_sequences(capture, selection, _BINS)
    start_us = int(capture.time_ns(0, 1)[0]) // 1000 if len(capture) else 0
    paths: list[Path] = []
    for one in found:
        there = path
        if len(found) > 1:
            number = len(paths) + 1
            there = path.with_name(f"{path.stem}-{number}-{one.connection.ports}{path.suffix}")
        with create_file(there, force=force) as out:
            for line in _lines(one, title_of(capture, one.connection), start_us):
                out.write(f"{line}\n".encode())
        paths.append(there)
    return paths, notes


def _lines(one: Sequenced, title: str, start_us: int) -> Iterator[str]:
    plain = for_terminal(title).encode("ascii", "replace").decode().replace("?", "->")
    yield from ("timeval unsigned", "title", f"{plain} (time sequence graph)")
    yield from ("xlabel", "time", "ylabel", "sequence offset")
    for name, colour in _COLOURS:
        times, values = one.points(name)
        if not len(times):
            continue
        yield colour
        stamps, heights = _stamps(times, start_us), np.maximum(values, 0).astype(np.int64).tolist()
        if name == SENT:
            yield from (f"darrow {at} {y}" for at, y in zip(stamps, heights, strict=True))
        for at in range(len(stamps) - 1):
            now, then, y, next_y = stamps[at], stamps[at + 1], heights[at], heights[at + 1]
            yield f"line {now} {y} {then} {y}"
            if y != next_y:
                yield f"line {then} {y} {then} {next_y}"
    times, first, behind = one.sent_again()
    if len(times):
        yield "red"
    rows = zip(_stamps(times, start_us), first.tolist(), behind.tolist(), strict=True)
    for stamp, low, high in rows:
        yield f"line {stamp} {max(int(low), 0)} {stamp} {max(int(high), 0)}"
        yield f"atext {stamp} {max(int(high), 0)}"
        yield "R"
    yield "go"


def _stamps(times: Array, start_us: int) -> list[str]:
    """Times of day, as xplot's type timeval has them."""
    stamps = (start_us + np.round(times * 1e6).astype(np.int64)).tolist()
    return [f"{us // 1_000_000}.{us % 1_000_000:06}" for us in stamps]
