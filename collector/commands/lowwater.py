# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon lowwater: the wake-up threshold of a running collector's rings."""

from __future__ import annotations

import click

from tcpkmon.collector.commands.collector_option import ask, collector_option
from tcpkmon.formats.base.errors import TcpkmonError


@click.command("lowwater")
@click.argument("percent", metavar="[PERCENT]", required=False, type=click.IntRange(1, 99))
@collector_option
def command(percent: int | None, collector: str | None) -> int:
    """Print or set the low-water mark: the free share of a ring below which it is drained.

    While records come slowly it is half a ring. Set it only while logging is off
    (`tcpkmon disable`).
    """
    client = ask(collector)
    if percent is not None:
        client.set_low_water(percent)
        return 0
    now = client.status().get("low_water_percent")
    if not isinstance(now, int):
        raise TcpkmonError("the collector does not tell its low-water mark")
    click.echo(f"{now}%")
    return 0
