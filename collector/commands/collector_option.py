# SPDX-License-Identifier: Apache-2.0
"""The option --collector of the commands that ask a running collector."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tcpkmon.collector.control.client import Client

_Function = TypeVar("_Function", bound=Callable[..., Any])


def collector_option(function: _Function) -> _Function:
    """Add --collector, which the command gets as `collector`."""
    option = click.option(
        "--collector", metavar="NAME|PID",
        help="Which one, when several run: the name in the daemon's configuration, or that of its "
        "output without the folder, or its process.",
    )  # fmt: skip
    return option(function)


def ask(which: str | None) -> Client:
    """A client of the collector of that name or PID, or of the only one. UsageError: see choose().
    """
    from tcpkmon.collector.control.choosing import choose
    from tcpkmon.collector.control.client import Client

    return Client(choose(which))
