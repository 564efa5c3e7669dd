# SPDX-License-Identifier: Apache-2.0
"""How events and curves look: shapes, signs and colours that differ also without colour vision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from formats.pmgraph.pages import Line, Page, Panel

Array = npt.NDArray[Any]

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours: told apart with every common form of colour blindness, and in print."""

DASHES = ("-", "--", ":", "-.")
"""Line styles; the next one is taken when the colours start again."""

ANSI = (4, 1, 2, 5, 3, 6, 7)
"""The terminal's colours in the palette's order."""

CURVES = (
    ("braille", "\u2824"), ("hd", "\u259e"), ("\u2022", "\u2022"), ("\u00d7", "\u00d7"),
    ("+", "+"), ("=", "="), ("~", "~"), ("%", "%"),
)  # fmt: skip
"""plotext's markers of curves that no colour tells apart, the finest first; a sample of each."""

ASCII_CURVES = tuple((sign, sign) for sign in "*+=.#~%@")
"""The same, for terminals that show nothing else."""


@dataclass(frozen=True)
class Symbol:
    """One kind of event: legend text, matplotlib's marker and size, terminal sign and letter."""

    text: str
    marker: str
    size: float
    filled: bool
    sign: str
    letter: str
    above_points: float = 0.0
    """how far above the curve it stands, so that events of the same moment stay apart"""
    at_bottom: bool = False


SYMBOLS = {
    "RETRANSMIT": Symbol("retransmit", "v", 4.0, True, "\u25bc", "r", 5.5),
    "RTO": Symbol("RTO", "X", 6.5, True, "\u2716", "X", 11.5),
    "LOSS_PROBE": Symbol("loss probe", "D", 4.0, False, "\u25c6", "p", -6.0),
    "ZERO_WINDOW_PROBE": Symbol("zero-window probe", "s", 4.0, False, "\u25a0", "z", -6.0),
    "REO_TIMEOUT": Symbol("reordering timeout", "h", 4.5, False, "\u2b22", "o", -12.0),
    "CWND_UNDO": Symbol("cwnd undo", "^", 4.5, False, "\u25b3", "u", -6.0),
    "CONG_STATE": Symbol("congestion state", "o", 4.0, False, "\u25cb", "c"),
    "STATE_CHANGE": Symbol("state change", "|", 8.0, True, "\u254f", "|", at_bottom=True),
    "RESET_SENT": Symbol("reset sent", "P", 6.0, True, "\u271a", "S"),
    "RESET_RECEIVED": Symbol("reset received", "P", 6.0, False, "\u2719", "R"),
}  # fmt: skip


def event_panel(page: Page) -> int | None:
    """Index of the panel on which events are marked: the first one with curves."""
    curves = (any(line.steps for line in panel.lines) for panel in page.panels)
    return next((index for index, has_curve in enumerate(curves) if has_curve), None)


def anchor_line(panel: Panel, connection: int) -> Line | None:
    """The line on which a connection's events are marked: its first one with any points."""
    lines = (line for line in panel.lines if line.connection == connection and len(line.times))
    return next(lines, None)


def heights_on(line: Line, times: Array) -> Array:
    """Values of a step line at the given times (before its start: its first value)."""
    places = np.searchsorted(line.times, times, side="right") - 1
    return line.values[np.maximum(places, 0)]


def crowded_kinds(page: Page, most: int) -> list[str]:
    """The locations that have more than `most` events on the page, so that they hide the curves."""
    counts: dict[str, int] = {}
    for _, name, times in page.events:
        counts[name] = counts.get(name, 0) + len(times)
    return [name for name, count in counts.items() if count > most]
