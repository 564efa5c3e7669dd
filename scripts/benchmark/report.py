# SPDX-License-Identifier: Apache-2.0
"""The tables of all results, on the terminal and as a page in Markdown."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

import rich.table
from rich.console import Console

from formats.base.escape import for_terminal
from scripts.benchmark.results import Results
from scripts.benchmark.stats import MANY
from scripts.benchmark.tables import SECTIONS, Table, of_targets

Section = tuple[str, list[Table], list[str]]
"""Its title, its tables, and remarks below them."""

INTRODUCTION = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by `sudo scripts/bench --docs`: change scripts/benchmark, not this page. -->
# What it costs on {model}

Measured by `sudo scripts/bench`; [other CPUs](../benchmark.md). Every tool is measured in turn with
the others, round by round, so that a machine that gets slower gets slower for all. Figures are
medians of {rounds} rounds, with the lowest and the highest in brackets, of {many} rounds or more
(what the targets compare) with the quartiles; trust the ratios, since the times are this machine's.
"""


def print_all(results: Results, console: Console) -> None:
    """Every table, every skipped case with its reason, and the machine."""
    print_sections(_sections(results), console)
    for name, text in results.machine.items():
        console.print(f"{name}: {for_terminal(text)}")


def make_console() -> Console:
    """For print_all() and print_table(): of the terminal's width, else wide."""
    width = None if sys.stdout.isatty() else 160
    return Console(width=width, markup=False, highlight=False)


def print_sections(sections: Iterable[Section], console: Console) -> None:
    for title, tables, remarks in sections:
        console.rule(title, align="left")
        for table in tables:
            print_table(table, console)
        for remark in remarks:
            console.print(for_terminal(remark))


def print_table(table: Table, console: Console) -> None:
    drawn = rich.table.Table(title=table.title, title_justify="left", box=None)
    for index, heading in enumerate(table.headings):
        drawn.add_column(heading, justify="left" if index == 0 else "right")
    for row in table.rows:
        drawn.add_row(*(for_terminal(cell) for cell in row))
    console.print(drawn)
    if table.note:
        console.print(table.note)


def markdown(results: Results) -> str:
    """The page of a CPU model."""
    model = results.machine.get("CPU model", "an unknown CPU")
    lines = [INTRODUCTION.format(model=model, rounds=results.rounds, many=MANY)]
    if results.quick:
        lines.append("**These figures are of a quick run: small sizes, few rounds.**\n")
    lines += ["## The machine\n", *rows_of(("", ""), results.machine.items())]
    lines += in_markdown(_sections(results))
    return "\n".join(lines).rstrip() + "\n"


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


def _sections(results: Results) -> Iterator[Section]:
    target_table = of_targets(results)
    yield target_table.title, [target_table], []
    for name, (title, make) in SECTIONS.items():
        if name not in results.values and name not in results.skipped:
            continue
        tables = [table for table in make(results) if table.rows]
        yield title, tables, remarks_of(results, name)


def remarks_of(results: Results, name: str) -> list[str]:
    """The notes of a section, and its skipped cases with their reasons."""
    skipped = results.skipped.get(name, {}).items()
    return results.notes.get(name, []) + [f"Skipped: {case}: {why}" for case, why in skipped]


def rows_of(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table; text columns left, figures right."""
    lines = [_row(headings), "| --- |" + " ---: |" * (len(headings) - 1)]
    return lines + [_row(row) for row in rows]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
