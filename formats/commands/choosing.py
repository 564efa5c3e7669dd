# SPDX-License-Identifier: Apache-2.0
"""The options -p and --where of the commands that list connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from formats.pmgraph.options import parse_connection

_Function = TypeVar("_Function", bound=Callable[..., Any])
Table = dict[str, Any]


def choosing_options(function: _Function) -> _Function:
    """Add -p and --where, which the command gets as `ports` and `where`."""
    by_ports = click.option(
        "-p", "ports", multiple=True, metavar="LPORT.RPORT",
        help="Only this connection: its local and remote port. More with more -p.",
    )  # fmt: skip
    by_condition = click.option(
        "--where", metavar="CONDITION",
        help="Only connections for which this holds, as in tcpkmon check: 'rport == 443'.",
    )  # fmt: skip
    return by_ports(by_condition(function))


def chooser(ports: tuple[str, ...], where: str | None) -> Callable[[Table], Table]:
    """What leaves the chosen connections of a table. UsageError, ExpressionError."""
    from formats.analysis.check import choose, parse_where

    pairs = tuple(parse_connection(text) for text in ports)
    condition = parse_where(where) if where is not None else None
    return lambda table: choose(table, condition, pairs)
