# SPDX-License-Identifier: Apache-2.0
"""Draws bands, which differ in colour and hatching, and bars of segments, with matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpkmon.formats.drawing import PALETTE, Axes
from tcpkmon.formats.pmgraph.pages import Line, Panel

_LOOKS = {
    "app": (5, ""), "cwnd": (0, ""), "rwnd": (4, ""), "recovery": (1, ""), "rto_wait": (6, ""),
    "pacing": (2, ""), "tsq": (2, "xxx"), "sndbuf": (3, ""), "opening": (0, "///"),
    "closing": (6, "///"), "Disorder": (4, "///"), "CWR": (2, "..."), "Recovery": (1, ""),
    "Loss": (6, ""),
}  # fmt: skip
"""Numbers of PALETTE, and hatching."""
_MOST_ARROWS = 300
"""Segments that have arrows at their ends: those of more would be one blot."""


def draw_bands(axes: Axes, panel: Panel) -> None:
    """A strip of what held when."""
    for band in panel.bands:
        spans = list(zip(band.begin, band.end - band.begin, strict=True))
        place, hatch = _LOOKS.get(band.name, (-1, ""))
        colour = PALETTE[place] if place >= 0 else "0.8"
        axes.broken_barh(spans, (0, 1), facecolor=colour, edgecolor="white" if hatch else "none",
                         linewidth=0, hatch=hatch, label=band.name.replace("_", " "),
                         gid=f"band {band.name}")  # fmt: skip
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.set_ylabel(panel.label.replace(" ", "\n"), rotation=0, ha="right", va="center")


def draw_bars(axes: Axes, line: Line, look: dict[str, Any]) -> None:
    """A bar for each segment, from its first byte to its last; those sent again have marks."""
    look = look | {"gid": "segments"}
    again = line.label == "sent again"
    colour = PALETTE[1] if again else "0.35"
    few = len(line.times) <= _MOST_ARROWS
    axes.vlines(line.times, line.values, line.upper, linewidth=1.6 if again else 1.0,
                color=colour, zorder=2.8 if again else 2.4, gid="segments",
                label=None if again else look["label"])  # fmt: skip
    ends: dict[str, Any] = {"linestyle": "none", "color": colour, "markeredgewidth": 0,
                            "gid": "segments"}  # fmt: skip
    if few:  # arrows at both ends, as tcptrace has them
        for heights, marker in ((line.values, 7), (line.upper, 6)):
            axes.plot(line.times, heights, marker=marker, markersize=2.5, zorder=2.4, **ends)
    if again:
        axes.plot(line.times, line.upper, marker=_letter() if few else "v", zorder=2.9,
                  markersize=14 if few else 3.5, label=look["label"], **ends)  # fmt: skip


def _letter() -> Any:
    """An R above its place."""
    from matplotlib.textpath import TextPath

    return TextPath((-0.3, 0.2), "R", size=1)


def fit_sequence(axes: Axes, panel: Panel) -> None:
    """Leave room for what is sent, acknowledged or in the congestion window; a window that is much
    larger lies above the picture, and the legend says so."""
    far = [line for line in panel.lines if line.label.endswith("window's edge")]
    near = [line for line in panel.lines if not line.label.startswith(("peer", "offered"))]
    parts = [part[np.isfinite(part)] for line in near
             for part in (line.values, line.upper) if part is not None]  # fmt: skip
    parts = [part for part in parts if len(part)]
    if not parts:
        return
    low, high = (float(get([get(part) for part in parts])) for get in (np.min, np.max))
    room = (high - low) or 1.0
    axes.set_ylim(low - 0.04 * room, high + 0.08 * room)
    for artist in axes.get_lines():
        name = str(artist.get_label())
        for line in far:
            if line.label == name:
                artist.set_linestyle("--")
                if line not in near and np.nanmin(line.values) > high + 0.08 * room:
                    artist.set_label(f"{name} (above)")
