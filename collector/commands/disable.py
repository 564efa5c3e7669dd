# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon disable: a running collector stops logging, but stays."""

from __future__ import annotations

import click

from collector.commands.collector_option import ask, collector_option


@click.command("disable")
@click.argument("events", metavar="[EVENT]...", nargs=-1)
@collector_option
def command(events: tuple[str, ...], collector: int | None) -> int:
    """Have a running collector log these events no more, or, without EVENT, log nothing.

    Its programs stay attached, so that `tcpkmon enable` is immediate; what a disabled event costs
    is told by `tcpkmon benchmark`.
    """
    ask(collector).disable(events or None)
    return 0
