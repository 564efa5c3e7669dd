# SPDX-License-Identifier: Apache-2.0
"""Tables of Markdown, for all pages that scripts make; runs with any Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Its lines; a column whose heading ends with a colon (which is not shown) stands right."""
    marks = ["---:" if one.endswith(":") else "---" for one in headings]
    return [_row([one.removesuffix(":") for one in headings]), _row(marks), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
