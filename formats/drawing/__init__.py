# SPDX-License-Identifier: Apache-2.0
"""matplotlib, in one style for all pictures; it is imported when the first one is drawn."""

from tcpkmon.formats.drawing.style import (
    DASHES,
    DPI,
    NO_DATES,
    PALETTE,
    SUFFIXES,
    Axes,
    Figure,
    check_output,
    fit_numbers,
    import_matplotlib,
    new_figure,
    save_figure,
    scale_log,
    styled,
    write_figure,
)

__all__ = [
    "DASHES", "DPI", "NO_DATES", "PALETTE", "SUFFIXES", "Axes", "Figure", "check_output",
    "fit_numbers", "import_matplotlib", "new_figure", "save_figure", "scale_log", "styled",
    "write_figure",
]  # fmt: skip
