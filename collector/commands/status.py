# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon status: the state and the counts of a running collector."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from collector.commands.buffer_size import describe
from collector.commands.collector_option import ask, collector_option
from formats.base.escape import for_terminal

_COLUMNS = ("number", "name", "enabled", "attempts", "limited", "written", "lost")
_TEXT = frozenset({"name", "enabled"})


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@collector_option
def command(as_json: bool, collector: int | None) -> int:
    """Show what a running collector records, how much it recorded and what it lost.

    Every user may ask; those who may not control it get settings and counts alone.
    """
    answer = ask(collector).status()
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return 0
    console = Console(file=sys.stdout, markup=False, highlight=False,
                      width=None if sys.stdout.isatty() else 110)
    head = Table(box=None, pad_edge=False, show_header=False)
    for name, value in answer.items():
        if name != "events" and not (name == "refused" and not value):
            head.add_row(*in_words(name, value))
    console.print(head)
    events = [row for row in answer.get("events", ()) if isinstance(row, dict)]
    if events:
        console.print()
        console.print(list_events(events))
    return 0


def in_words(name: str, value: Any) -> tuple[str, str]:
    """A line of the head: the label and the value, as text."""
    if name == "buffer_bytes" and isinstance(value, int):
        return "buffer", describe(value)
    if name == "low_water_percent":
        return "low water", f"{value}%"
    label = for_terminal(name.replace("_", " "))
    if name == "refused" and isinstance(value, dict):
        return label, for_terminal("; ".join(f"{what}: {why}" for what, why in value.items()))
    if isinstance(value, dict):
        parts = [f"{key} {number}" for key, number in value.items() if number]
        return label, for_terminal(", ".join(parts) or "0")
    return label, _say(value)


def list_events(events: list[dict[str, Any]]) -> Table:
    """The table of events, with those columns that the answer has."""
    table = Table(box=None, pad_edge=False)
    columns = [name for name in _COLUMNS if any(name in row for row in events)]
    for name in columns:
        table.add_column(name if name != "name" else "event", no_wrap=True,
                         justify="left" if name in _TEXT else "right")
    for row in events:
        table.add_row(*(_say(row.get(name, "")) for name in columns))
    return table


def _say(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return for_terminal(str(value))
