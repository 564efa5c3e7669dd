# SPDX-License-Identifier: Apache-2.0
"""Draws exchanges: percentiles of their parts, and the parts over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.exchanges.columns import PARTS
from tcpkmon.formats.analysis.exchanges.story import NAMES
from tcpkmon.formats.analysis.why import Table
from tcpkmon.formats.drawing import PALETTE, Axes, new_figure, save_figure, scale_log, styled

_INCHES = (7.2, 5.6)
_COLOURS = dict(zip(("think", "request", "response", "read", "network", "wait"), PALETTE,
                    strict=False))  # fmt: skip
_STEPS = 120
_LEAST_MS = 1e-3


def draw_requests(table: Table, path: Path, force: bool = False) -> None:
    """Write the picture, a column for each side. UsageError, FileError."""
    sides = [side for side in ("client", "server") if (table["side"] == side).any()] or ["client"]
    with styled():
        figure = new_figure()
        figure.set_size_inches(*_INCHES)
        axes = figure.subplots(2, len(sides), squeeze=False)
        origin = int(table["start_ns"].min()) if len(table["start_ns"]) else 0
        for column, side in enumerate(sides):
            at = np.flatnonzero(table["side"] == side)
            _draw_percentiles(axes[0][column], table, at, side)
            _draw_over_time(axes[1][column], table, at, side, origin)
        save_figure(figure, path, force)


def _draw_percentiles(axes: Axes, table: Table, at: NDArray[Any], side: str) -> None:
    """The share of the exchanges in which a part took at most so long."""
    for name in PARTS:
        values = table[f"{name}_ns"][at].astype(np.float64) / 1e6
        values = np.sort(values[~np.isnan(values)])
        if name in NAMES[side] and len(values):
            # A thousand points are enough for a line.
            some = np.unique(np.linspace(0, len(values) - 1, 1000).astype(np.int64))
            axes.plot(np.maximum(values[some], _LEAST_MS), 100 * (some + 1) / len(values),
                      color=_COLOURS[name], label=NAMES[side][name])  # fmt: skip
    axes.set_title(f"{len(at)} exchanges, {side}", loc="left")
    if len(at):
        scale_log(axes.xaxis)
        axes.legend(loc="lower right")
    axes.set_xlabel("at most so long (ms)")
    axes.set_ylabel("% of the exchanges")


def _draw_over_time(
    axes: Axes, table: Table, at: NDArray[Any], side: str, origin_ns: int
) -> None:
    """The mean time of each part, by when the request began."""
    axes.set_xlabel("time since the first request (s)")
    axes.set_ylabel("mean time of an exchange (ms)")
    if not len(at):
        return
    seconds = (table["start_ns"][at] - origin_ns) / 1e9
    edges = np.linspace(0, max(float(seconds.max()), 1e-9) * (1 + 1e-9), _STEPS + 1)
    of = np.clip(np.searchsorted(edges, seconds, "right") - 1, 0, _STEPS - 1)
    counts = np.bincount(of, minlength=_STEPS)
    base = np.zeros(_STEPS)
    for name in PARTS[1:]:
        if name not in NAMES[side]:
            continue
        values = np.nan_to_num(table[f"{name}_ns"][at].astype(np.float64)) / 1e6
        sums = np.bincount(of, values, _STEPS)
        means = np.divide(sums, counts, out=np.zeros(_STEPS), where=counts > 0)
        axes.fill_between(edges, *(np.append(one, one[-1:]) for one in (base, base + means)),
                          step="post", color=_COLOURS[name], linewidth=0)  # fmt: skip
        base = base + means
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, edges[-1])
