# SPDX-License-Identifier: Apache-2.0
"""Tables of results, on the terminal and in Markdown; pages are written whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import rich.table
from rich.console import Console

from scripts import markdown_table
from scripts.experiments.results import Results
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal

NONE = "-"


@dataclass(frozen=True)
class Table:
    """Text in rows under headings; the first column is what a row is about."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


Section = tuple[str, list[Table], list[str]]
"""Its title, its tables, and remarks below them."""


def make_console() -> Console:
    """Of the terminal's width, else wide."""
    width = None if sys.stdout.isatty() else 160
    return Console(width=width, markup=False, highlight=False)


def print_results(sections: Iterable[Section], results: Results, console: Console) -> None:
    """What was found, then the machine."""
    for title, tables, remarks in sections:
        console.rule(title, align="left")
        for table in tables:
            print_table(table, console)
        for remark in remarks:
            console.print(for_terminal(remark))
    for name, text in results.machine.items():
        console.print(f"{name}: {for_terminal(text)}")


def print_table(table: Table, console: Console) -> None:
    drawn = rich.table.Table(title=table.title, title_justify="left", box=None)
    for index, heading in enumerate(table.headings):
        drawn.add_column(heading, justify="left" if index == 0 else "right")
    for row in table.rows:
        drawn.add_row(*(for_terminal(cell) for cell in row))
    console.print(drawn)
    if table.note:
        console.print(table.note)


def in_markdown(sections: Iterable[Section]) -> list[str]:
    """The lines of these sections in Markdown."""
    lines = []
    for title, tables, remarks in sections:
        lines.append(f"\n## {title}\n")
        for table in tables:
            if len(tables) > 1:
                lines.append(f"### {table.title}\n")
            lines += rows_of(table.headings, table.rows)
            if table.note:
                lines += ["", table.note]
            lines.append("")
        lines += [f"- {remark}" for remark in remarks]
    return lines


def remarks_of(results: Results, name: str) -> list[str]:
    """The notes of a section, and its skipped cases with their reasons."""
    skipped = results.skipped.get(name, {}).items()
    return results.notes.get(name, []) + [f"Skipped: {case}: {why}" for case, why in skipped]


def rows_of(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table; the first column left, figures right."""
    return markdown_table.table([headings[0], *(f"{one}:" for one in headings[1:])], rows)


def check_whole(results: Results, names: Iterable[str]) -> None:
    """UsageError where a page cannot be made: of quick results, or where one of these lacks."""
    missing = [name for name in names if name not in results.seconds]
    if results.quick or missing:
        why = "these are quick" if results.quick else f"these lack {', '.join(missing)}"
        raise UsageError(f"a page is made of the results of a whole run; {why}",
                         "run it without --quick and --only")  # fmt: skip


def write_part(path: Path, script: str, text: str) -> None:
    """The part of a page that a script makes, between its two marks."""
    begin, end = f"<!-- made by scripts/{script} -->", "<!-- end -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    write_whole(path, f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}")


def write_whole(path: Path, text: str) -> None:
    """A page is never half of one."""
    beside_it = path.with_suffix(".new")
    beside_it.write_text(text, encoding="utf-8")
    os.replace(beside_it, path)
