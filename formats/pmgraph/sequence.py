# SPDX-License-Identifier: Apache-2.0
"""The time-sequence graph: what TCP sent and has acknowledged, and what held it back.

    receive window's edge    snd_una + snd_wnd
    congestion window's edge snd_una + cwnd
    sent                     snd_max
    acknowledged             snd_una

As tcptrace draws it of packets, with what no packet tells: the congestion window, and what limited
each moment. Below are round-trip times, rates, what is in flight, the buffers and the losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tcpkmon.formats.analysis import why
from tcpkmon.formats.base.errors import FileError, TcpkmonError, UsageError
from tcpkmon.formats.pmgraph import quantities
from tcpkmon.formats.pmgraph.arrays import Array, Columns
from tcpkmon.formats.pmgraph.clock import Seconds
from tcpkmon.formats.pmgraph.connections import Connection, algorithm_of, read_chunks
from tcpkmon.formats.pmgraph.downsample import Curve
from tcpkmon.formats.pmgraph.gaps import find_off, find_spans
from tcpkmon.formats.pmgraph.options import Selection
from tcpkmon.formats.pmgraph.pages import (
    Band,
    Line,
    Page,
    Panel,
    choose_connections,
    titles_of,
    touching,
    within_limits,
)
from tcpkmon.formats.pmgraph.quantities import Quantity
from tcpkmon.formats.pmgraph.series import Marks, Unwrapper, ends_of, event_codes, within
from tcpkmon.formats.pmgraph.units import choose_scale
from tcpkmon.formats.psc.reader import Capture

ACKED, SENT, CWND, WINDOW = "acknowledged", "sent", "congestion window", "receive window"
AGAIN = "sent again"
EDGES = (ACKED, SENT, CWND, WINDOW)
_SEQUENCES = ("snd_max", "snd_una")
_MORE = ("srtt_us", "min_rtt_us", "snd_sb_cc", "rcv_sb_cc", "sacked_out", "lost_out", "retrans_out")
_PANELS = (
    ("RTT", "us", {"smoothed": "srtt_us", "least": "min_rtt_us"}),
    ("buffers", "bytes", {"send": "snd_sb_cc", "receive": "rcv_sb_cc"}),
    ("segments", "", {"SACKed": "sacked_out", "lost": "lost_out", "retransmitted": "retrans_out"}),
)
_RATES = 200
"""So many rates there are at most along the time axis."""
_RETRANSMIT = 2
_AROUND = {"rto": "RTO", "retransmit": "RETRANSMIT", "probe": "LOSS_PROBE", "reset": "RESET_SENT"}
_BEFORE_RTTS, _AFTER_RTTS, _LEAST_S = 3, 9, 0.02
_FAR = 1.5


@dataclass
class Sequenced:
    """One connection: its curves by name, the segments that were sent again, its events.

    Sequence numbers are bytes since the first one. again: times, first and behind the last byte.
    """

    connection: Connection
    limits: tuple[float, float]
    curves: dict[str, Curve] = field(default_factory=dict)
    again: list[tuple[Array, Array, Array]] = field(default_factory=list)
    events: Mapping[str, Array] = field(default_factory=dict)

    def points(self, name: str) -> tuple[Array, Array]:
        """(n,) times and values of a curve; none where the file lacks its columns."""
        curve = self.curves.get(name)
        return curve.points() if curve is not None else (np.empty(0), np.empty(0))

    def sent_again(self) -> tuple[Array, Array, Array]:
        """(n,) times, first byte, behind the last one of the segments that were sent again."""
        if not self.again:
            return np.empty(0), np.empty(0), np.empty(0)
        times, first, behind = (np.concatenate(parts) for parts in zip(*self.again, strict=True))
        return times, first, behind


def build_sequence(
    capture: Capture, selection: Selection, bins: int
) -> tuple[list[Page], list[str]]:
    """A page for each connection, and notes for stderr; see build_pages()."""
    found, seconds, notes = read_sequences(capture, selection, bins)
    titles = titles_of(capture, [one.connection for one in found])
    begin, end = (pick(one.limits[at] for one in found) for pick, at in ((min, 0), (max, 1)))
    spans = find_spans(capture, seconds, (end - begin) / bins)
    off = find_off(capture, seconds, end)
    bands, note = _bands(capture, found, seconds, bins)
    pages = []
    for one, title, limits in zip(found, titles, bands, strict=True):
        events = tuple((0, name, times) for name, times in one.events.items())
        told = algorithm_of(capture, one.connection), _shares(limits)
        subtitle = ", ".join(filter(None, told))
        pages.append(Page(
            title, subtitle, tuple(_panels(one)), events, one.limits,
            within_limits(spans, one.limits), touching(off, one.limits), bands=limits,
        ))  # fmt: skip
    return pages, [*notes, *note]


def read_sequences(
    capture: Capture, selection: Selection, bins: int
) -> tuple[list[Sequenced], Seconds, list[str]]:
    """The chosen connections, in one pass; UsageError for a file that lacks the columns."""
    every, notes = choose_connections(capture, selection)
    needed = {*_SEQUENCES, "snd_cwnd", "snd_wnd"}
    if lacking := sorted(one for one in needed if not quantities.is_number(capture, one)):
        raise UsageError(f"{capture.path} lacks {', '.join(lacking)}, which --sequence draws",
                         "capture with --columns default")  # fmt: skip
    seconds = Seconds(capture)
    [chosen] = within([(every, seconds)], selection.zoom)
    zoom = selection.zoom
    found = [Sequenced(one, zoom or ends_of(one, seconds)) for one in chosen]
    for one in found:
        one.curves = {name: Curve(one.limits, bins, zoom) for name in (*EDGES, "flight", *_MORE)}
    more = [name for name in _MORE if quantities.is_number(capture, name)]
    segment = [name for name in ("seg_seq", "seg_len") if quantities.is_number(capture, name)]
    quantity = {name: quantities.describe(capture, name) for name in (*_SEQUENCES, *more)}
    unwrappers = [Unwrapper() for _ in found]
    marks, codes = [Marks(one.limits, bins) for one in found], event_codes(capture)
    names = {*needed, *more, *segment, seconds.column, "location"}
    for columns, groups in read_chunks(capture, chosen, names):
        times = seconds.of(columns)
        for index, rows in groups:
            one = found[index]
            known = rows[(columns["snd_una"][rows] != 0) & (columns["snd_max"][rows] != 0)]
            if len(known):
                _add(one, unwrappers[index], columns, known, times[known], quantity, segment)
            for name in more:
                points = unwrappers[index].known_points(
                    quantity[name], times[rows], columns[name][rows]
                )
                one.curves[name].add(*points)
            shown = rows
            if zoom is not None:
                shown = rows[(times[rows] >= zoom[0]) & (times[rows] <= zoom[1])]
            if codes:
                marks[index].add(times[shown], columns["location"][shown], codes)
    for one, mark in zip(found, marks, strict=True):
        one.events = mark.by_name()
    return found, seconds, notes


def _add(
    one: Sequenced, unwrap: Unwrapper, columns: Columns, rows: Array, times: Array,
    quantity: Mapping[str, Quantity], segment: Sequence[str],
) -> None:  # fmt: skip
    """Some records: the edges, and what was sent again, whose numbers are near those of snd_una."""
    unwrap.start(_SEQUENCES, columns, rows)
    raw = columns["snd_una"][rows]
    (_, una), (_, sent) = (
        unwrap.known_points(quantity[name], times, columns[name][rows])
        for name in ("snd_una", "snd_max")
    )
    cwnd, window = (columns[name][rows].astype(np.int64) for name in ("snd_cwnd", "snd_wnd"))
    edges = zip((*EDGES, "flight"), (una, sent, una + cwnd, una + window, sent - una), strict=True)
    for name, values in edges:
        one.curves[name].add(times, values)
    at = np.flatnonzero(columns["location"][rows] == _RETRANSMIT)
    if (drawn := one.curves[ACKED].window) is not None:
        begin, end = drawn
        at = at[(times[at] >= begin) & (times[at] <= end)]
    if len(segment) == 2 and len(at):
        numbers = columns["seg_seq"][rows[at]].astype(np.uint32)
        first = una[at] + (numbers - raw[at].astype(np.uint32)).view(np.int32)
        one.again.append((times[at], first, first + columns["seg_len"][rows[at]].astype(np.int64)))


def _panels(one: Sequenced) -> Iterator[Panel]:
    edges = [Line(name, *one.points(name), True, 0) for name in (SENT, ACKED, CWND, WINDOW)]
    times, first, _ = one.sent_again()
    if len(times):
        edges.append(Line(AGAIN, times, first.astype(np.float64), False, 0))
    yield _focused(_scaled("sequence number", "bytes", edges))
    yield _scaled("rate", "bytes/s", [*_rates(one)])
    flight = [Line("in flight", *one.points("flight"), True, 0)]
    for name in (CWND, WINDOW):
        at, values = one.points(name)
        flight.append(Line(name, at, values - _heights(one.points(ACKED), at), True, 0))
    yield _focused(_scaled("in flight", "bytes", flight))
    for label, unit, names in _PANELS:
        lines = []
        for text, name in names.items():
            at, values = one.points(name)
            if len(at) and values.any():
                lines.append(Line(text, at, values, True, 0))
        if lines:
            yield _scaled(label, unit, lines)


def _heights(points: tuple[Array, Array], times: Array) -> Array:
    """The values of steps at these times."""
    at, values = points
    if not len(at):
        return np.zeros(len(times))
    return np.asarray(values[np.maximum(np.searchsorted(at, times, side="right") - 1, 0)])


def _rates(one: Sequenced) -> Iterator[Line]:
    """What was sent and acknowledged a second, in equal parts of the time."""
    begin, end = one.limits
    parts = np.linspace(begin, max(end, begin + 1e-9), _RATES + 1)
    for text, name in (("sent", SENT), ("acknowledged", ACKED)):
        moved = np.diff(_heights(one.points(name), parts))
        yield Line(text, parts[:-1], np.maximum(moved, 0) / np.diff(parts), True, 0)


def _scaled(label: str, unit: str, lines: Sequence[Line]) -> Panel:
    largest = max((float(np.abs(line.values).max(initial=0)) for line in lines), default=0.0)
    factor, shown = choose_scale(unit, largest) if unit else (1.0, "")
    scaled = tuple(replace(line, values=line.values * factor) for line in lines)
    return Panel(f"{label} ({shown})" if shown else label, scaled, is_count=not shown)


def _focused(panel: Panel) -> Panel:
    """Without most of a receive window that lies far above all else."""
    heights = [line.values for line in panel.lines if line.label != WINDOW and len(line.values)]
    low = min((float(values.min()) for values in heights), default=0.0)
    high = max((float(values.max()) for values in heights), default=0.0)
    tops = [float(line.values.max(initial=0)) for line in panel.lines if line.label == WINDOW]
    if not tops or max(tops) - low < _FAR * (high - low):
        return panel
    lines = tuple(replace(one, label=f"{WINDOW} (above)") if one.label == WINDOW else one
                  for one in panel.lines)  # fmt: skip
    margin = 0.12 * (high - low) or 1.0
    return replace(panel, lines=lines, shown=(low - margin / 2, high + margin))


def _bands(
    capture: Capture, found: Sequence[Sequenced], seconds: Seconds, bins: int
) -> tuple[list[tuple[Band, ...]], list[str]]:
    """What limited each connection, looked up once for each pixel column."""
    try:
        rows = why.intervals(capture)
    except TcpkmonError as error:
        return [() for _ in found], [f"what limited the connections is not drawn: {error.message}"]
    ids, limits = rows["conn_id"], rows["limit"]
    begins, ends = (np.array([seconds.of_mono(ns) for ns in rows[name].tolist()])
                    for name in ("start_ns", "end_ns"))  # fmt: skip
    return [_looked_up(one, ids == one.connection.conn_id, begins, ends, limits, bins)
            for one in found], []  # fmt: skip


def _looked_up(
    one: Sequenced, mine: Array, begins: Array, ends: Array, limits: Array, bins: int
) -> tuple[Band, ...]:
    begins, ends, names = begins[mine], ends[mine], limits[mine]
    if not len(begins):
        return ()
    low, high = one.limits
    borders = np.linspace(low, max(high, low + 1e-9), bins + 1)
    middle = (borders[1:] + borders[:-1]) / 2
    at = np.maximum(np.searchsorted(begins, middle, side="right") - 1, 0)
    known = (begins[at] <= middle) & (middle < ends[at])
    shown = np.where(known, names[at], "")
    starts = np.flatnonzero(np.r_[True, shown[1:] != shown[:-1]])
    stops = np.r_[starts[1:], bins]
    found = zip(borders[starts].tolist(), borders[stops].tolist(), shown[starts].tolist(),
                strict=True)  # fmt: skip
    return tuple(Band(low, high, limit) for low, high, limit in found if limit)


def _shares(bands: Sequence[Band]) -> str:
    """What limited it for the longest, in words."""
    times: dict[str, float] = {}
    for one in bands:
        times[one.limit] = times.get(one.limit, 0.0) + one.end - one.begin
    total, most = sum(times.values()), sorted(times, key=lambda limit: -times[limit])[:2]
    return ", ".join(f"{limit} {times[limit] / total:.0%}" for limit in most) if total else ""


def around(capture: Capture, selection: Selection, event: str) -> tuple[float, float]:
    """The seconds around the first such event of a chosen connection. FileError: there is none."""
    name = _AROUND.get(event.lower(), event.upper())
    codes = {capture.location_name(code): code for code in range(224)}
    if name not in codes:
        raise UsageError(f"--around {event}: no such event", f"try {', '.join(_AROUND)}")
    every, _ = choose_connections(capture, selection)
    seconds = Seconds(capture)
    has_rtt = quantities.is_number(capture, "srtt_us")
    names = {seconds.column, "location", *(("srtt_us",) if has_rtt else ())}
    for columns, groups in read_chunks(capture, every, names):
        times = seconds.of(columns)
        hits = [rows[columns["location"][rows] == codes[name]] for _, rows in groups]
        if len(rows := np.sort(np.concatenate([*hits, np.empty(0, np.int64)])).astype(np.int64)):
            at, row = float(times[rows[0]]), rows[0]
            rtt_s = max(float(columns["srtt_us"][row]) / 1e6 if has_rtt else 0.0, _LEAST_S / 10)
            return max(at - _BEFORE_RTTS * rtt_s, 0.0), at + _AFTER_RTTS * rtt_s
    raise FileError(f"{capture.path}: no {name} of these connections", "tcpkmon connections -v")
