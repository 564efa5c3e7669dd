# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon buffer-size: the size of a running collector's rings."""

from __future__ import annotations

import math

import click

from tcpkmon.collector.commands.collector_option import ask, collector_option
from tcpkmon.formats.base.errors import TcpkmonError, UsageError


def describe(buffer_bytes: int) -> str:
    """The size as in Klogger's file buffer_size: 4MB/CPU."""
    return f"{buffer_bytes / (1 << 20):.6g}MB/CPU"


@click.command("buffer-size")
@click.argument("megabytes", metavar="[MB]", required=False, type=click.FloatRange(0.008, 1024))
@collector_option
def command(megabytes: float | None, collector: str | None) -> int:
    """Print the size of each CPU's ring, or set it to MB.

    Set it only while logging is off (`tcpkmon disable`).
    """
    if megabytes is not None and math.isnan(megabytes):
        raise UsageError("nan is no size", "write 4 or 0.5")
    client = ask(collector)
    if megabytes is not None:
        client.set_buffer_bytes(int(megabytes * (1 << 20)))
        return 0
    size = client.status().get("buffer_bytes")
    if not isinstance(size, int):
        raise TcpkmonError("the collector does not tell its buffer size")
    click.echo(describe(size))
    return 0
