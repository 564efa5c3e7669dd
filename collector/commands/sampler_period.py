# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon sampler-period: how often a running collector samples the CPUs."""

from __future__ import annotations

import re

import click

from tcpkmon.collector.commands.collector_option import ask, collector_option
from tcpkmon.formats.base.errors import TcpkmonError, UsageError

_UNITS = {"us": 10**3, "ms": 10**6, "s": 10**9}


def parse_period(text: str) -> int:
    """'10ms' in ns. UsageError for what is no period."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(us|ms|s)", text, re.ASCII)
    period_ns = round(float(match[1]) * _UNITS[match[2]]) if match is not None else 0
    if not 0 < period_ns <= 10**12:
        raise UsageError(f"not a period: {text!r}", "write 10ms, 250us or 1s")
    return period_ns


def describe_period(period_ns: int) -> str:
    """10000000 as '10ms'."""
    for unit in ("s", "ms"):
        if period_ns % _UNITS[unit] == 0:
            return f"{period_ns // _UNITS[unit]}{unit}"
    return f"{period_ns / 1000:g}us"


@click.command("sampler-period")
@click.argument("period", metavar="[PERIOD]", required=False)
@collector_option
def command(period: str | None, collector: str | None) -> int:
    """Print the time from sample to sample of a capture with the schema sampler, or set it.

    PERIOD is a time like 10ms, 250us or 1s; 100us at least. Each SAMPLE has the period in force.
    """
    period_ns = parse_period(period) if period is not None else None
    client = ask(collector)
    if period_ns is not None:
        client.ask({"op": "sampler-period", "ns": period_ns})
        return 0
    now = client.status().get("sampler_period_ns")
    if not isinstance(now, int):
        raise TcpkmonError("the capture has no sampler", "collect --schema sampler")
    click.echo(describe_period(now))
    return 0
