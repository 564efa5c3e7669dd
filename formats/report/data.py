# SPDX-License-Identifier: Apache-2.0
"""Gathers what the page shows of a capture of any format, in bounded size."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis import why
from tcpkmon.formats.analysis.causes import Finder
from tcpkmon.formats.analysis.explaining import Explaining, by_bytes
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.reader import Reader, complaints_of
from tcpkmon.formats.base.sequence import ahead_of, has_numbers
from tcpkmon.formats.base.tcp import Location
from tcpkmon.formats.base.thinning import bins_of, starts_of, thin
from tcpkmon.formats.klogger.logs import Logs
from tcpkmon.formats.psc.reader import Capture
from tcpkmon.formats.report.host import Section, read_host
from tcpkmon.formats.report.tracks import read_tracks
from tcpkmon.formats.tables import SHIPPED, Opened, table_of
from tcpkmon.formats.timeline import INSTANTS

# Throughput and goodput of a connection: means of equal times, none where records are missing.
#
# What was sent or acknowledged between two records is spread evenly over the time between them.

Array = NDArray[Any]
NAMES = ("sent, new and again", "goodput: acknowledged or SACKed", "goodput: received")
_COLUMNS = ("snd_max", "snd_una", "rcv_nxt")
_MOST, _LEAST_NS = 250, 1_000_000


class Rates:
    """The bytes of one connection between two times, in at most 250 times of at least 1 ms."""

    def __init__(self, begin_ns: int, end_ns: int) -> None:
        span = max(end_ns - begin_ns, 1)
        count = min(max(span // _LEAST_NS, 1), _MOST)
        self.width_ns = span / count
        self._edges = np.arange(count + 1) * self.width_ns
        self._begin = begin_ns
        self._unknown = np.zeros(count, np.bool_)
        self._bytes = np.zeros((len(NAMES), count + 1))  # until each edge
        self._sums = np.zeros((len(NAMES), 1))
        self._numbers: list[Array] | None = None
        self._acked = self._delivered = 0.0
        self._time = 0.0

    def add(self, piece: why.Snapshots, begins: Array, ends: Array) -> None:
        """The connection's next snapshots; between these times records are missing."""
        missing = np.bincount(self._place(begins), minlength=len(self._edges))
        missing -= np.bincount(self._place(ends) + 1, minlength=len(self._edges))
        self._unknown |= np.cumsum(missing[:-1]) > 0
        rows = np.flatnonzero(has_numbers(piece.columns))
        if not len(rows):
            return
        now = [piece[name][rows].astype(np.uint32) for name in _COLUMNS]
        before = self._numbers or [values[:1] for values in now]
        self._numbers = [values[-1:] for values in now]
        steps = np.stack([ahead_of(values, np.r_[last, values[:-1]])
                          for values, last in zip(now, before, strict=True)])  # fmt: skip
        steps = np.maximum(steps, 0).astype(np.int64)
        # With SACK, or one ACK would have all that was delivered during a recovery.
        acked = self._acked + np.cumsum(steps[1])
        sacked = piece["sacked_out"][rows].astype(np.int64) * piece["mss"][rows]
        delivered = np.maximum.accumulate(np.r_[self._delivered, acked + sacked])
        steps[1] = np.diff(delivered)
        self._acked, self._delivered = float(acked[-1]), float(delivered[-1])
        again = piece["location"][rows] == Location.RETRANSMIT
        steps[0] += np.where(again, piece["seg_len"][rows], 0)
        times = np.maximum.accumulate(np.r_[self._time, piece.times_ns[rows] - self._begin])
        sums = np.cumsum(np.concatenate([self._sums, steps], axis=1), axis=1)
        later = np.flatnonzero(self._edges > self._time)
        for found, of in zip(self._bytes, sums, strict=True):
            found[later] = np.interp(self._edges[later], times, of)
        self._time, self._sums = float(times[-1]), sums[:, -1:]

    def megabits(self) -> list[list[float | None]]:
        """For each of NAMES Mbit/s for each time; None where it is not known."""
        found = np.diff(self._bytes) * (8e3 / self.width_ns)
        found[:, self._unknown] = np.nan
        return [[None if math.isnan(one) else float(f"{one:.5g}") for one in row]
                for row in found.tolist()]  # fmt: skip

    def _place(self, times: Array) -> Array:
        place = (times - self._begin) / self.width_ns
        return np.clip(place.astype(np.int64), 0, len(self._unknown) - 1)


# The points of some connections' graphs, thinned to what pixels show; broken where records are
# missing.
#
# A value is a whole number, or NONE. A break is a row without values.

NONE = -(1 << 31)
_LARGEST = (1 << 31) - 1
VALUES = (
    ("cwnd", "segments"), ("ssthresh", "segments"), ("in flight", "segments"),
    ("peer's window", "bytes"), ("send buffer", "bytes"), ("receive buffer", "bytes"),
    ("srtt", "us"), ("min rtt", "us"),
)  # fmt: skip
_BINS = 2000


class Course:
    """The rows of one connection between two times, at most so many."""

    def __init__(self, piece: why.Snapshots, begin_ns: int, end_ns: int, most: int) -> None:
        self._begin, self._span = begin_ns, max(end_ns - begin_ns, 1)
        times, lost = piece.times_ns, piece.lost
        at = np.flatnonzero(np.diff(lost, prepend=lost[:1]) > 0)
        before = times[at - 1]
        self.records = len(times)
        self.rates = Rates(begin_ns, end_ns)
        self.rates.add(piece, before, times[at])
        self.marks: list[tuple[Array, Array, Array]] = []
        for number in INSTANTS:
            rows = np.flatnonzero(piece["location"] == number)
            if len(rows):
                told = piece["callvalue"][rows].astype(np.int64)
                self.marks.append((np.full(len(rows), number), times[rows], told))
        self.times = np.insert(times, at, np.minimum(before + 1, times[at]))
        self.values = np.insert(np.stack(list(_values_of(piece))), at, NONE, axis=1)
        bins = _BINS
        while len(self.times) > most and bins > 8:
            self._thin(bins)
            bins = bins * 4 // 5

    def _thin(self, bins: int) -> None:
        place = bins_of(self.times, self._begin, self._begin + self._span, bins)
        kept = thin(np.maximum.accumulate(place), self.values, self.values == NONE)
        self.times, self.values = self.times[kept], self.values[:, kept]


def _values_of(piece: why.Snapshots) -> Iterator[Array]:
    columns = piece.columns
    for name in ("snd_cwnd_segs", "snd_ssthresh"):
        yield _whole(columns[name], columns[name] >= _LARGEST)
    yield _whole(np.maximum(why.in_flight(columns), 0))
    for name in ("snd_wnd", "snd_sb_cc", "rcv_sb_cc"):
        yield _whole(columns[name])
    yield _whole(columns["srtt_us"], columns["srtt_us"] == 0)
    yield _whole(columns["min_rtt_us"], columns["min_rtt_us"] >= _LARGEST)


def _whole(values: Array, none: Array | None = None) -> Array:
    found = np.minimum(values, _LARGEST).astype(np.int32)
    if none is not None:
        found[none] = NONE
    return found


def read_courses(
    source: why.Source, spans: dict[int, tuple[int, int]], most: int
) -> tuple[dict[int, Course], why.Losses]:
    """One pass over the capture. spans: first and last time of the connections that are wanted."""
    found: dict[int, Course] = {}
    losses = why.Losses.join([])
    for block in source.blocks(ids=np.array([*spans], np.uint64)):
        losses = block.losses
        for low, high in zip(block.groups.tolist(), (block.lasts + 1).tolist(), strict=True):
            conn, mine = int(block["conn_id"][low]), slice(low, high)
            columns = {name: values[mine] for name, values in block.rows.items()}
            piece = why.Snapshots(columns, block.times_ns[mine], block.lost[mine])
            found[conn] = Course(piece, *spans[conn], most)
    return {conn: found[conn] for conn in spans if conn in found}, losses


def merge(lost: why.Losses, most: int) -> why.Losses:
    """At most so many spans: those nearest to each other become one."""
    if len(lost.begin_ns) <= 1:
        return lost
    order = np.argsort(lost.begin_ns, kind="stable")
    begin, missing = lost.begin_ns[order], lost.missing[order]
    end = np.maximum.accumulate(lost.end_ns[order])
    between = begin[1:] - end[:-1]
    limit = 0 if len(between) < most else max(int(np.sort(between)[-most]), 0)
    at = np.flatnonzero(np.r_[True, between > limit])
    return why.Losses(begin[at], np.maximum.reduceat(end, at), np.add.reduceat(missing, at))


_ALL_POINTS = 60_000
"""Of all graphs: 40 bytes each, a third more in base64."""
_ROWS = 5000
_MARKS, _LIMITS, _GAPS = 1000, 1500, 1000
_ITEMS = 1000
"""Names of what ran."""
_SHOWN = (
    "conn_id", "laddr", "lport", "raddr", "rport", "comm", "role", "end_reason", "start",
    "duration_us", "bytes_sent", "bytes_received", "goodput_mean", "retransmissions", "rto_count",
    "srtt_p50_us", "main_limit", "main_share", "lost_records", "proven",
)  # fmt: skip


@dataclass
class Report:
    """proof, ledger, causes: rows of these tables. said: the name and sentences of a connection.
    plots: what the script draws; {} where the capture has no snapshots of connections."""

    name: str
    proof: list[dict[str, Any]]
    events: list[dict[str, Any]]
    settings: dict[str, Any]
    warnings: list[str]
    said: list[tuple[int, str, list[str]]] = field(default_factory=list)
    causes: list[dict[str, Any]] = field(default_factory=list)
    plots: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    host: list[Section] = field(default_factory=list)


def collect(paths: Sequence[Path], reader: Reader, most: int = 10) -> Report:
    """What the page of an open capture shows, with graphs of `most` connections.

    FileError; DamagedError where nothing can be read of it.
    """
    opened = Opened(tuple(paths), reader)
    proof = table_of(opened, "proof").to_pylist()
    found = Report(
        paths[0].name if len(paths) == 1 else f"{paths[0].name} and {len(paths) - 1} more",
        proof, _events(table_of(opened, "ledger").to_pylist()), _settings(reader), [],
    )  # fmt: skip
    try:
        with why.Source(reader) as source:
            _add_connections(found, paths, source, most)
    except UsageError as error:
        found.warnings.append(f"no graphs: {error}")
    if isinstance(reader, Logs):
        found.host = read_host(paths, most)
        _add_tracks(found, reader)
    found.warnings += complaints_of(reader)
    return found


def _events(ledger: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ledger, summed over CPUs and files."""
    sums: dict[str, dict[str, Any]] = {}
    for row in ledger:
        one = sums.setdefault(row["location"] or "?", dict.fromkeys(
            ("attempts", "filtered", "written", "in_file", "lost"), 0))  # fmt: skip
        for name in one:
            one[name] += row[name] or 0
    return [{"event": name, **one} for name, one in sums.items()]


def _settings(reader: Reader) -> dict[str, Any]:
    if isinstance(reader, Capture):
        found: Any = reader.settings
    elif isinstance(reader, Logs):
        found = reader.format.header
        found = found.get("settings") or found
    else:
        found = getattr(reader, "settings", {})
    return found if isinstance(found, dict) else {}


def _add_connections(found: Report, paths: Sequence[Path], source: why.Source, most: int) -> None:
    finder = Finder(source)
    table, runs = why.tables(source, visitor=finder)
    found.count = len(table["conn_id"])
    if not found.count:
        return
    order = by_bytes(table)
    chosen = order[:most]
    ids = table["conn_id"][chosen]
    causes = finder.causes()
    found.causes = [asdict(cause) for cause in causes[:_ROWS]]
    explaining = Explaining(paths, table, ids, causes)
    for one in explaining.of(table, chosen):
        found.said.append((int(one.connection.conn_id), why.head(one.connection), one.sentences))
    spans = {
        int(table["conn_id"][at]): (int(table["start_ns"][at]), int(table["end_ns"][at]))
        for at in chosen.tolist()
    }
    courses, lost = read_courses(source, spans, _ALL_POINTS // max(len(spans), 1))
    begin = min(begin for begin, _ in spans.values())
    ahead = source.about().get("ahead_ns")
    gaps = merge(lost, _GAPS)
    found.plots = {
        "begin_ns": begin, "start_ms": None if ahead is None else (begin + ahead) / 1e6,
        "values": VALUES, "none": NONE, "limits": list(why.LIMITS),
        "rates": NAMES, "marks": {number: list(told) for number, told in INSTANTS.items()},
        "lost": [_us(gaps.begin_ns, begin), _us(gaps.end_ns, begin), gaps.missing.tolist()],
        "gaps": len(lost.begin_ns), "unplaced": max(source.reader.lost - source.placed, 0),
        "connections": _rows(table, order[:_ROWS]), "count": found.count,
        "graphs": {
            str(conn): _graph(course, begin, runs, conn, spans[conn])
            for conn, course in courses.items()
        },
    }  # fmt: skip
    if not source.reader.complete:
        found.plots["open_end"] = True


def _add_tracks(found: Report, logs: Logs) -> None:
    """The rows of the host, on the graphs' axis of time, or on one of their own."""
    tracks = read_tracks(logs)
    if not tracks.rows:
        return
    every = [bands.rows for bands in tracks.rows.values()]
    times = np.concatenate([*every, *(bands.rows for bands in tracks.gaps.values())])
    if not found.plots:
        begin, clock = int(times["begin"].min()), logs.format.clock
        start_ms = None if clock is None else (begin - clock[0] + clock[1]) / 1e6
        placed = sum(int(bands.rows["count"].sum()) for bands in tracks.gaps.values())
        found.plots = {"begin_ns": begin, "start_ms": start_ms, "graphs": {},
                       "unplaced": max(logs.lost - placed, 0)}  # fmt: skip
    begin = found.plots["begin_ns"]
    items = np.concatenate([rows["item"] for rows in every])
    busy = np.concatenate([rows["busy"] for rows in every]).astype(np.float64)
    spent = np.bincount(items, busy)
    kept = np.argsort(-spent, kind="stable")[:_ITEMS]
    number_of = np.full(len(spent), len(kept))
    number_of[kept] = np.arange(len(kept))
    names = [*tracks.items]
    found.plots["tracks"] = {
        "items": [*(names[n] for n in kept.tolist()), "others"], "left_out": tracks.left_out,
        "thinned": any((rows["count"] > 1).any() for rows in every),
        "end": _us([times["end"].max()], begin)[0],
        "rows": [_track(name, bands.rows, number_of, begin) for name, bands in tracks.rows.items()],
        "gaps": {name: [_us(bands.rows["begin"], begin), _us(bands.rows["end"], begin),
                        bands.rows["count"].tolist()] for name, bands in tracks.gaps.items()},
    }  # fmt: skip


def _track(name: str, rows: Any, number_of: Any, begin: int) -> dict[str, Any]:
    length = rows["end"] - rows["begin"]
    share = np.clip(rows["busy"] / np.maximum(length, 1) * 255, 1, 255)
    return {
        "name": name, "begin": _packed((rows["begin"] - begin) / 1e3, "<f8"),
        "length": _packed(length / 1e3, "<f4"), "share": _packed(share, "<u1"),
        "item": _packed(number_of[rows["item"]], "<u2"),
        "count": _packed(np.minimum(rows["count"], (1 << 32) - 1), "<u4"),
    }  # fmt: skip


def _us(times: Any, begin: int) -> list[float]:
    return [round(one / 1e3, 1) for one in (np.asarray(times) - begin).tolist()]


def _rows(table: why.Table, order: Any) -> dict[str, Any]:
    units = {column.name: column for column in SHIPPED["connections"][1]}
    shown = [name for name in _SHOWN if name in table]
    some = {name: table[name][order] for name in shown}
    rows = [[*row.values()] for row in why.rows_of(some)]
    shown_at = [n for n in range(len(shown)) if any(row[n] is not None for row in rows)]
    return {
        "columns": [
            {"name": shown[n], "unit": units[shown[n]].unit, "text": units[shown[n]].text}
            for n in shown_at
        ],
        "rows": [[row[n] for n in shown_at] for row in rows],
    }


def _graph(
    course: Course, begin: int, runs: why.Table, conn: int, span: tuple[int, int]
) -> dict[str, Any]:
    mine = np.flatnonzero(runs["conn_id"] == conn)
    starts, ends = runs["start_ns"][mine], runs["end_ns"][mine]
    few = _longest(starts, ends)
    number = {name: n for n, name in enumerate(why.LIMITS)}
    kinds, times, told = (
        np.concatenate(part) for part in zip(*course.marks, strict=True)
    ) if course.marks else (np.empty(0, np.int64),) * 3  # fmt: skip
    order = np.argsort(times, kind="stable")
    if len(some := order) > _MARKS:
        some = order[np.linspace(0, len(order) - 1, _MARKS).astype(int)]
    return {
        "records": course.records, "points": len(course.times),
        "span": _us(span, begin),
        "times": _packed((course.times - begin) / 1e3, "<f8"),
        "values": [_packed(values, "<i4") for values in course.values],
        "limits": [_us(starts[few], begin), _us(ends[few], begin),
                   [number[str(one)] for one in runs["limit"][mine][few].tolist()],
                   [int(one) for one in runs["certain"][mine][few].tolist()]],
        "limits_count": len(mine),
        "rates": course.rates.megabits(), "rates_ms": course.rates.width_ns / 1e6,
        "marks": [kinds[some].tolist(), _us(times[some], begin), told[some].tolist()],
        "marks_count": len(order),
    }  # fmt: skip


def _longest(starts: Any, ends: Any) -> Any:
    """(n,) the rows of the intervals that are drawn: of many, the longest of each part of time."""
    if len(starts) <= _LIMITS:
        return np.arange(len(starts))
    parts = bins_of(starts, int(starts.min()), int(ends.max()), _LIMITS)
    order = np.lexsort((starts - ends, parts))
    return np.sort(order[starts_of(parts[order])])


def _packed(values: Any, form: str) -> str:
    return base64.b64encode(np.asarray(values).astype(form).tobytes()).decode()
