# SPDX-License-Identifier: Apache-2.0
"""Draws a report: the slowest ranges as a waterfall, and the parts of all bytes over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tcpkmon.formats.analysis.latency.report import Flow, Report, Slow
from tcpkmon.formats.analysis.latency.stages import CHAINS, PARTS, ROUND_TRIP, Chain
from tcpkmon.formats.drawing import PALETTE, Axes, check_output, new_figure, save_figure, styled

_COLOURS = dict(zip(
    ("buffer", "recovery", "qdisc", "hole", "reader", "network"), PALETTE[:6], strict=True
)) | {"stack": "#444444", "return": "#aaaaaa"}  # fmt: skip
_MOST_BARS = 12
_MOST_STEPS = 150
_INCHES = (7.2, 5.6)
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def draw_latency(report: Report, path: Path, force: bool = False) -> None:
    """Write the picture. UsageError for an unknown kind of file, FileError without matplotlib."""
    check_output(path)
    with styled():
        figure = new_figure()
        figure.set_size_inches(*_INCHES)
        above, below = figure.subplots(2, 1, gridspec_kw={"height_ratios": (1.25, 1)})
        _draw_slowest(above, report)
        _draw_over_time(below, report)
        handles, labels = below.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        save_figure(figure, path, force)


def _draw_slowest(axes: Axes, report: Report) -> None:
    """Bars from the beginning of each range's way, in the colours of its parts."""
    found = [(slow, flow) for flow in report.flows for slow in flow.slowest]
    found.sort(key=lambda one: -one[0].whole_ns)
    found = found[:_MOST_BARS]
    unit, name = _unit(max((slow.whole_ns for slow, _ in found), default=0))
    several = len(report.flows) > 1
    for row, (slow, flow) in enumerate(found):
        left = 0.0
        for part, ns in _spans(slow, flow):
            colour = _COLOURS[part]
            axes.barh(row, ns / unit, left=left, height=0.72, color=colour, linewidth=0)
            left += ns / unit
    axes.set_yticks(
        range(len(found)), [_label(slow, flow, several) for slow, flow in found], fontsize=7
    )
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"time since the bytes were written ({name})")
    axes.set_title("The slowest ranges", loc="left")
    if not found:
        axes.text(0.5, 0.5, "nothing was measured", transform=axes.transAxes, ha="center")


def _label(slow: Slow, flow: Flow, several: bool) -> str:
    at = min(slow.times_ns.values()) / 1e9
    again = f", sent {slow.sent_again + 1} x" if slow.sent_again else ""
    of = f"{flow.name}, " if several else ""
    return f"{of}{slow.size:,} B at {at:.4f} s{again}"


def _spans(slow: Slow, flow: Flow) -> list[tuple[str, int]]:
    """The parts of a range one after the other, in the order of its way."""
    chain = Chain.SENT_AGAIN if slow.sent_again and flow.side == Chain.SENDER else flow.side
    spans: list[tuple[str, int]] = []
    before: int | None = None
    for step in CHAINS[chain]:
        time = slow.times_ns.get(step.time)
        if time is None:
            continue
        if before is not None:
            spent = time - before
            if step.part == ROUND_TRIP:
                spans += [("network", spent // 2), ("return", spent - spent // 2)]
            else:
                spans.append((step.part, spent))
        before = time
    return spans


def _draw_over_time(axes: Axes, report: Report) -> None:
    """The mean time of a byte in each part, by when it reached the end of its way."""
    bins, weights = report.bins, report.bin_bytes
    group = max(1, -(-len(bins) // _MOST_STEPS))
    edges = np.arange(0, len(bins) + group, group)
    sums = np.add.reduceat(bins, edges[:-1], axis=0) if len(bins) else bins
    total = np.add.reduceat(weights, edges[:-1]) if len(bins) else weights
    means = np.divide(sums, total[:, None], out=np.zeros_like(sums), where=total[:, None] > 0)
    unit, name = _unit(float(means.sum(1).max(initial=0)))
    times = edges * report.bin_ns / 1e9
    base = np.zeros(len(means))
    for part in ("stack", "buffer", "recovery", "qdisc", "network", "return", "hole", "reader"):
        column = means[:, PARTS.index(part)] / unit
        if column.any():
            axes.fill_between(
                times, *(np.append(one, one[-1:]) for one in (base, base + column)),
                step="post", color=_COLOURS[part], label=part, linewidth=0,
            )  # fmt: skip
        base = base + column
    axes.set_xlabel("time since the capture began (s)")
    axes.set_ylabel(f"mean time of a byte ({name})")
    axes.set_title("Where the time of the bytes went", loc="left")
    axes.set_ylim(bottom=0)
    if len(times) > 1:
        axes.set_xlim(0, times[-1])


def _unit(most_ns: float) -> tuple[float, str]:
    return next((one for one in _UNITS if most_ns >= one[0]), _UNITS[-1])
