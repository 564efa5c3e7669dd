# SPDX-License-Identifier: Apache-2.0
"""Draws pages with plotext in a terminal: curves, axes and a legend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tcpkmon.formats.pmgraph.arrays import Array
from tcpkmon.formats.pmgraph.pages import Line, Page, Panel
from tcpkmon.formats.pmgraph.symbols import ANSI, ASCII_CURVES, CURVES, SYMBOLS

# plotext is imported late, and has no types.
Canvas = Any

WIDTH_MAX = 160
"""Longer lines are hard to follow."""

BINS = 2 * WIDTH_MAX
"""Pixel columns for which curves are thinned; a braille cell is two dots wide."""

_FIRST_HEIGHT = 16
_HEIGHT = 9
_TICK_WIDTH = 8
_TICKS = {_FIRST_HEIGHT: 4, _HEIGHT: 3}
_MOST_NAMED = 8
_MOST_SIGNS = 24
_GREATEST = 1e300  # the difference of two greater values may be infinite
_ASCII = str.maketrans(
    dict(zip("\u2502\u2500\u2514\u2524\u252c\u00d7\u00b5", "|-+++xu", strict=True))
    | {"\u2192": "->"}
)


@dataclass(frozen=True)
class _Look:
    """The abilities of the terminal."""

    width: int
    coloured: bool
    ascii_only: bool

    @property
    def loss(self) -> str:
        """The sign of a gap."""
        return ":" if self.ascii_only else "\u2591"

    @property
    def off(self) -> str:
        """The sign of a time in which a location was off."""
        return "." if self.ascii_only else "\u00b7"

    def curve(self, index: int) -> tuple[str, str, int | str]:
        """plotext's marker, a sample of it, and the colour of a panel's line.

        Lines differ in colour; without (further) colours they differ in the marker.
        """
        markers = ASCII_CURVES if self.ascii_only else CURVES
        colour = ANSI[index % len(ANSI)] if self.coloured else "default"
        marker, sample = markers[(index // len(ANSI) if self.coloured else index) % len(markers)]
        return marker, sample, colour

    def event(self, name: str) -> str:
        """The sign of a kind of event."""
        return SYMBOLS[name].letter if self.ascii_only else SYMBOLS[name].sign

    def fit(self, text: str, width: int) -> str:
        """`text` in characters that the terminal has, cut to `width`."""
        if self.ascii_only:
            text = text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
        return text if len(text) <= width else text[: width - 3] + "..."


def draw_text(
    pages: Sequence[Page], width: int, coloured: bool = False, ascii_only: bool = False
) -> Iterator[str]:
    """Yield the lines of all pages, at most `width` characters wide (without colour codes)."""
    look = _Look(max(width, 40), coloured, ascii_only)
    for number, page in enumerate(pages):
        if number:
            yield ""
        title = page.title + (f" ({page.subtitle})" if page.subtitle else "")
        yield look.fit(title, look.width)
        for place, panel in enumerate(page.panels):
            if panel.bands:
                yield from _strip(page, panel, look)
                continue
            yield from _names(panel, look)
            yield from _draw_panel(page, place, look)
        yield from _events(page, look)


def _draw_panel(page: Page, place: int, look: _Look) -> Iterator[str]:
    import plotext

    panel, names = page.panels[place].with_names(_MOST_NAMED)
    height = _FIRST_HEIGHT if place == 0 else _HEIGHT
    is_last = place == len(page.panels) - 1
    begin, end = page.limits
    end = end if end > begin else begin + 1.0
    low, high = (-0.5, len(names) - 0.5) if names else _range_of(panel)
    crowded = page.crowded_kinds(_MOST_SIGNS) if place == page.event_panel() else []
    above = min(len(crowded), height // 2)  # rows above the curves
    high = low + (high - low) * (height - 1) / (height - 1 - above)
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.limit_size(False, False)
    plotext.plot_size(look.width, height + (3 if is_last else 1))
    plotext.xaxes(True, False)
    plotext.yaxes(True, False)
    plotext.xlim(begin, end)
    plotext.ylim(low, high)
    ticks = range(len(names)) if names else np.linspace(low, high, _TICKS[height]).tolist()
    labels = names or [_number(value) for value in ticks]
    plotext.yticks(ticks, [f"{text:>{_TICK_WIDTH}.{_TICK_WIDTH}}" for text in labels])
    plotext.scatter([begin], [low], marker=" ")  # plotext draws no axes without data
    if is_last:
        plotext.xlabel(f"time since {page.since} (s)")
    else:
        plotext.xfrequency(0)
    cells = np.linspace(begin, end, look.width - _TICK_WIDTH - 1), np.linspace(low, high, height)
    _shade_losses(plotext, page, *cells, look)
    for index in reversed(range(len(panel.lines))):  # the first one is on top
        marker, _, colour = look.curve(index)
        _draw_line(plotext, panel.lines[index], marker, colour)
    if place == page.event_panel():
        _put_events(plotext, page, panel, cells[1], crowded, look)
    text = plotext.build() if look.coloured else plotext.uncolorize(plotext.build())
    for line in text.rstrip("\n").split("\n"):
        yield (line.translate(_ASCII) if look.ascii_only else line).rstrip()


def _strip(page: Page, panel: Panel, look: _Look) -> Iterator[str]:
    """A row with a letter for what held in each column, and their meaning."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    across = np.linspace(*page.limits, look.width - _TICK_WIDTH - 1)
    signs = np.full(len(across), " ")
    for letter, band in zip(letters, panel.bands, strict=False):
        at = np.searchsorted(band.begin, across, side="right") - 1
        signs[(at >= 0) & (across < band.end[np.maximum(at, 0)])] = letter
    yield " " * (_TICK_WIDTH + 1) + "".join(signs.tolist()).rstrip()
    names = [f"{letter} {band.name}" for letter, band in zip(letters, panel.bands, strict=False)]
    yield from _flow([(len(text), text) for text in (f"{panel.label}:", *names)], look.width)


def _range_of(panel: Panel) -> tuple[float, float]:
    values = [line.values[np.isfinite(line.values)] for line in panel.lines]
    values = [one for one in values if len(one)]
    if not values:
        return 0.0, 1.0
    high = min(max(float(one.max()) for one in values), _GREATEST)
    low = max(min(float(one.min()) for one in values), -_GREATEST)
    if panel.from_zero:
        low = min(low, 0.0)
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))


def _draw_line(canvas: Canvas, line: Line, marker: str, colour: int | str) -> None:
    if not len(line.times):
        return
    ends = np.flatnonzero(~np.isfinite(line.values))
    if len(ends):  # nothing joins what is before and after
        for begin, end in zip(np.r_[0, ends + 1], np.r_[ends, len(line.times)], strict=True):
            if begin == end:
                continue
            values = line.values[begin : end + 1].copy()
            if end < len(line.times):
                values[-1] = values[-2]
            part = replace(line, times=line.times[begin : end + 1], values=values)
            _draw_line(canvas, part, marker, colour)
        return
    times, values = line.times, np.clip(line.values, -_GREATEST, _GREATEST)
    draw = canvas.scatter
    if line.steps:  # each value holds until the next
        times, values = np.repeat(times, 2)[1:], np.repeat(values, 2)[:-1]
        draw = canvas.plot
    draw(times.tolist(), values.tolist(), marker=marker, color=colour)


def _shade_losses(canvas: Canvas, page: Page, across: Array, up: Array, look: _Look) -> None:
    """Fill the cells of times in which records are missing, or were not recorded."""
    begin = np.maximum(page.spans.begin, across[0])
    end = np.minimum(page.spans.end, across[-1])
    spans = [(*span, look.loss) for span in zip(begin, end, strict=True)]
    for first, last, sign in [*((one.begin, one.end, look.off) for one in page.off), *spans]:
        inside = (across > first) & (across < last)
        times = np.concatenate([[first], across[inside], [last]])
        columns, rows = np.repeat(times, len(up)), np.tile(up, len(times))
        canvas.scatter(columns.tolist(), rows.tolist(), marker=sign, color="default")


def _put_events(
    canvas: Canvas, page: Page, panel: Panel, up: Array, crowded: list[str], look: _Look
) -> None:
    for connection, name, times in reversed(page.events):  # the most important last, on top
        line = panel.anchor_line(connection)
        if name in crowded:  # a row each, above the curves
            heights = np.full(len(times), up[-1 - crowded.index(name) % len(up)])
        elif line is not None and not SYMBOLS[name].at_bottom:
            heights = np.clip(line.heights_at(times), up[0], up[-1])
        else:
            heights = np.full(len(times), up[0])
        canvas.scatter(times.tolist(), heights.tolist(), marker=look.event(name), color="default")


def _names(panel: Panel, look: _Look) -> Iterator[str]:
    """The panel's label and the names of its lines, with samples."""
    import plotext

    label = look.fit(panel.label, look.width)
    parts = [(len(label), label)]
    for index, line in enumerate(panel.lines):
        _, sample, colour = look.curve(index)
        name = look.fit(f"{sample * 2} {line.label}", look.width - 2)
        text = plotext.colorize(name, colour) if look.coloured else name
        parts.append((len(name), text))
    return _flow(parts, look.width)


def _events(page: Page, look: _Look) -> Iterator[str]:
    """The legend of the events and of the shading."""
    names = dict.fromkeys(name for _, name, _ in page.events)
    parts = [f"{look.event(name)} {SYMBOLS[name].text}" for name in names]
    if len(page.spans.begin):
        parts.append(f"{look.loss} {page.spans.text}")
    for name in dict.fromkeys(one.name for one in page.off):
        parts.append(f"{look.off} {name} off: not recorded")
    return _flow([(len(part), part) for part in parts], look.width)


def _flow(parts: Sequence[tuple[int, str]], width: int) -> Iterator[str]:
    """Join parts (width and text) to lines of at most `width`."""
    line, used = "", 0
    for length, text in parts:
        if used and used + length > width:
            yield line
            line, used = "", 0
        line += "  " + text if used else text
        used += length + 2
    yield line


def _number(value: float) -> str:
    value += 0.0  # makes -0.0 to 0.0
    return f"{value:.4g}" if abs(value) < 1e6 else f"{value:.3g}"
