# SPDX-License-Identifier: Apache-2.0
"""Several captures in one picture: a graph for each parameter, on one time axis.

Each capture begins at 0, or the first one does and the others when they began, by the time of day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.limits import MOST_DRAWN, MOST_DRAWN_CHOSEN
from tcpkmon.formats.base.ports import find_missing
from tcpkmon.formats.base.times import format_utc
from tcpkmon.formats.pmgraph.clock import Seconds
from tcpkmon.formats.pmgraph.connections import (
    Connection,
    Connections,
    algorithm_of,
    find_connections,
)
from tcpkmon.formats.pmgraph.gaps import OffSpan, Spans, find_off, find_spans
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.pages import (
    Page,
    choose_quantities,
    parameter_page,
    titles_of,
    touching,
)
from tcpkmon.formats.pmgraph.quantities import Quantity
from tcpkmon.formats.pmgraph.series import Trace, gather, within
from tcpkmon.formats.psc.header import KIND_HOST
from tcpkmon.formats.psc.reader import Capture

OWN = "each capture's start"


@dataclass(frozen=True)
class Shown:
    """What of a capture is shown: its label, escaped, and the axis; since: what the axis begins
    with, the same of all."""

    capture: Capture
    label: str
    connections: Connections
    seconds: Seconds
    since: str


def choose_all(
    captures: Sequence[Capture], selection: Selection, by_clock: bool, most: int | None = None
) -> tuple[list[Shown], list[str]]:
    """The connections of each capture that are shown, and notes for stderr.

    by_clock: one axis by the time of day. most: connections, MOST_DRAWN by default. Raises
    UsageError for a connection that is in none, FileError if there is nothing to show.
    """
    found = [find_connections(capture, selection.connections) for capture in captures]
    names = ", ".join(str(capture.path) for capture in captures)
    ends = set().union(*(one.port_pairs() for one in found))
    note = find_missing(selection.connections, ends, names)
    notes = [note] if note else []
    if not selection.connections:
        found = [one.without_listeners() for one in found]
    most = most or (MOST_DRAWN_CHOSEN if selection.connections else MOST_DRAWN)
    share = max(1, most // len(captures))
    left_out = sum(max(0, len(one) - share) for one in found)
    if left_out:
        notes.append(
            f"{left_out} of {sum(map(len, found))} connections left out, those with the fewest "
            "records of each capture; -p chooses"
        )
    if not any(map(len, found)):
        raise FileError(f"{names}: no records of connections, so there is nothing to graph")
    starts = [_start_ns(capture) if by_clock else 0 for capture in captures]
    since = format_utc(np.array([min(starts)]))[0] if by_clock else OWN
    labels = labels_of(captures)
    return [
        Shown(capture, label, some.largest(share), Seconds(capture, start - min(starts)), since)
        for capture, label, some, start in zip(captures, labels, found, starts, strict=True)
    ], notes


def build_together(
    captures: Sequence[Capture], selection: Selection, bins: int, by_clock: bool
) -> tuple[list[Page], list[str]]:
    """A page for each parameter, as pages.build_pages()."""
    shown, notes = choose_all(captures, selection, by_clock)
    chosen = common_quantities(captures, selection)
    traces: list[Trace] = []
    titles: list[str] = []
    spans: list[Spans] = []
    lossy: list[str] = []
    off: list[OffSpan] = []
    inside = within([(one.connections, one.seconds) for one in shown], selection.zoom)
    for one, connections in zip(shown, inside, strict=True):
        mine = gather(one.capture, connections, chosen, one.seconds, bins, selection.zoom)
        traces += mine
        titles += _titles(one, connections)
        if mine:
            end = max(trace.limits[1] for trace in mine)
            begin = min(trace.limits[0] for trace in mine)
            spans.append(find_spans(one.capture, one.seconds, (end - begin) / bins))
            lossy += [one.label] if spans[-1].missing else []
            off += [
                replace(span, name=f"{one.label}: {span.name}")
                for span in find_off(one.capture, one.seconds, end)
            ]
    missing = Spans(
        np.concatenate([one.begin for one in spans]), np.concatenate([one.end for one in spans]),
        sum(one.missing for one in spans), f"{', '.join(lossy)}: ",
    )  # fmt: skip
    pages = [parameter_page(one, traces, titles, selection, missing) for one in chosen]
    since = shown[0].since
    return [replace(page, off=touching(off, page.limits), since=since) for page in pages], notes


def common_quantities(captures: Sequence[Capture], selection: Selection) -> list[Quantity]:
    """The chosen columns, which all captures must have; else those that all have."""
    lists = [choose_quantities(capture, selection) for capture in captures]
    names = set.intersection(*({one.name for one in some} for some in lists))
    if not names:
        raise FileError("the captures have no known column in common", "--show names columns")
    return [one for one in lists[0] if one.name in names]


def labels_of(captures: Sequence[Capture]) -> list[str]:
    """A short name for each: its host's where they differ, else its file's, else its path."""
    hosts = [capture.header.text(KIND_HOST) or "" for capture in captures]
    paths = [capture.path for capture in captures]
    for labels in (hosts, [_stem(path) for path in paths], [str(path) for path in paths]):
        if all(labels) and len(set(labels)) == len(labels):
            return [for_terminal(label) for label in labels]
    return [f"{for_terminal(str(path))} #{number}" for number, path in enumerate(paths, 1)]


def _stem(path: Path) -> str:
    return path.name.removesuffix(".pm") or str(path)


def _titles(one: Shown, connections: Sequence[Connection]) -> list[str]:
    titles = titles_of(one.capture, connections)
    algorithms = (algorithm_of(one.capture, connection) for connection in connections)
    pairs = zip(titles, algorithms, strict=True)
    return [f"{one.label}: {', '.join(filter(None, pair))}" for pair in pairs]


def _start_ns(capture: Capture) -> int:
    """The time of day of its first record [ns]."""
    if not len(capture):
        return 0
    start = int(capture.time_ns(0, 1)[0])
    if not start:
        raise UsageError(f"{capture.path} has no time of day", "leave out --axis clock")
    return start
