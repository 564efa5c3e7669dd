# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon mark: writes a mark into a running collector's log."""

from __future__ import annotations

import click

from tcpkmon.collector.commands.collector_option import ask, collector_option


@click.command("mark", context_settings={"ignore_unknown_options": True})
@click.argument("number", type=click.IntRange(0, (1 << 64) - 1))
@collector_option
def command(number: int, collector: str | None) -> int:
    """Log the event MARK with NUMBER and the PID of this process, to find this moment later."""
    ask(collector).mark(number)
    return 0
