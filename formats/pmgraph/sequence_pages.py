# SPDX-License-Identifier: Apache-2.0
"""Lays out the time-sequence graph: panels of edges, segments, limits and their companions."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.analysis import why
from tcpkmon.formats.base.errors import FileError, TcpkmonError, UsageError
from tcpkmon.formats.pmgraph.arrays import Array
from tcpkmon.formats.pmgraph.clock import Seconds
from tcpkmon.formats.pmgraph.connections import Connection, find_connections, title_of
from tcpkmon.formats.pmgraph.gaps import Spans, find_spans
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.pages import Band, Line, Page, Panel
from tcpkmon.formats.pmgraph.sequence import NEEDED, Sequence, first_event, read_sequence
from tcpkmon.formats.pmgraph.symbols import SYMBOLS
from tcpkmon.formats.psc.reader import Capture

_MOST_PAGES = 4
_WINDOWS = 120
"""Times of which a throughput is the mean."""
_AROUND_S = 0.1
_MARKED = ("RTO", "LOSS_PROBE", "ZERO_WINDOW_PROBE", "CWND_UNDO", "RESET_SENT", "RESET_RECEIVED")
STATES = ("Open", "Disorder", "CWR", "Recovery", "Loss")


@dataclass(frozen=True)
class Drawn:
    """A connection as it is drawn, and where records are missing."""

    title: str
    found: Sequence
    spans: Spans


def read_drawn(
    capture: Capture, selection: Selection, bins: int, around: str = ""
) -> tuple[list[Drawn], list[str], Seconds]:
    """The chosen connections, or the one with the most records; and notes for stderr.

    around: the name of an event, of whose first record the time is drawn.
    """
    has = capture.columns_by_name
    lacking = [name for name in NEEDED if name not in has or not has[name].is_integer]
    if lacking:
        raise UsageError(f"{capture.path} lacks {', '.join(lacking)}, which --sequence needs",
                         "captures of the default columns have them")  # fmt: skip
    connections = find_connections(capture, selection.connections).without_listeners()
    if not len(connections):
        raise FileError(f"{capture.path}: no records of connections, so there is nothing to graph")
    notes = []
    most = _MOST_PAGES if selection.connections else 1
    if len(connections) > most:
        notes.append(f"--sequence shows {most} of {len(connections)} connections, "
                     "those with the most records; -p chooses")  # fmt: skip
    seconds = Seconds(capture)
    drawn = []
    for one in connections.largest(most):
        zoom = _zoom_around(capture, one, seconds, around) if around else selection.zoom
        found = read_sequence(capture, one, seconds, bins, zoom)
        if not found.records:
            notes.append(f"connection {one.ports}: no records in that time")
            continue
        begin, end = found.limits
        spans = find_spans(capture, seconds, (end - begin) / bins)
        drawn.append(Drawn(title_of(capture, one), found, spans))
    if not drawn:
        raise FileError("; ".join(notes), "without --zoom and --around all is drawn")
    return drawn, notes, seconds


def build_sequence(
    capture: Capture, selection: Selection, bins: int, around: str = ""
) -> tuple[list[Page], list[str]]:
    """A page for each connection that read_drawn() finds, and notes for stderr."""
    drawn, notes, seconds = read_drawn(capture, selection, bins, around)
    table: why.Table = {}
    try:
        table = why.intervals(capture)
    except TcpkmonError as error:
        notes.append(f"no limits: {error}")
    chosen = {title_of(capture, one): one for one in find_connections(
        capture, selection.connections)} if table else {}  # fmt: skip
    pages = []
    for one in drawn:
        bands: tuple[Band, ...] = ()
        if table and one.title in chosen:
            bands = _limits_of(table, chosen[one.title], seconds, one.found.limits, bins)
        pages.append(_page(one, bands))
    return pages, notes


def _zoom_around(capture: Capture, one: Connection, seconds: Seconds, name: str
                 ) -> tuple[float, float]:  # fmt: skip
    location = name.upper().replace("-", "_")
    if location not in SYMBOLS:
        known = ", ".join(each.lower() for each in SYMBOLS)
        raise UsageError(f"--around: no event of this name; the events are {known}")
    at = first_event(capture, one, seconds, location)
    if at is None:
        raise FileError(f"connection {one.ports} has no {location}", "try another event, or --zoom")
    return max(at - _AROUND_S, 0.0), at + 2 * _AROUND_S


def _limits_of(table: why.Table, one: Connection, seconds: Seconds, limits: tuple[float, float],
               bins: int) -> tuple[Band, ...]:  # fmt: skip
    rows = np.flatnonzero(table["conn_id"] == one.conn_id)
    zero = seconds.of_mono(0)
    begins, ends = (table[name][rows].astype(np.float64) / 1e9 + zero
                    for name in ("start_ns", "end_ns"))  # fmt: skip
    return bands_of(table["family"][rows], begins, ends, limits, bins)


def bands_of(names: Array, begins: Array, ends: Array, limits: tuple[float, float], bins: int
             ) -> tuple[Band, ...]:  # fmt: skip
    """What held in each pixel column for the longest part of it, as spans by name."""
    known, codes = np.unique(names.astype(str), return_inverse=True)
    edges = np.linspace(*limits, bins + 1)
    held = np.zeros((len(known), bins))
    for code in range(len(known)):
        of = codes == code
        order = np.argsort(begins[of], kind="stable")
        first, last = begins[of][order], ends[of][order]
        total = np.r_[0.0, np.cumsum(last - first)]
        place = np.searchsorted(first, edges, side="right")
        until = np.maximum(place - 1, 0)
        within = np.clip(edges - first[until], 0, (last - first)[until])
        covered = np.where(place > 0, total[until] + within, 0.0)
        held[code] = np.diff(covered)
    if not len(known):
        return ()
    most = np.where(held.max(axis=0) > 0, held.argmax(axis=0), -1)
    starts = np.flatnonzero(np.r_[True, most[1:] != most[:-1]])
    stops = np.r_[starts[1:], bins]
    return tuple(
        Band(str(name), edges[starts[most[starts] == code]], edges[stops[most[starts] == code]])
        for code, name in enumerate(known.tolist()) if (most == code).any()
    )  # fmt: skip


def _states_of(found: Sequence, bins: int) -> tuple[Band, ...]:
    if "ca_state" not in found.curves:
        return ()
    times, codes = found.curves["ca_state"].points()
    codes = codes.astype(np.int64)
    known = np.isin(codes, range(len(STATES)))
    names = np.array(STATES)[np.where(known, codes, 0)]
    ends = np.r_[times[1:], max(found.limits[1], times[-1])] if len(times) else times
    shown = known & (codes > 0)
    return bands_of(names[shown], times[shown], ends[shown], found.limits, bins)


def broken(times: Array, values: Array, spans: Spans) -> tuple[Array, Array]:
    """The curve with an end at each time in which records are missing: no line joins both sides."""
    at = np.searchsorted(times, spans.begin, side="right")
    return (np.insert(times, at, spans.begin),
            np.insert(values.astype(np.float64), at, np.nan))  # fmt: skip


def _page(one: Drawn, limits: tuple[Band, ...]) -> Page:
    found, spans = one.found, one.spans

    def lines(*pairs: tuple[str, str]) -> tuple[Line, ...]:
        made = []
        for name, label in pairs:
            if name in found.curves:
                times, values = broken(*found.curves[name].points(), spans)
                if np.isfinite(values).any():
                    made.append(Line(label, times, values, True, 0))
        return tuple(made)

    def bars(name: str, label: str) -> tuple[Line, ...]:
        times, begins, ends = found.bars[name].all()
        return (Line(label, times, begins, False, 0, ends),) if len(times) else ()

    panels = []
    if len(found.bars["sent"].all()[0]) or not len(found.bars["received"].all()[0]):
        panels.append(Panel("sequence sent (bytes)", (
            *bars("again", "sent again"), *bars("sent", "sent since the record before"),
            *lines(("acked", "acknowledged (snd_una)"), ("sacked", "highest sacked"),
                   ("cwnd", "congestion window's edge"), ("window", "peer's window's edge")),
        ), from_zero=False, is_count=True))  # fmt: skip
    if len(found.bars["received"].all()[0]):
        panels.append(Panel("sequence received (bytes)", (
            *bars("received", "segment received"),
            *lines(("rcv_nxt", "received in order"), ("rcv_window", "offered window's edge"),
                   ("read", "read by the application")),
        ), from_zero=False, is_count=True))  # fmt: skip
    if limits:
        panels.append(Panel("limit", (), bands=limits))
    if states := _states_of(found, 1000):
        panels.append(Panel("congestion state", (), bands=states))
    panels += [
        Panel("in flight, windows (bytes)", lines(
            ("flight", "in flight"), ("cwnd_bytes", "congestion window"),
            ("snd_wnd", "peer's window"), ("sacked_bytes", "sacked"), ("lost_bytes", "lost"),
        ), is_count=True, overlaid=True),
        Panel("round trip (s)", lines(("srtt", "smoothed RTT"), ("min_rtt", "least RTT"),
                                      ("queueing", "queueing")), is_count=True,
              overlaid=True),
        Panel("rate (bit/s)", _rates(found, spans), is_count=True, overlaid=True),
        Panel("buffers (bytes)", lines(
            ("snd_sb_cc", "send: not acknowledged"), ("rcv_sb_cc", "receive: not read"),
        ), is_count=True),
    ]  # fmt: skip
    events = tuple((0, name, np.concatenate(times)) for name, times in found.events.items()
                   if name in _MARKED and any(len(each) for each in times))  # fmt: skip
    note = f"{found.records} records"
    if found.thinned:
        note += ", thinned to what pixels show"
    shown = (spans.begin <= found.limits[1]) & (spans.end >= found.limits[0])
    spans = Spans(spans.begin[shown], spans.end[shown], spans.missing, "not known: ")
    kept = tuple(panel for panel in panels if panel.lines or panel.bands)
    return Page(one.title, note, kept, events, found.limits, spans)


def _rates(found: Sequence, spans: Spans) -> tuple[Line, ...]:
    """Means of a short time; none where records are missing in it."""
    edges = np.linspace(*found.limits, _WINDOWS + 1)
    unknown = np.zeros(_WINDOWS, bool)
    for begin, end in zip(spans.begin, spans.end, strict=True):
        unknown |= (edges[1:] > begin) & (edges[:-1] < end)
    made = []
    for name, label in _RATES:
        times, values = found.curves[name].points() if name in found.curves else (edges[:0],) * 2
        if len(times) < 2 or not values[-1] > values[0]:
            continue
        at = values[np.maximum(np.searchsorted(times, edges, side="right") - 1, 0)]
        rate = np.maximum(np.diff(at), 0) / np.diff(edges) * 8
        rate[unknown] = np.nan
        made.append(Line(label, edges, np.r_[rate, rate[-1]], True, 0))
    return tuple(made)


_RATES: Many[tuple[str, str]] = (
    ("all_sent", "throughput: sent, all"), ("acked", "goodput: acknowledged"),
    ("rcv_nxt", "goodput: received"),
)  # fmt: skip
