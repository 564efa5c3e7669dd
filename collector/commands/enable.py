# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon enable: a running collector logs again."""

from __future__ import annotations

import click

from collector.commands.collector_option import ask, collector_option


@click.command("enable")
@click.argument("events", metavar="[EVENT]...", nargs=-1)
@collector_option
def command(events: tuple[str, ...], collector: int | None) -> int:
    """Have a running collector log these events again, or, without EVENT, log at all.

    An event is logged while it is enabled and logging as a whole is.
    """
    ask(collector).enable(events or None)
    return 0
