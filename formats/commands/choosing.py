# SPDX-License-Identifier: Apache-2.0
"""The options -p and --where of the commands that list connections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.ports import HELP, METAVAR, find_missing, parse_connection

_Function = TypeVar("_Function", bound=Callable[..., Any])
Table = dict[str, Any]


def ports_option(function: _Function) -> _Function:
    """Add -p, which the command gets as `ports`."""
    return click.option(
        "-p", "--connection", "ports", multiple=True, metavar=METAVAR, help=HELP
    )(function)


def choosing_options(function: _Function) -> _Function:
    """Add -p and --where, which the command gets as `ports` and `where`."""
    return ports_option(where_option("connections", "'rport == 443'")(function))


def where_option(what: str, example: str) -> Callable[[_Function], _Function]:
    """Add --where, a condition on the columns of `what`, which the command gets as `where`."""
    return click.option(
        "--where", metavar="CONDITION",
        help=f"Only {what} for which this holds, as in tcpkmon check: {example}.",
    )  # fmt: skip


class Chooser:
    """Leaves the chosen rows of tables: of connections, or (of) requests. UsageError,
    ExpressionError.

    A connection of -p that is in none of the tables is an error, if it is the only one, else a
    note. That --where holds for none is an answer.
    """

    def __init__(
        self, command: str, files: tuple[Path, ...], ports: tuple[str, ...],
        where: str | None = None, of: str = "connection",
    ) -> None:  # fmt: skip
        from tcpkmon.formats.analysis.check import parse_where

        self._command, self._files, self._of = command, files, of
        self._pairs = tuple(parse_connection(text) for text in ports)
        self._where = parse_where(where, of) if where is not None else None
        self._seen: set[tuple[int, int]] = set()

    def __call__(self, table: Table) -> Table:
        """The chosen rows."""
        from tcpkmon.formats.analysis.check import choose

        if self._pairs:
            table = choose(table, None, self._pairs)
            ends = zip(table["lport"].tolist(), table["rport"].tolist(), strict=True)
            self._seen.update(ends)
        return choose(table, self._where, what=self._of)

    def check(self) -> None:
        """Say which connections were in no table."""
        if note := find_missing(self._pairs, self._seen, ", ".join(map(str, self._files))):
            say(f"tcpkmon {self._command}: {note}")
