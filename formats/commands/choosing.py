# SPDX-License-Identifier: Apache-2.0
"""The options -p and --where of the commands that list connections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from formats.base.cli import say
from formats.base.ports import HELP, find_missing, parse_connection

_Function = TypeVar("_Function", bound=Callable[..., Any])
Table = dict[str, Any]


def ports_option(function: _Function) -> _Function:
    """Add -p, which the command gets as `ports`."""
    return click.option(
        "-p", "--connection", "ports", multiple=True, metavar="LPORT.RPORT", help=HELP
    )(function)


def choosing_options(function: _Function) -> _Function:
    """Add -p and --where, which the command gets as `ports` and `where`."""
    by_condition = click.option(
        "--where", metavar="CONDITION",
        help="Only connections for which this holds, as in tcpkmon check: 'rport == 443'.",
    )  # fmt: skip
    return ports_option(by_condition(function))


class Chooser:
    """Leaves the chosen connections of tables. UsageError, ExpressionError.

    A connection of -p that is in none of the tables is an error, if it is the only one, else a
    note. That --where holds for none is an answer.
    """

    def __init__(
        self, command: str, files: tuple[Path, ...], ports: tuple[str, ...],
        where: str | None = None,
    ) -> None:  # fmt: skip
        from formats.analysis.check import parse_where

        self._command, self._files = command, files
        self._pairs = tuple(parse_connection(text) for text in ports)
        self._where = parse_where(where) if where is not None else None
        self._seen: set[tuple[int, int]] = set()

    def __call__(self, table: Table) -> Table:
        """The chosen rows."""
        from formats.analysis.check import choose

        if self._pairs:
            table = choose(table, None, self._pairs)
            ends = zip(table["lport"].tolist(), table["rport"].tolist(), strict=True)
            self._seen.update(ends)
        return choose(table, self._where)

    def check(self) -> None:
        """Say which connections were in no table."""
        if note := find_missing(self._pairs, self._seen, ", ".join(map(str, self._files))):
            say(f"tcpkmon {self._command}: {note}")
