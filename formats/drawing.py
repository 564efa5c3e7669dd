# SPDX-License-Identifier: Apache-2.0
"""matplotlib, in one style for all pictures; it is imported when the first one is drawn."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.base.installing import how_to_install

# matplotlib is imported late, and some versions have no types.
Axes = Any
Figure = Any

SUFFIXES = (".png", ".svg", ".pdf")
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which differ with every common colour blindness and in print."""

DASHES = ("-", "--", ":", "-.")
"""Line styles; the next one is used when the colours repeat."""

_STYLE = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.88",
    "grid.linewidth": 0.5,
    "xtick.direction": "out",
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.labelspacing": 0.35,
    "lines.linewidth": 1.1,
    "hatch.linewidth": 0.4,
    "hatch.color": "0.55",
    "pdf.fonttype": 42,
    "svg.hashsalt": "tcpkmon",
    "text.parse_math": False,  # names from files are no formulas
    "axes.formatter.useoffset": False,
}
DPI = 160
_DECADES = 4
"""Numbers at most on a logarithmic axis: so many fit beside each other."""
NO_DATES: dict[str, dict[str, None]] = {
    ".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}
}  # fmt: skip


def check_output(path: Path) -> None:
    """Raise UsageError for an unknown kind of file, FileError without matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"-o {path}: unknown kind of picture", f"the name must end in {', '.join(SUFFIXES)}"
        )
    _require_matplotlib()


def new_figure() -> Figure:
    """An empty figure without a window. FileError without matplotlib."""
    _require_matplotlib()
    from matplotlib.figure import Figure as NewFigure

    return NewFigure(layout="constrained")


def save_figure(figure: Figure, path: Path, force: bool = False) -> None:
    """Write a figure, drawn inside styled(), as the kind of file that its name says."""
    with create_file(path, force=force) as out:
        write_figure(figure, path.suffix.lower(), out)


def write_figure(figure: Figure, kind: str, out: BinaryIO) -> None:
    """Write a figure as a kind of SUFFIXES, the same bytes for the same figure."""
    figure.savefig(out, format=kind[1:], dpi=_dpi(figure), metadata=NO_DATES[kind])


def _dpi(figure: Figure) -> int:
    # Agg takes at most 2^16 pixels in each direction.
    return min(DPI, int(60000 / max(figure.get_size_inches())))


def fit_numbers(axes: Axes, low: float, high: float, room: int) -> None:
    """Have so few numbers on the x axis from low to high that they do not run into each other.

    room: the characters that fit.
    """
    step = max(high - low, 1e-12) / 5
    decimals = max(0, -math.floor(math.log10(step)))
    decimals += decimals > 0  # a step of 2.5 has one more
    width = len(f"{max(abs(low), abs(high)):.{decimals}f}") + 2
    axes.locator_params(axis="x", nbins=max(2, min(room // width, 10)))


def scale_log(axis: Any) -> None:
    """Make an axis (axes.xaxis, axes.yaxis) logarithmic. Its labels are numbers, not formulas: see
    text.parse_math."""
    from matplotlib.ticker import LogFormatter, LogLocator

    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    axis.set_major_locator(LogLocator(numticks=_DECADES))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(LogFormatter())


@contextlib.contextmanager
def styled() -> Iterator[None]:
    matplotlib = import_matplotlib()
    known: Any = {name: _STYLE[name] for name in _STYLE if name in matplotlib.rcParams}
    with matplotlib.rc_context(known), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        yield


def _require_matplotlib() -> None:
    try:
        import_matplotlib()
    except ImportError as error:
        raise FileError(
            f"graphs need matplotlib, which cannot be imported ({error})",
            how_to_install("matplotlib"),
        ) from error


@functools.cache
def import_matplotlib() -> Any:
    """The module, which does not obey a file matplotlibrc in the current folder.

    Anybody may have put one there. matplotlib looks for it when it is imported, before the user's
    own, and nothing turns that off; so that happens in the root folder.
    """
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir("/")
        _import_without_docs()
    finally:
        os.fchdir(here)
        os.close(here)
    import matplotlib

    return matplotlib


def _import_without_docs() -> None:
    """It takes matplotlib 0.2 s, a third of its import, to write docstrings of artists' set()."""
    from matplotlib.artist import Artist

    name = "_update_set_signature_and_docstring"
    write_docs = vars(Artist).get(name)
    if write_docs is not None:
        setattr(Artist, name, classmethod(lambda cls: None))
    try:
        import matplotlib.figure  # noqa: F401
    finally:
        if write_docs is not None:
            setattr(Artist, name, write_docs)
