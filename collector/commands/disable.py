# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon disable: switches events of a running collector off."""

from __future__ import annotations

import click

from tcpkmon.collector.commands.collector_option import ask, collector_option


@click.command("disable")
@click.argument("events", metavar="[EVENT]...", nargs=-1)
@collector_option
def command(events: tuple[str, ...], collector: str | None) -> int:
    """Switch these events of a running collector off. Without EVENT: switch logging off.

    The programs stay attached, so `tcpkmon enable` works at once. `tcpkmon benchmark` measures
    what a disabled event costs.
    """
    ask(collector).disable(events or None)
    return 0
