# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon enable: switches events of a running collector on."""

from __future__ import annotations

import click

from tcpkmon.collector.commands.collector_option import ask, collector_option


@click.command("enable")
@click.argument("events", metavar="[EVENT]...", nargs=-1)
@collector_option
def command(events: tuple[str, ...], collector: str | None) -> int:
    """Switch these events of a running collector on. Without EVENT: switch logging on.

    An event is logged while both the event and logging are on.
    """
    ask(collector).enable(events or None)
    return 0
