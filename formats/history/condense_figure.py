# SPDX-License-Identifier: Apache-2.0
"""Draws a condensed session: CPU, disk, page faults and response times over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tcpkmon.formats.drawing import PALETTE, check_output, new_figure, save_figure, styled
from tcpkmon.formats.history.condensed import Condensed

_INCHES = (7.2, 5.2)


def draw_condensed(report: Condensed, path: Path, force: bool = False) -> None:
    """Writes the picture; a panel without data says that nothing was recorded.

    UsageError for an unknown kind of file, FileError without matplotlib.
    """
    check_output(path)
    with styled():
        figure = new_figure()
        figure.set_size_inches(*_INCHES)
        rows = figure.subplots(4, 1, sharex=True)
        edges = [one.start_s for one in report.slices] + [report.slices[-1].stop_s]
        shares = [
            [None if value is None else 100 * value for value in values]
            for values in ([s.cpu for s in report.slices], [s.disk for s in report.slices])
        ]
        faults = [one.faults for one in report.slices]
        means = [one.response.mean if one.response else None for one in report.slices]
        highest = [one.response.p95 if one.response else None for one in report.slices]
        panels: list[tuple[str, list[Any]]] = [
            ("CPU (%)", shares[0]), ("disk (%)", shares[1]), ("page faults", faults),
            ("response (s)", means),
        ]  # fmt: skip
        for axes, (label, values), colour in zip(rows, panels, PALETTE, strict=False):
            known = [0 if value is None else value for value in values]
            axes.stairs(known, edges, fill=True, color=colour, alpha=0.75)
            axes.set_ylabel(label)
            axes.set_ylim(0, 1.08 * max(known) or 1)
            if all(value is None for value in values):
                axes.set_yticks([])
                axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center")
        tops = [0 if value is None else value for value in highest]
        if any(tops):
            rows[3].stairs(tops, edges, color=PALETTE[6], linewidth=0.8, label="95 %")
            rows[3].set_ylim(0, 1.08 * max(tops))
            rows[3].legend(loc="upper right")
        rows[-1].set_xlabel("time since the capture began (s)")
        rows[0].set_title(f"{report.head['events']} events, {report.head['lost']} lost", loc="left")
        save_figure(figure, path, force)
