# SPDX-License-Identifier: Apache-2.0
"""The shapes, signs and colours of events and curves; they differ without colour vision too."""

from __future__ import annotations

from dataclasses import dataclass

ANSI = (4, 1, 2, 5, 3, 6, 7)
"""The terminal's colours in the palette's order."""

CURVES = (
    ("braille", "\u2824"), ("hd", "\u259e"), ("\u2022", "\u2022"), ("\u00d7", "\u00d7"),
    ("+", "+"), ("=", "="), ("~", "~"), ("%", "%"),
)  # fmt: skip
"""plotext's markers for curves without a colour of their own, the finest first; a sample each."""

ASCII_CURVES = tuple((sign, sign) for sign in "*+=.#~%@")
"""The same for terminals that show only ASCII."""


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
    """distance from the curve, so that events of the same moment do not overlap"""
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
"""The locations that graphs mark as events."""
