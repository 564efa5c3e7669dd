# SPDX-License-Identifier: Apache-2.0
"""Draws pages with matplotlib: into PNG, SVG and PDF files, and into a window."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.drawing import (
    DASHES,
    DPI,
    NO_DATES,
    PALETTE,
    Axes,
    Figure,
    fit_numbers,
    import_matplotlib,
    new_figure,
    scale_log,
    styled,
    write_figure,
)
from tcpkmon.formats.pmgraph.bands import draw_bands, draw_bars, fit_sequence
from tcpkmon.formats.pmgraph.marks import mark_events, shade_losses, shade_off
from tcpkmon.formats.pmgraph.pages import Page, Panel

BINS = 2000
"""Pixel columns for which curves are thinned, where the output can be made larger."""

_WIDTH_INCHES = 7.2
_CHARACTERS = 50
"""That fit below a panel."""
_FIRST_PANEL_INCHES = 2.7
_PANEL_INCHES = 1.55
_BAND_INCHES = 0.62
_TITLE_INCHES = 0.55
_LEGEND_LINE_INCHES = 0.19
_MOST_NAMED = 16


def save(
    pages: Sequence[Page], path: Path, size: tuple[int, int] | None = None, force: bool = False
) -> None:
    """Draw all pages into one picture, or as pages of a PDF, of so many pixels in all (of a PDF,
    each). force: replace the file."""
    kind = path.suffix.lower()
    with styled(), create_file(path, force=force) as out:
        if kind == ".pdf":
            _save_pdf(pages, out, size)
            return
        write_figure(_sized(draw(pages), size), kind, out)


def bins_of(path: Path, size: tuple[int, int] | None) -> int:
    """The pixel columns for which curves are thinned."""
    if path.suffix.lower() != ".png":
        return BINS
    return size[0] if size is not None else int(_WIDTH_INCHES * DPI)


def has_window() -> bool:
    """Whether there is a display and a matplotlib backend that can open a window on it."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        import_matplotlib()
        from matplotlib import pyplot
    except ImportError:
        return False
    refusals: tuple[type[Exception], ...] = (ImportError, RuntimeError, ValueError)
    refusals += _tk_errors()
    for name in ("qtagg", "gtk4agg", "gtk3agg", "tkagg", "wxagg"):
        try:
            pyplot.switch_backend(name)
            pyplot.close(pyplot.figure())  # fails here if the display refuses
        except refusals:
            continue
        return True
    return False


def show(pages: Sequence[Page]) -> None:
    """Show each page in a window; returns when all are closed. Call has_window() first."""
    from matplotlib import pyplot

    with styled():
        for page in pages:
            draw([page], pyplot.figure(layout="constrained"))
        pyplot.show()


def draw(pages: Sequence[Page], figure: Figure | None = None) -> Figure:
    """Draw each page into a subfigure of one figure, and return the figure."""
    if figure is None:
        figure = new_figure()
    columns = 1 if len(pages) <= 3 else 2 if len(pages) <= 8 else 3
    rows = math.ceil(len(pages) / columns)
    height = max(_TITLE_INCHES + sum(_heights(page)) for page in pages) * rows
    figure.set_size_inches(_WIDTH_INCHES * (1, 1.7, 2.4)[columns - 1], min(height, 200))
    parts = figure.subfigures(rows, columns, squeeze=False).ravel()
    for part, page in zip(parts, pages, strict=False):
        _draw_page(part, page)
    return figure


def _sized(figure: Figure, size: tuple[int, int] | None) -> Figure:
    if size is not None:
        figure.set_size_inches(size[0] / DPI, size[1] / DPI)
    return figure


def _save_pdf(pages: Sequence[Page], out: BinaryIO, size: tuple[int, int] | None) -> None:
    from matplotlib.backends.backend_pdf import PdfPages

    with PdfPages(out, metadata=NO_DATES[".pdf"]) as document:
        for page in pages:
            document.savefig(_sized(draw([page]), size))


def _heights(page: Page) -> list[float]:
    rest = [_BAND_INCHES if one.bands else _PANEL_INCHES for one in page.panels[1:]]
    first = _FIRST_PANEL_INCHES * (1.5 if any(one.bands for one in page.panels) else 1)
    return [max(height, _legend_inches(page, panel))
            for height, panel in zip([first, *rest], page.panels, strict=True)]  # fmt: skip


def _legend_inches(page: Page, panel: Panel) -> float:
    """How high the legend beside a panel may be: a connection has two lines in it."""
    if len(panel.lines) < 2:
        return 0.0
    lines = sum(2 if "\u2192" in line.label else 1 for line in panel.lines)
    if page.panels[0] is panel:
        lines += len({name for _, name, _ in page.events}) + 1
    return lines * _LEGEND_LINE_INCHES


def _draw_page(part: Any, page: Page) -> None:
    grid = part.subplots(
        len(page.panels), 1, sharex=True, squeeze=False,
        gridspec_kw={"height_ratios": _heights(page)},
    )  # fmt: skip
    rows = [row[0] for row in grid]
    title = page.title + (f"   ({page.subtitle})" if page.subtitle else "")
    rows[0].set_title(title, loc="left")
    for axes, panel in zip(rows, page.panels, strict=True):
        _draw_panel(axes, panel)
        shade_losses(axes, page, labelled=axes is rows[0])
        shade_off(axes, page, labelled=axes is rows[0])
    marked = page.event_panel()
    if marked is not None:
        mark_events(rows[marked], page, page.panels[marked])
    rows[-1].set_xlabel(f"time since {page.since} (s)")
    begin, end = page.limits
    margin = (end - begin) * 0.015 or 0.5
    rows[0].set_xlim(begin - margin, end + margin)
    fit_numbers(rows[-1], begin, end, _CHARACTERS)
    for axes, panel in zip(rows, page.panels, strict=True):
        _add_legend(axes, panel)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import EngFormatter

    if panel.bands:
        draw_bands(axes, panel)
        return
    panel, names = panel.with_names(_MOST_NAMED)
    for index, line in enumerate(panel.lines):
        look = {
            "color": PALETTE[(index if line.colour < 0 else line.colour) % len(PALETTE)],
            "label": _legend_text(line.label),
            "zorder": 2.5 - index / 1000,  # the first one is on top
            "gid": "curve",
        }
        if line.upper is not None:
            draw_bars(axes, line, look)
        elif line.filled:
            axes.fill_between(line.times, line.values, step="post", alpha=0.3, linewidth=0,
                              color=look["color"], label=look["label"], zorder=1.5)  # fmt: skip
        elif line.steps:
            dash = DASHES[index // len(PALETTE) % len(DASHES)]
            if panel.overlaid:
                look["linewidth"] = 1.1 + 0.9 * min(index, 2)
            axes.plot(line.times, line.values, drawstyle="steps-post", linestyle=dash, **look)
        else:
            axes.plot(line.times, line.values, linestyle="none", marker=".", markersize=2.5, **look)
    axes.set_ylabel(textwrap.fill(panel.label, 20))
    if panel.logarithmic:
        scale_log(axes.yaxis)
    elif panel.is_count and not panel.members:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    if panel.from_zero and not panel.logarithmic and any(len(line.values) for line in panel.lines):
        tops = [float(np.nanmax(line.values, initial=0)) for line in panel.lines]
        top = max(tops)
        if panel.overlaid:  # a peer's window that is far above would hide the rest
            near = [one for one, line in zip(tops, panel.lines, strict=True)
                    if line.label != "peer's window"]
            top = min(top, 2 * max(near, default=0) or top)
        axes.set_ylim(-0.04 * (top or 1), 1.08 * (top or 1))
    if any(line.upper is not None for line in panel.lines):
        fit_sequence(axes, panel)
    if names:
        axes.set_yticks(range(len(names)), names, fontsize=6)
        axes.set_ylim(-0.7, len(names) - 0.3)


def _legend_text(label: str) -> str:
    # matplotlib leaves out what begins with an underscore.
    return f"\u200a{label}" if label.startswith("_") else label


def _add_legend(axes: Axes, panel: Panel) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(panel.lines) == 1 and len(handles) == 1 and not panel.bands:
        return  # the axis has its name
    labels = [label.replace(" \u2192 ", " \u2192\n") for label in labels]
    axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.005, 1.03), borderaxespad=0.2,
                ncols=2 if len(panel.bands) > 3 else 1)


def _tk_errors() -> tuple[type[Exception], ...]:
    try:
        from tkinter import TclError
    except ImportError:
        return ()
    return (TclError,)
