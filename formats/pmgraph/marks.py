# SPDX-License-Identifier: Apache-2.0
"""Marks events and losses on the matplotlib axes of figure."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tcpkmon.formats.drawing import PALETTE
from tcpkmon.formats.pmgraph.pages import Page, Panel
from tcpkmon.formats.pmgraph.symbols import SYMBOLS, Symbol

Axes = Any

_MOST_MARKS = 150
_ROW_SHARE = 0.045


def shade_losses(axes: Axes, page: Page, labelled: bool) -> None:
    """Hatch the times in which records are missing."""
    for index, (begin, end) in enumerate(zip(page.spans.begin, page.spans.end, strict=True)):
        label = page.spans.text if labelled and not index else None
        axes.axvspan(begin, end, facecolor="0.9", edgecolor="0.55", hatch="////", linewidth=0.5,
                     zorder=0.5, label=label, gid="loss")  # fmt: skip


def shade_off(axes: Axes, page: Page, labelled: bool) -> None:
    """Dot the times in which locations were switched off: nothing of them is recorded there."""
    for name, spans in itertools.groupby(
        sorted(page.off, key=lambda one: (one.name, one.begin)), lambda one: one.name
    ):
        for index, one in enumerate(spans):
            label = f"{name} off: not recorded" if labelled and not index else None
            axes.axvspan(one.begin, one.end, facecolor="0.95", edgecolor="0.6", hatch="....",
                         linewidth=0.5, zorder=0.4, label=label, gid="off")  # fmt: skip


def mark_events(axes: Axes, page: Page, panel: Panel) -> None:
    """Mark events on the curves of a panel; frequent kinds as a row of ticks above them."""
    from matplotlib.transforms import offset_copy

    crowded = page.crowded_kinds(_MOST_MARKS)
    if crowded:  # room for the rows
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + (high - low) * _ROW_SHARE * (len(crowded) + 0.5))
    for connection, name, times in page.events:
        symbol = SYMBOLS[name]
        line = panel.anchor_line(connection)
        colour = _colour_of(panel, connection)
        look = _look(symbol, colour)
        if name in crowded:
            height = 1 - _ROW_SHARE * (crowded.index(name) + 0.7)
            look |= {"marker": "|", "markersize": 5.0, "markeredgecolor": colour}
        else:
            height = 0.03
        if name in crowded or symbol.at_bottom or line is None:
            look["transform"] = axes.get_xaxis_transform()
            heights = np.full(len(times), height)
        else:
            look["transform"] = offset_copy(
                axes.transData, axes.figure, 0, symbol.above_points, "points"
            )
            heights = line.heights_at(times)
        axes.plot(times, heights, gid=f"event {name}", **look)
    for name in dict.fromkeys(name for _, name, _ in page.events):
        look = _look(SYMBOLS[name], "black")
        text = SYMBOLS[name].text
        if name in crowded:
            look |= {"marker": "|", "markersize": 5.0}
            text += f" (row {crowded.index(name) + 1})" if len(crowded) > 1 else " (top)"
        axes.plot([], [], label=text, **look)


def _look(symbol: Symbol, colour: str) -> dict[str, Any]:
    return {
        "linestyle": "none",
        "marker": symbol.marker,
        "markersize": symbol.size,
        "markerfacecolor": colour if symbol.filled else "white",
        "markeredgecolor": "black",
        "markeredgewidth": 0.7,
        "zorder": 3,
    }


def _colour_of(panel: Panel, connection: int) -> str:
    """Black; if the panel shows several connections, the colour of this one's curve."""
    connections = [line.connection for line in panel.lines]
    if len(set(connections)) < 2:
        return "black"
    return PALETTE[connections.index(connection) % len(PALETTE)]
