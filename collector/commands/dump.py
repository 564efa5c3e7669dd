# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon dump: lets a flight recorder write what it keeps."""

from __future__ import annotations

import click

from tcpkmon.collector.commands.collector_option import ask, collector_option
from tcpkmon.formats.base.escape import for_terminal


@click.command("dump")
@collector_option
def command(collector: str | None) -> int:
    """Let a flight recorder (collect --record-last) write what it keeps, and what comes next.

    The limit of dumps an hour is for triggers alone.
    """
    told = ask(collector).dump()
    click.echo(
        for_terminal(f"dump {told['dump']} in {told['folder']}, complete in {told['after_s']:g} s")
    )
    return 0
