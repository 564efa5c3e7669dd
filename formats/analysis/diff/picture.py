# SPDX-License-Identifier: Apache-2.0
"""Draws a comparison: the distributions of both sides, and their courses in one scale."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.diff.output import Report
from tcpkmon.formats.analysis.diff.sides import Run
from tcpkmon.formats.analysis.diff.statistics import (
    DIFFERS,
    RATE,
    SAME,
    TIME,
    Compared,
    Metric,
    change_text,
)
from tcpkmon.formats.analysis.why.assemble import Table
from tcpkmon.formats.analysis.why.intervals import Steps, cut
from tcpkmon.formats.analysis.why.snapshots import Source
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.drawing import (
    PALETTE,
    Axes,
    check_output,
    new_figure,
    save_figure,
    scale_log,
    styled,
)

# Courses over time: goodput and round-trip time of the connections that count.
#
# Over the time of the capture, of all of them together; and over their age, of the mean of those
# that are as old, as far as half of them get older.

Floats = NDArray[np.float64]
Array = NDArray[np.int64]
_FIRST_BIN_NS = 20_000_000
_MOST_BINS = 100


@dataclass(frozen=True)
class Course:
    """bin_ns: length of a bin. goodput: (n,) bytes/s. srtt_us: (n,), NaN without a record."""

    bin_ns: int
    goodput: Floats
    srtt_us: Floats

    @property
    def times_s(self) -> Floats:
        """(n,) the middles of the bins."""
        return np.asarray((np.arange(len(self.goodput)) + 0.5) * self.bin_ns / 1e9, np.float64)


class _Sums:
    def __init__(self, longest_ns: int) -> None:
        self.bin_ns = _FIRST_BIN_NS
        while longest_ns // self.bin_ns >= _MOST_BINS:
            self.bin_ns *= 2
        self.count = longest_ns // self.bin_ns + 1
        self.bytes: Floats = np.zeros(self.count)
        self.times: Floats = np.zeros(self.count)
        self.records: Floats = np.zeros(self.count)

    def add(self, since_ns: Array, moved: Array, srtt_us: Floats) -> None:
        """Steps, (n,) each. srtt_us: 0 where it is not known."""
        places = np.clip(since_ns // self.bin_ns, 0, self.count - 1)
        self.bytes += np.bincount(places, moved, self.count)
        self.times += np.bincount(places, srtt_us, self.count)
        self.records += np.bincount(places, srtt_us > 0, self.count)

    def course(self, connections: Floats) -> Course:
        """connections: (m,) how many there are in each bin; bins behind that are left out."""
        some = slice(len(connections))
        with np.errstate(all="ignore"):
            srtt = np.where(self.records > 0, self.times / self.records, np.nan)
            goodput = self.bytes[some] * 1e9 / self.bin_ns / connections
        return Course(self.bin_ns, goodput, srtt[some])


def courses_of(run: Run) -> tuple[Course, Course] | None:
    """Over the capture, since its first connection began, and over age; None without any."""
    table = run.connections
    if table is None or not len(table["conn_id"]):
        return None
    order = np.argsort(table["conn_id"], kind="stable")
    ids, starts = table["conn_id"][order].astype(np.uint64), table["start_ns"][order]
    sends = (table["bytes_acked"] >= table["bytes_received"])[order]
    begin, ages = int(starts.min()), table["end_ns"] - table["start_ns"]
    by_time, by_age = _Sums(int(table["end_ns"].max()) - begin), _Sums(int(ages.max()))
    with Source(run.path) as source:
        for block in source.blocks():
            _, steps = cut(block)
            rows, of = _find(block["conn_id"].astype(np.uint64), ids)
            moved = _moved(steps, rows, sends[of])
            srtt = np.where(sends[of], block["srtt_us"][rows], 0).astype(np.float64)
            ends = steps.end_ns[rows]
            by_time.add(ends - begin, moved, srtt)
            by_age.add(ends - starts[of], moved, srtt)
    return by_time.course(np.ones(by_time.count)), by_age.course(_as_old(table, by_age))


def _find(mine: NDArray[np.uint64], ids: NDArray[np.uint64]) -> tuple[Array, Array]:
    """The rows of connections that count, and the place of each one's in ids."""
    places = np.minimum(np.searchsorted(ids, mine), len(ids) - 1)
    rows = np.flatnonzero(ids[places] == mine)
    return rows, places[rows]


def _moved(steps: Steps, rows: Array, sends: NDArray[np.bool_]) -> Array:
    return np.where(sends, steps.acked[rows], steps.received[rows])


def _as_old(table: Table, sums: _Sums) -> Floats:
    """(m,) how many connections reached each bin of age, as far as half of them outlast it."""
    places = (table["end_ns"] - table["start_ns"]) // sums.bin_ns
    ended = np.bincount(places.astype(np.int64), minlength=sums.count)
    left = np.cumsum(ended[::-1])[::-1]
    outlast = max(1, int((left[1:] >= left[0] / 2).sum()))
    return np.asarray(left[:outlast], np.float64)


_PANELS = ("goodput_mean", "srtt_p50_us", "queue_p95_us", "retrans_ratio", "latency_whole_us",
           "duration_us", "goodput_p50")  # fmt: skip
_MOST_PANELS = 6
_COLUMNS = 3
_LINES: tuple[Any, ...] = ("-", (0, (4, 1.4)))
_MOST_COURSES = 12
_NUMBERS = 4
"""Steps at most on a panel's axis: longer numbers fit beside each other."""
_WIDTH, _PANEL_HEIGHT, _COURSE_HEIGHT = 8.6, 2.1, 2.0
_UNITS = {
    RATE: ((1e9 / 8, "Gbit/s"), (1e6 / 8, "Mbit/s"), (1e3 / 8, "kbit/s"), (1 / 8, "bit/s")),
    TIME: ((1e6, "s"), (1e3, "ms"), (1.0, "us")),
}


def draw_diff(report: Report, path: Path, force: bool = False) -> None:
    """Write the picture. UsageError for an unknown kind of file, FileError without matplotlib."""
    check_output(path)
    chosen = _choose(report)
    courses = [
        [found for run in side.runs[:_MOST_COURSES] if (found := courses_of(run)) is not None]
        for side in (report.a, report.b)
    ]
    has_courses = any(courses)
    rows = -(-len(chosen) // _COLUMNS)
    with styled():
        figure = new_figure()
        figure.set_size_inches(_WIDTH, max(1, rows) * _PANEL_HEIGHT
                               + (2 * _COURSE_HEIGHT if has_courses else 0) + 0.4)  # fmt: skip
        heights = [*[_PANEL_HEIGHT] * rows, *[_COURSE_HEIGHT] * (2 if has_courses else 0)]
        grid = figure.add_gridspec(
            max(1, len(heights)), 2 * _COLUMNS, height_ratios=heights or None
        )
        for at, one in enumerate(chosen):
            left = 2 * (at % _COLUMNS)
            axes = figure.add_subplot(grid[at // _COLUMNS, left : left + 2])
            _draw_distribution(axes, one, report, first=at % _COLUMNS == 0)
        if has_courses:
            _draw_courses(figure, grid, rows, courses)
        if not chosen and not has_courses:
            figure.text(0.5, 0.5, "no data", ha="center")
        _name_sides(figure, report)
        save_figure(figure, path, force)


def _choose(report: Report) -> list[Compared]:
    """What differs first, then the usual ones; no metric that is the same in all units."""
    usable = {name: one for name, one in report.compared.items() if one.a and one.b}
    rank = {name: place for place, name in enumerate(_PANELS)}
    order = sorted(usable, key=lambda name: (
        usable[name].p is None, rank.get(name, len(rank)), usable[name].result != DIFFERS,
    ))  # fmt: skip
    wanted = [name for name in order if name in rank or usable[name].result == DIFFERS]
    varied = [name for name in wanted if usable[name].p is not None]
    return [usable[name] for name in (varied or wanted)[:_MOST_PANELS]]


def _draw_distribution(axes: Axes, one: Compared, report: Report, first: bool) -> None:
    """For each value, the share of the units that have at most it."""
    metric = one.metric
    both = [side[metric.name] for side in report.values]
    scale, unit = _unit(metric, float(np.max(np.concatenate(both))))
    for values, colour, style in zip(both, PALETTE, _LINES, strict=False):
        ordered = np.sort(values) / scale
        shares = np.arange(1, len(ordered) + 1) / len(ordered)
        axes.step(np.append(ordered[:1], ordered), np.append(0, shares), where="post",
                  color=colour, linestyle=style)  # fmt: skip
        axes.plot(np.median(ordered), 0.5, marker="o", markersize=4, color=colour)
    low, high = (f(np.concatenate(both)) / scale for f in (np.min, np.max))
    if low > 0 and high / low > 30:
        scale_log(axes.xaxis)
    else:
        axes.locator_params(axis="x", nbins=_NUMBERS)
    axes.set_ylim(0, 1.02)
    axes.set_yticks((0, 0.5, 1), ("0", "50 %", "100 %") if first else ("", "", ""))
    axes.set_xlabel(unit)
    weight = "bold" if one.result == DIFFERS else "normal"
    axes.set_title(f"{metric.name}  {_told(one)}", loc="left", fontweight=weight)
    if first:
        axes.set_ylabel(f"of the {report.unit}s")


def _told(one: Compared) -> str:
    if one.result == SAME:
        return "~"
    if one.result != DIFFERS:
        return f"({one.result})"
    return change_text(one.metric, one.change)


def _unit(metric: Metric, value: float) -> tuple[float, str]:
    units = _UNITS.get(metric.kind)
    if units is None:
        return 0.01, "%"
    return next((one for one in units if value >= one[0]), units[-1])


def _draw_courses(
    figure: Any, grid: Any, row: int, courses: list[list[tuple[Course, Course]]]
) -> None:
    """Goodput and round-trip time, both sides in one scale: a line a capture."""
    for column, (of_whom, since) in enumerate((
        ("of all connections", "the first connection began"),
        ("of a connection (mean)", "the connection began"),
    )):  # fmt: skip
        sides = [[found[column] for found in side] for side in courses]
        span = slice(column * _COLUMNS, (column + 1) * _COLUMNS)
        above = figure.add_subplot(grid[row, span])
        below = figure.add_subplot(grid[row + 1, span], sharex=above)
        _draw_course(above, sides, "goodput", RATE)
        _draw_course(below, sides, "srtt_us", TIME)
        above.set_title(f"Goodput {of_whom}", loc="left")
        below.set_title("Smoothed round-trip time, mean of its records", loc="left")
        above.tick_params(labelbottom=False)
        below.set_xlabel(f"time since {since} (s)")
        below.set_xlim(0, max(one.times_s[-1] for side in sides for one in side))


def _draw_course(axes: Axes, sides: list[list[Course]], name: str, kind: str) -> None:
    every = np.concatenate([getattr(one, name) for side in sides for one in side])
    most = float(np.max(every, initial=0.0, where=np.isfinite(every)))
    scale, unit = next((one for one in _UNITS[kind] if most >= one[0]), _UNITS[kind][-1])
    for side, colour, style in zip(sides, PALETTE, _LINES, strict=False):
        several = len(side) > 1
        for one in side:
            axes.plot(one.times_s, getattr(one, name) / scale, color=colour, linestyle=style,
                      alpha=0.5 if several else 1.0, linewidth=0.8 if several else 1.1,
                      marker="." if len(one.times_s) == 1 else None)  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_ylabel(unit)


def _name_sides(figure: Any, report: Report) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colour, linestyle=style) for colour, style in
             zip(PALETTE, _LINES, strict=False)]  # fmt: skip
    names = [for_terminal(side.name) for side in (report.a, report.b)]
    figure.legend(lines, names, loc="outside upper left", ncols=2)
