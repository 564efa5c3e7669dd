# SPDX-License-Identifier: Apache-2.0
"""Lays out graphs as pages of panels of lines, which figure and terminal draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.limits import MOST_DRAWN, MOST_DRAWN_CHOSEN
from tcpkmon.formats.base.ports import find_missing
from tcpkmon.formats.pmgraph import quantities
from tcpkmon.formats.pmgraph.arrays import Array
from tcpkmon.formats.pmgraph.clock import Seconds
from tcpkmon.formats.pmgraph.connections import Connection, algorithm_of, find_connections, title_of
from tcpkmon.formats.pmgraph.gaps import OffSpan, Spans, find_off, find_spans
from tcpkmon.formats.pmgraph.options import EVERYTHING, M_CLUSED_BYTES, Selection
from tcpkmon.formats.pmgraph.quantities import Quantity
from tcpkmon.formats.pmgraph.series import Trace, gather, within
from tcpkmon.formats.psc.reader import Capture

# The units of axes: the prefix that makes numbers short, and the name of the axis.

_DECIMAL = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "\u00b5s"), (1e-9, "ns"))
_IN_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_DIMENSIONS = {
    "bytes": "size", "bytes/s": "rate", "segments": "segments", "": "value",
    "s": "duration", "ms": "duration", "us": "duration", "ns": "duration",
}  # fmt: skip


def choose_scale(unit: str, largest: float) -> tuple[float, str]:
    """Factor and printed unit for values of `unit` up to `largest`.

    Values times the factor have few digits before the point. 1 kB is 1000 B.
    """
    largest = abs(largest)
    if unit in ("bytes", "bytes/s"):
        name = "B" + unit[len("bytes") :]
        for size, prefix in _DECIMAL:
            if largest >= size or size == 1.0:
                return 1 / size, prefix + name
    if unit in _IN_SECONDS:
        for size, name in _SECONDS:
            if largest * _IN_SECONDS[unit] >= size or name == unit.replace("us", "\u00b5s"):
                return _IN_SECONDS[unit] / size, name
    return 1.0, unit


def dimension_of(unit: str) -> str:
    """The name of an axis for several quantities of this unit."""
    return _DIMENSIONS.get(unit, unit)


_LOGARITHMIC_FROM = 50.0
_MEMORY = ("hiwat_fair_share", M_CLUSED_BYTES, "sb_target_hiwat")


@dataclass(frozen=True)
class Line:
    """One curve: (n,) times in s and values in the panel's unit, drawn as steps or as points."""

    label: str
    times: Array
    values: Array
    steps: bool
    connection: int
    upper: Array | None = None
    """(n,) the upper ends where it is bars from `values` up, else None"""
    colour: int = -1
    """its number in the palette; -1: that of its place"""
    filled: bool = False
    """down to 0, under the lines: what lies on it stays in sight"""

    def heights_at(self, times: Array) -> Array:
        """The values of the steps at these times (before the first step: its value)."""
        places = np.searchsorted(self.times, times, side="right") - 1
        return self.values[np.maximum(places, 0)]


@dataclass(frozen=True)
class Band:
    """What held in some times: its name, (n,) their begins and ends in s."""

    name: str
    begin: Array
    end: Array


@dataclass(frozen=True)
class Panel:
    """One pair of axes; `members`: values and names of an enumeration."""

    label: str
    lines: tuple[Line, ...]
    members: tuple[tuple[int, str], ...] = ()
    from_zero: bool = True
    logarithmic: bool = False
    is_count: bool = False
    """whether the numbers have no unit, and may be large"""
    overlaid: bool = False
    """whether its lines often hide each other: those below are wider"""
    bands: tuple[Band, ...] = ()
    """what it shows in place of lines"""

    def anchor_line(self, connection: int) -> Line | None:
        """The line on which a connection's events are marked: its first one that is no bars."""
        lines = (one for one in self.lines
                 if one.connection == connection and len(one.times) and one.upper is None)
        return next(lines, None)

    def with_names(self, most: int) -> tuple[Panel, list[str]]:
        """The panel with 0, 1, 2... for the values of an enumeration that occur, and their names.

        Unchanged and without names if more than `most` different values occur.
        """
        values_of = (line.values for line in self.lines if self.members)
        used = {float(value) for values in values_of for value in values}
        members = [(float(code), name) for code, name in self.members if float(code) in used]
        if not 0 < len(members) <= most:
            return self, []
        places = {code: place for place, (code, _) in enumerate(members)}
        lines = []
        for line in self.lines:
            known = np.isin(line.values, list(places))
            values = np.array([places[value] for value in line.values[known].tolist()], np.float64)
            lines.append(replace(line, times=line.times[known], values=values))
        return replace(self, lines=tuple(lines)), [name for _, name in members]


@dataclass(frozen=True)
class Page:
    """One graph: panels above each other with the same time axis, and the events."""

    title: str
    subtitle: str
    panels: tuple[Panel, ...]
    events: tuple[tuple[int, str, Array], ...]
    """(connection of the line, name of the location, times in s)"""
    limits: tuple[float, float]
    spans: Spans
    off: tuple[OffSpan, ...] = ()
    """when locations were switched off"""
    since: str = "the first record"
    """when the time axis begins"""

    def event_panel(self) -> int | None:
        """The index of the panel that shows the events: the first one with curves."""
        curves = (any(line.steps for line in panel.lines) for panel in self.panels)
        return next((index for index, has_curve in enumerate(curves) if has_curve), None)

    def crowded_kinds(self, most: int) -> list[str]:
        """The locations with more than `most` events, which would hide the curves."""
        counts: dict[str, int] = {}
        for _, name, times in self.events:
            counts[name] = counts.get(name, 0) + len(times)
        return [name for name, count in counts.items() if count > most]


def build_pages(capture: Capture, selection: Selection, bins: int) -> tuple[list[Page], list[str]]:
    """One page for each connection, or for each parameter, and notes for stderr.

    bins: pixel columns. Texts are escaped. Raises FileError if there is nothing to draw, and
    UsageError for columns that the file does not have.
    """
    every, notes = _choose(capture, selection)
    chosen = choose_quantities(capture, selection)
    seconds = Seconds(capture)
    [connections] = within([(every, seconds)], selection.zoom)
    traces = gather(capture, connections, chosen, seconds, bins, selection.zoom)
    titles = titles_of(capture, connections)
    begin = min(trace.limits[0] for trace in traces)
    end = max(trace.limits[1] for trace in traces)
    spans = find_spans(capture, seconds, (end - begin) / bins)
    if selection.by_parameter:
        names = [algorithm_of(capture, one) for one in connections]
        titles = [", ".join(filter(None, pair)) for pair in zip(titles, names, strict=True)]
        pages = [parameter_page(one, traces, titles, selection, spans) for one in chosen]
    else:
        pairs = zip(traces, titles, strict=True)
        pages = [_connection_page(capture, *pair, chosen, selection, spans) for pair in pairs]
    off = find_off(capture, seconds, end)
    return [replace(page, off=touching(off, page.limits)) for page in pages], notes


def touching(off: Iterable[OffSpan], limits: tuple[float, float]) -> tuple[OffSpan, ...]:
    """The part within the page's time; names escaped."""
    begin, end = limits
    return tuple(
        OffSpan(max(one.begin, begin), min(one.end, end), for_terminal(one.name))
        for one in off
        if one.end >= begin and one.begin <= end
    )


def _choose(capture: Capture, selection: Selection) -> tuple[Sequence[Connection], list[str]]:
    found = find_connections(capture, selection.connections)
    if selection.connections:
        note = find_missing(selection.connections, found.port_pairs(), capture.path)
        notes = [note] if note else []
        most, hint = MOST_DRAWN_CHOSEN, ""
    else:
        notes = []
        found = found.without_listeners()
        most, hint = MOST_DRAWN, "; -p chooses"
    if len(found) > most:
        notes.append(
            f"{len(found) - most} of {len(found)} connections left out, "
            f"those with the fewest records{hint}"
        )
        found = found.largest(most)
    if not found:
        what = "; ".join(notes) or "no records of connections"
        raise FileError(f"{capture.path}: {what}, so there is nothing to graph")
    return list(found), notes


def choose_quantities(capture: Capture, selection: Selection) -> list[Quantity]:
    """The columns to draw: the chosen ones, or all known ones that the file has.

    Raises UsageError for missing columns, FileError for columns without numbers.
    """
    names = selection.columns
    if names:
        quantities.require(capture, names)
        quantities.require_numbers(capture, names)
        return [quantities.describe(capture, name) for name in names]
    present = [name for name in EVERYTHING if quantities.is_number(capture, name)]
    if M_CLUSED_BYTES in present and not capture.header.mclsize:
        present.remove(M_CLUSED_BYTES)
    if not present:
        raise FileError(f"{capture.path}: none of the known columns", "--show names others")
    return [quantities.describe(capture, name) for name in present]


def titles_of(capture: Capture, connections: Sequence[Connection]) -> list[str]:
    """Addresses or ports; equal titles get a number."""
    titles = [title_of(capture, one) for one in connections]
    counts: dict[str, int] = {}
    numbered = []
    for title in titles:
        counts[title] = counts.get(title, 0) + 1
        numbered.append(f"{title} #{counts[title]}" if titles.count(title) > 1 else title)
    return numbered


def _connection_page(
    capture: Capture,
    trace: Trace,
    title: str,
    chosen: Sequence[Quantity],
    selection: Selection,
    spans: Spans,
) -> Page:
    groups: dict[str, list[Quantity]] = {}
    for one in chosen:
        groups.setdefault(_panel_of(one, chosen, selection), []).append(one)
    panels = tuple(
        _panel(group, [(one, trace, display_name(one, selection), 0) for one in group], selection)
        for group in groups.values()
    )
    algorithm = algorithm_of(capture, trace.connection)
    details = (trace.connection.ports if title != trace.connection.ports else "", algorithm)
    events = tuple((0, name, times) for name, times in trace.events.items())
    subtitle = ", ".join(text for text in details if text)
    return Page(title, subtitle, panels, events, trace.limits, overlapping(spans, trace.limits))


def parameter_page(
    one: Quantity,
    traces: Sequence[Trace],
    titles: Sequence[str],
    selection: Selection,
    spans: Spans,
) -> Page:
    pairs = zip(traces, titles, strict=True)
    entries = [(one, trace, title, index) for index, (trace, title) in enumerate(pairs)]
    panel = _panel([one], entries, selection)
    events = tuple(
        (index, name, times)
        for index, trace in enumerate(traces)
        for name, times in trace.events.items()
    )
    limits = (min(t.limits[0] for t in traces), max(t.limits[1] for t in traces))
    spans = overlapping(spans, limits)
    return Page(display_name(one, selection), "", (panel,), events, limits, spans)


def _panel_of(one: Quantity, chosen: Sequence[Quantity], selection: Selection) -> str:
    if one.name in selection.scales:  # -S moves it to the panel of the others
        others = [other for other in chosen if other.name not in selection.scales]
        one = others[0] if others else one
    if not selection.columns and one.name in _MEMORY:
        return "memory"
    return one.panel


def display_name(one: Quantity, selection: Selection) -> str:
    """The name of a column for legends, with the factor of -S; escaped."""
    name = "m_clused" if one.name == M_CLUSED_BYTES else for_terminal(one.name)
    factor = selection.scales.get(one.name)
    return name if factor is None else f"{name} \u00d7 {factor:g}"


def _panel(
    group: Sequence[Quantity],
    entries: Iterable[tuple[Quantity, Trace, str, int]],
    selection: Selection,
) -> Panel:
    lines = []
    for one, trace, label, index in entries:
        times, values = trace.curves[one.name].points()
        values = values * selection.scales.get(one.name, 1.0)
        lines.append(Line(label, times, values, one.kind != "code", index))
    lead = next((one for one in group if one.name not in selection.scales), group[0])
    largest = max((float(np.abs(line.values).max(initial=0)) for line in lines), default=0.0)
    factor, unit = choose_scale(lead.unit, largest)
    lines = [replace(line, values=line.values * factor) for line in lines]
    is_scaled = any(one.name in selection.scales for one in group)
    return Panel(
        _axis_label(group, lead, unit, selection),
        tuple(lines),
        lead.members if lead.kind == "code" and not is_scaled else (),
        from_zero=not any(line.values.min(initial=0) < 0 for line in lines),
        logarithmic=_is_memory(group, selection) and _spread(lines) > _LOGARITHMIC_FROM,
        is_count=not unit,
    )


def _is_memory(group: Sequence[Quantity], selection: Selection) -> bool:
    return not selection.columns and all(one.name in _MEMORY for one in group)


def _spread(lines: Sequence[Line]) -> float:
    """The greatest value divided by the smallest positive one."""
    positive = [line.values[line.values > 0] for line in lines]
    present = [values for values in positive if len(values)]
    if not present:
        return 1.0
    return float(max(one.max() for one in present) / min(one.min() for one in present))


def _axis_label(group: Sequence[Quantity], lead: Quantity, unit: str, selection: Selection) -> str:
    if lead.kind == "sequence":
        return f"relative sequence number ({unit})"
    if len(group) == 1:
        what = display_name(lead, selection)
    else:
        what = "memory" if _is_memory(group, selection) else dimension_of(lead.unit)
    return f"{what} ({for_terminal(unit)})" if unit and unit != what else what


def overlapping(spans: Spans, limits: tuple[float, float]) -> Spans:
    """The spans that overlap the page's time; `missing` remains the number of the whole file."""
    touch = (spans.end >= limits[0]) & (spans.begin <= limits[1])
    return replace(spans, begin=spans.begin[touch], end=spans.end[touch])
