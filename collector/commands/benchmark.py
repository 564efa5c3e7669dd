# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon benchmark: what logging an event costs on this machine."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from tcpkmon.formats.base.escape import for_terminal


@click.command("benchmark")
@click.argument("events", metavar="[EVENT]...", nargs=-1)
@click.option("--schema", "schemata", multiple=True, metavar="NAME|PATH",
              help="Events of this schema; several are loaded together, as in a capture.")
@click.option("--iterations", type=click.IntRange(1, 1_000_000), default=1000, show_default=True,
              metavar="N", help="Calls in each of the rounds.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(
    events: tuple[str, ...], schemata: tuple[str, ...], iterations: int, as_json: bool
) -> int:
    """Measure what logging each EVENT costs, in nanoseconds, enabled and disabled (needs root).

    Without EVENT: all events of the schemata. Without --schema: all shipped schemata, each loaded
    alone, and the base events, which the collector makes: there it is the time to make one. A
    program in the kernel calls klogger(EVENT, constants) in a loop, and nothing is attached. The
    output has the medians of nine rounds. A real probe costs more: the probe itself,
    and reading the values. It is an error if a record does not reach the ring.
    """
    from tcpkmon.collector.commands import event_cost
    from tcpkmon.collector.linux.privileges import check_root
    from tcpkmon.formats.base.cli import say

    check_root("benchmark")
    costs = list(event_cost.measure(events, schemata, iterations))
    if as_json:
        click.echo(json.dumps([asdict(cost) for cost in costs], indent=2))
        return 0
    table = Table(box=None, pad_edge=False)
    for heading in ("schema", "event"):
        table.add_column(heading, no_wrap=True)
    for heading in ("record bytes", "enabled ns", "fastest", "slowest", "disabled ns"):
        table.add_column(heading, no_wrap=True, justify="right")
    for cost in costs:
        numbers = (cost.enabled_ns, cost.fastest_ns, cost.slowest_ns)
        table.add_row(
            for_terminal(cost.schema), for_terminal(cost.event), str(cost.record_bytes),
            *(f"{number:.0f}" for number in numbers),
            "n/a" if cost.disabled_ns is None else f"{cost.disabled_ns:.1f}",
        )  # fmt: skip
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 110, markup=False,
            highlight=False).print(table)  # fmt: skip
    say(f"{iterations} calls in each of {event_cost.ROUNDS} rounds")
    return 0
