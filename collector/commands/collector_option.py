# SPDX-License-Identifier: Apache-2.0
"""What the commands that ask a running collector have in common: which one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collector.control.client import Client

_Function = TypeVar("_Function", bound=Callable[..., Any])


def collector_option(function: _Function) -> _Function:
    """Adds --collector, which the command takes as `collector`."""
    option = click.option(
        "--collector", type=click.IntRange(1), metavar="PID", help="Which one, when several run."
    )
    return option(function)


def ask(pid: int | None) -> Client:
    """The collector of that PID, or the only one. Raises UsageError."""
    from collector.control.client import Client, choose

    return Client(choose(pid))
