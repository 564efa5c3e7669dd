# SPDX-License-Identifier: Apache-2.0
"""Draws pages as text, for a terminal without a display: braille curves with axes and a legend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from formats.pmgraph.canvas import Canvas, paint
from formats.pmgraph.pages import Line, Page, Panel
from formats.pmgraph.symbols import (
    ANSI,
    SYMBOLS,
    anchor_line,
    crowded_kinds,
    event_panel,
    heights_on,
)

Array = npt.NDArray[Any]

BINS = 400
"""Pixel columns for which curves are thinned: more dots than a wide terminal has."""

_FIRST_HEIGHT = 16
_HEIGHT = 9
_MARGIN = 9
_TICKS_ACROSS = 5
_MOST_NAMED = 8
_MOST_SIGNS = 24


def draw_text(
    pages: Sequence[Page], width: int, coloured: bool = False, ascii_only: bool = False
) -> Iterator[str]:
    """Yield the lines of all pages, at most `width` characters wide (without colour codes)."""
    width = max(width, 40)
    for number, page in enumerate(pages):
        if number:
            yield ""
        title = page.title + (f" ({page.subtitle})" if page.subtitle else "")
        yield _fit(title, width, ascii_only)
        for place, panel in enumerate(page.panels):
            height = _FIRST_HEIGHT if place == 0 else _HEIGHT
            yield from _draw_panel(page, panel, width, height, place, coloured, ascii_only)
        yield from _events(page, width, ascii_only)


def _draw_panel(
    page: Page,
    panel: Panel,
    width: int,
    height: int,
    place: int,
    coloured: bool,
    ascii_only: bool,
) -> Iterator[str]:
    canvas = Canvas(width - _MARGIN - 1, height, ascii_only)
    begin, end = page.limits
    low, high = _range_of(panel)
    across = _Scale(begin, end, canvas.dots_across)
    up = _Scale(low, high, canvas.dots_up)
    for index, line in enumerate(panel.lines):
        _draw_line(canvas, line, across, up, ANSI[index % len(ANSI)])
    if place == event_panel(page):
        _put_events(canvas, page, panel, across, up, ascii_only)
    for gap in zip(page.spans.begin, page.spans.end, strict=True):
        dots = across.dots(np.array(gap))
        canvas.shade(int(dots[0]), int(dots[1]), ":" if ascii_only else "\u2591")
    yield from _names(panel, width, coloured, ascii_only)
    bar, corner, flat = ("|", "+", "-") if ascii_only else ("\u2502", "\u2514", "\u2500")
    ticks = _value_ticks(panel, up, canvas, height)
    for row, text in enumerate(canvas.lines(coloured)):
        yield f"{ticks.get(row, ''):>{_MARGIN - 1}.{_MARGIN - 1}} {bar}{text}".rstrip()
    if place == len(page.panels) - 1:
        yield " " * _MARGIN + corner + flat * (width - _MARGIN - 1)
        yield _time_ticks(begin, end, width)
        yield f"{'time since the first record (s)':>{width}}"


def _names(panel: Panel, width: int, coloured: bool, ascii_only: bool) -> Iterator[str]:
    """The panel's label and the names of its lines in their colours."""
    label = _fit(panel.label, width, ascii_only)
    parts = [(len(label), label)]
    for index, line in enumerate(panel.lines):
        name = _fit(f"\u2500\u2500 {line.label}", width - 2, ascii_only)
        parts.append((len(name), paint(name, ANSI[index % len(ANSI)], coloured)))
    return _flow(parts, width)


def _flow(parts: Sequence[tuple[int, str]], width: int) -> Iterator[str]:
    """Put parts (their width and text) beside each other into lines of at most `width`."""
    line, used = "", 0
    for length, text in parts:
        if used and used + 2 + length > width:
            yield line
            line, used = "", 0
        line += "  " + text if used else text
        used += length + 2
    yield line


class _Scale:
    """Maps values low..high to the dots 0..dots - 1."""

    def __init__(self, low: float, high: float, dots: int) -> None:
        self.low, self.high = low, high
        self._per_unit = (dots - 1) / (high - low) if high > low else 0.0

    def dots(self, values: Array) -> Array:
        return np.rint((values - self.low) * self._per_unit).astype(np.int64)


def _range_of(panel: Panel) -> tuple[float, float]:
    values = [line.values for line in panel.lines if len(line.values)]
    if not values:
        return 0.0, 1.0
    high = max(float(one.max()) for one in values)
    low = min(float(one.min()) for one in values)
    if panel.from_zero and not panel.members:
        low = min(low, 0.0)
    return (low, high) if high > low else (low, low + 1.0)


def _draw_line(canvas: Canvas, line: Line, across: _Scale, up: _Scale, colour: int) -> None:
    if not len(line.times):
        return
    columns, heights = across.dots(line.times), up.dots(line.values)
    if line.steps:
        canvas.draw_steps(columns, heights, colour)
    else:
        canvas.set_dots(columns, heights, colour)


def _put_events(
    canvas: Canvas, page: Page, panel: Panel, across: _Scale, up: _Scale, ascii_only: bool
) -> None:
    crowded = crowded_kinds(page, _MOST_SIGNS)
    for connection, name, times in page.events:
        symbol = SYMBOLS[name]
        line = anchor_line(panel, connection)
        heights = np.zeros(len(times), np.int64)
        if name in crowded:  # these stand at the top, so that the curve can be seen
            heights += canvas.dots_up - 1 - crowded.index(name) * canvas.dots_up // canvas.height
        elif line is not None and not symbol.at_bottom:
            heights = up.dots(heights_on(line, times))
        for column, height in zip(across.dots(times).tolist(), heights.tolist(), strict=True):
            canvas.put_sign(column, height, symbol.letter if ascii_only else symbol.sign)


def _value_ticks(panel: Panel, up: _Scale, canvas: Canvas, height: int) -> dict[int, str]:
    """Texts beside the axis, by row."""
    used = {float(value) for line in panel.lines for value in line.values}
    named = [(code, name) for code, name in panel.members if float(code) in used]
    if named and len(named) <= _MOST_NAMED:
        rows = up.dots(np.array([code for code, _ in named], np.float64))
        per_row = canvas.dots_up // height
        from_top = (height - 1 - rows // per_row).tolist()
        return dict(zip(from_top, (name for _, name in named), strict=True))
    middle = (height - 1) // 2
    share = 1 - middle / (height - 1)
    between = up.low + (up.high - up.low) * share
    return {0: _number(up.high), middle: _number(between), height - 1: _number(up.low)}


def _time_ticks(begin: float, end: float, width: int) -> str:
    cells = width - _MARGIN - 1
    text = [" "] * width
    for place in range(_TICKS_ACROSS):
        share = place / (_TICKS_ACROSS - 1)
        label = _number(begin + (end - begin) * share)
        middle = _MARGIN + 1 + round(share * (cells - 1))
        start = min(max(middle - len(label) // 2, 0), width - len(label))
        text[start : start + len(label)] = label
    return "".join(text).rstrip()


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e6 else f"{value:.3g}"


def _events(page: Page, width: int, ascii_only: bool) -> Iterator[str]:
    """What the signs of events and the shading mean."""
    symbols = [SYMBOLS[name] for name in dict.fromkeys(name for _, name, _ in page.events)]
    parts = [f"{one.letter if ascii_only else one.sign} {one.text}" for one in symbols]
    if len(page.spans.begin):
        parts.append(f"{':' if ascii_only else chr(0x2591)} {page.spans.missing} records lost")
    return _flow([(len(part), part) for part in parts], width)


def _fit(text: str, width: int, ascii_only: bool) -> str:
    if ascii_only:
        text = (
            text.replace("\u2192", "->")
            .replace("\u2500", "*")
            .replace("\u00d7", "x")
            .replace("\u00b5", "u")
        )
        text = text.encode("ascii", "replace").decode("ascii")
    return text if len(text) <= width else text[: width - 3] + "..."
