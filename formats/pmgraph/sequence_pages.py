# SPDX-License-Identifier: Apache-2.0
"""Lays out the time-sequence graph: panels of edges, segments, limits and their companions."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np

from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.base.tcp import CA_STATES
from tcpkmon.formats.pmgraph.arrays import Array
from tcpkmon.formats.pmgraph.gaps import Spans
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.pages import Band, Line, Page, Panel, overlapping
from tcpkmon.formats.pmgraph.sequence import Sequence
from tcpkmon.formats.pmgraph.sequence_reading import BandTally, Drawn, read_drawn

_WINDOWS = 120
"""Times of which a throughput is the mean."""
_BLUE, _RED, _GREEN, _PURPLE, _ORANGE, _SKY = range(6)
"""Numbers of the palette. As in tcptrace ACKs are green, SACK purple, the window yellow."""


def build_sequence(
    source: Source, selection: Selection, bins: int, around: str = ""
) -> tuple[list[Page], list[str]]:
    """A page for each connection that read_drawn() finds, and notes for stderr."""
    drawn, notes = read_drawn(source, selection, bins, around)
    return [_page(one) for one in drawn], notes


def _states_of(found: Sequence, bins: int) -> tuple[Band, ...]:
    if "ca_state" not in found.curves:
        return ()
    times, codes = found.curves["ca_state"].points()
    codes = codes.astype(np.int64)
    known = np.isin(codes, range(len(CA_STATES)))
    ends = np.r_[times[1:], max(found.limits[1], times[-1])] if len(times) else times
    tally = BandTally(found.limits, bins)
    for code in np.unique(codes[known & (codes > 0)]).tolist():
        tally.add(CA_STATES[code], times[codes == code], ends[codes == code])
    return tally.bands()


def broken(times: Array, values: Array, spans: Spans) -> tuple[Array, Array]:
    """The curve with an end at each time in which records are missing: no line joins both sides,
    and none what is known in between (in a log the records of other CPUs)."""
    values = values.astype(np.float64)
    after = np.searchsorted(spans.begin, times, side="left") - 1
    inside = np.zeros(len(times), np.bool_)
    if len(spans.begin):
        inside = (after >= 0) & (times < spans.end[np.maximum(after, 0)])
    times, values = times[~inside], values[~inside]
    at = np.searchsorted(times, spans.begin, side="right")
    return np.insert(times, at, spans.begin), np.insert(values, at, np.nan)


def _page(one: Drawn) -> Page:
    found, spans = one.found, one.spans

    def lines(*parts: tuple[str, str, int], scale: float = 1) -> tuple[Line, ...]:
        made = []
        for name, label, colour in parts:
            if name in found.curves:
                times, values = broken(*found.curves[name].points(), spans)
                if np.isfinite(values).any():
                    made.append(Line(label, times, values * scale, True, 0, colour=colour,
                                     filled=name == "flight"))  # fmt: skip
        return tuple(made)

    def bars(name: str, label: str) -> tuple[Line, ...]:
        times, begins, ends = found.bars[name].all()
        return (Line(label, times, begins, False, 0, ends),) if len(times) else ()

    sent = "segment sent" if found.has_transmit else "sent since the record before"
    panels = []
    if len(found.bars["sent"].all()[0]) or not len(found.bars["received"].all()[0]):
        panels.append(Panel("sequence sent (bytes)", (
            *bars("again", "sent again"), *bars("sent", sent),
            *lines(("acked", "acknowledged (snd_una)", _GREEN),
                   ("sacked", "highest sacked", _PURPLE),
                   ("cwnd", "congestion window's edge", _BLUE),
                   ("window", "peer's window's edge", _ORANGE)),
        ), from_zero=False, is_count=True))  # fmt: skip
    if len(found.bars["received"].all()[0]):
        panels.append(Panel("sequence received (bytes)", (
            *bars("received", "segment received"),
            *lines(("rcv_nxt", "received in order", _GREEN),
                   ("rcv_window", "offered window's edge", _ORANGE),
                   ("read", "read by the application", _SKY)),
        ), from_zero=False, is_count=True))  # fmt: skip
    if one.limits:
        panels.append(Panel("limit", (), bands=one.limits))
    if states := _states_of(found, 1000):
        panels.append(Panel("congestion state", (), bands=states))
    panels += [
        Panel("in flight, windows (bytes)", lines(
            ("flight", "in flight", _GREEN), ("cwnd_bytes", "congestion window", _BLUE),
            ("snd_wnd", "peer's window", _ORANGE), ("sacked_bytes", "sacked", _PURPLE),
            ("lost_bytes", "lost", _RED),
        ), is_count=True, overlaid=True),
        Panel("round trip (ms)", lines(
            ("srtt", "smoothed RTT", _BLUE), ("min_rtt", "least RTT", _GREEN),
            ("queueing", "queueing", _RED), scale=1e3,
        ), overlaid=True),
        Panel("rate (bit/s)", _rates(found, spans), is_count=True, overlaid=True),
        Panel("buffers (bytes)", lines(
            ("snd_sb_cc", "send: not acknowledged", _BLUE),
            ("rcv_sb_cc", "receive: not read", _RED),
        ), is_count=True),
    ]  # fmt: skip
    events = tuple((0, name, np.concatenate(times)) for name, times in found.events.items()
                   if any(len(each) for each in times))  # fmt: skip
    note = f"{found.records} records"
    if found.thinned:
        note += ", thinned to what pixels show"
    kept = tuple(panel for panel in panels if panel.lines or panel.bands)
    return Page(one.title, note, kept, events, found.limits, overlapping(spans, found.limits),
                since="the begin of the capture")  # fmt: skip


def _rates(found: Sequence, spans: Spans) -> tuple[Line, ...]:
    """Means of a short time; none where records are missing in it."""
    edges = np.linspace(*found.limits, _WINDOWS + 1)
    unknown = np.zeros(_WINDOWS, bool)
    first = np.searchsorted(edges[1:], spans.begin, side="right")
    last = np.searchsorted(edges[:-1], spans.end, side="left")
    for begin, end in zip(first, last, strict=True):
        unknown[begin:end] = True
    made = []
    for name, label in _RATES:
        times, values = found.curves[name].points() if name in found.curves else (edges[:0],) * 2
        if len(times) < 2 or not values[-1] > values[0]:
            continue
        at = _values_at(edges, times, values)
        if name == "acked" and "sacked_bytes" in found.curves:  # else one ACK has all of a recovery
            sacked = _values_at(edges, *found.curves["sacked_bytes"].points())
            at = np.maximum.accumulate(at + sacked)
        rate = np.maximum(np.diff(at), 0) / np.diff(edges) * 8
        rate[unknown] = np.nan
        made.append(Line(label, edges, np.r_[rate, rate[-1]], True, 0))
    return tuple(made)


def _values_at(edges: Array, times: Array, values: Array) -> Array:
    return values[np.maximum(np.searchsorted(times, edges, side="right") - 1, 0)]


_RATES: Many[tuple[str, str]] = (
    ("all_sent", "throughput: sent, all"), ("acked", "goodput: acknowledged or SACKed"),
    ("rcv_nxt", "goodput: received"),
)  # fmt: skip
