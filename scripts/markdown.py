# SPDX-License-Identifier: Apache-2.0
"""Tables and parts of Markdown pages that scripts make; runs with any Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Its lines; a column whose heading ends with a colon (which is not shown) stands right."""
    marks = ["---:" if one.endswith(":") else "---" for one in headings]
    return [_row([one.removesuffix(":") for one in headings]), _row(marks), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def part_of(page: Path, script: str) -> str:
    """The part of a page that a script makes, between its two marks."""
    begin, end = _marks(script)
    return page.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0].strip("\n")


def write_part(page: Path, script: str, text: str) -> None:
    """Puts another text between the two marks. The page is never half of one."""
    begin, end = _marks(script)
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    new = page.with_suffix(".new")
    new.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")
    os.replace(new, page)


def _marks(script: str) -> tuple[str, str]:
    return f"<!-- made by scripts/{script} -->", "<!-- end -->"
