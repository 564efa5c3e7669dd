# SPDX-License-Identifier: Apache-2.0
"""What several commands share: parameters, checks of their values, the console of rich."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tcpkmon.formats.base.cli import use_colours
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.files import already_there

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tcpkmon.formats.klogger.clock import Moment

_Function = TypeVar("_Function", bound=Callable[..., Any])
PATH = click.Path(readable=False, path_type=Path)
"""A file or folder; whoever opens it says better than click why that fails."""
FORMS = ("table", "csv", "spreadsheet", "json", "parquet", "arrow")
files_argument = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
form_option = click.option(
    "--format", "form", type=click.Choice(FORMS),
    help="Default: that of the ending of OUT, else table.")  # fmt: skip


def output_option(
    text: str, metavar: str = "OUT", **more: Any
) -> Callable[[_Function], _Function]:
    """-o OUT, which the command gets as `output`. more: of click.option()."""
    return click.option("-o", "--output", metavar=metavar, type=PATH, help=text, **more)


def split_names(text: str) -> list[str]:
    """The names of NAME,NAME."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_span(since: str | None, until: str | None) -> tuple[Moment | None, ...]:
    """--since and --until of commands on snapshots. UsageError."""
    from tcpkmon.formats.klogger.clock import parse_time

    how = "give 2026-01-31T12:00:00 (UTC), or CLOCK_MONOTONIC in ns"
    return tuple(parse_time(text, "mono", how) if text else None for text in (since, until))


def refuse_input(
    output: Path | None, files: Iterable[Path], force: bool = True, what: str = "the capture itself"
) -> None:
    """UsageError where a file that is to be written is one of those that are read. force: whether
    it may replace another one; else that is a FileError."""
    if output is None or not output.exists():
        return
    if any(output.samefile(file) for file in files if file.exists()):
        raise UsageError(f"-o {output} is {what}", "choose another name")
    if not force:
        raise already_there(output)


def make_console(width: int = 110) -> Console:
    """A console on stdout that prints texts as they are: as wide as the terminal, or so wide."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, no_color=not use_colours())
    if not console.is_terminal:
        console.width = width
    return console


def make_table(names: Sequence[str], left: str) -> Table:
    """A table without lines. left: the column of texts; those of numbers are on the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name == left else "right", no_wrap=True)
    return table
