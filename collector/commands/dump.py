# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon dump: lets a flight recorder write what it keeps."""

from __future__ import annotations

from contextlib import suppress

import click

from collector.commands.collector_option import ask
from formats.base.errors import TcpkmonError, UsageError
from formats.base.escape import for_terminal


@click.command("dump")
@click.argument("which", required=False, metavar="[PID|NAME]")
def command(which: str | None) -> int:
    """Let a flight recorder (collect --record-last) write what it keeps, and what comes next.

    Which one, when several run: by its process, or the name that it has in the daemon. The limit of
    dumps an hour is for triggers alone.
    """
    told = ask(None if which is None else _find(which)).dump()
    click.echo(
        for_terminal(f"dump {told['dump']} in {told['folder']}, complete in {told['after_s']:g} s")
    )
    return 0


def _find(which: str) -> int:
    """The process of the collector with this number or name. UsageError."""
    from collector.control.client import Client, find_collectors

    if which.isascii() and which.isdigit():
        return int(which)
    for collector in find_collectors():
        with suppress(TcpkmonError):
            if Client(collector).status().get("name") == which:
                return collector.pid
    raise UsageError(f"no capture is called {which}", "tcpkmon status lists what runs")
