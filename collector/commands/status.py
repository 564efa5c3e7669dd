# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon status: the state and the counts of a running collector."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from time import gmtime, sleep, strftime
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tcpkmon.collector.commands.buffer_size import describe
from tcpkmon.collector.commands.collector_option import ask, collector_option
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.text import human_bytes

_COLUMNS = ("number", "name", "enabled", "attempts", "limited", "written", "lost")
_IF_ANY = ("name", "refused", "unproven", "rotation_error")
_TEXT = frozenset({"name", "enabled"})
WATCH_S = 1.0


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--watch", is_flag=True, help="Show it again each second, until Ctrl-C.")
@collector_option
def command(as_json: bool, watch: bool, collector: str | None) -> int:
    """Show what a running collector records, how much it recorded and what it lost.

    Every user may ask; those who may not control it get settings and counts alone. Rates, ring
    fill, reader lag and cost are those of the last five seconds.
    """
    if as_json and watch:
        raise UsageError("--watch is a screen, and --json is not", "choose one of them")
    from tcpkmon.collector.control.choosing import name_of
    from tcpkmon.collector.control.client import making_sense

    client = ask(collector)
    name = {"name": name_of(client.collector)}
    answer = client.status() | name
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return 0
    console = Console(file=sys.stdout, markup=False, highlight=False,
                      width=None if sys.stdout.isatty() else 110)
    if not watch:
        with making_sense():
            console.print(draw(answer))
        return 0
    screen = Live(console=console, auto_refresh=False, screen=True)
    with screen if console.is_terminal else nullcontext() as live:
        while True:
            with making_sense():
                if live is None:
                    console.print(draw(answer))
                else:
                    live.update(draw(answer), refresh=True)
            sleep(WATCH_S)
            answer = client.status() | name


def draw(answer: dict[str, Any]) -> Group:
    """The whole status as text: the head, and the table of events where there is one."""
    head = Table(box=None, pad_edge=False, show_header=False)
    for name, value in answer.items():
        if name != "events" and value is not None and not (name in _IF_ANY and not value):
            head.add_row(*in_words(name, value))
    events = [row for row in answer.get("events", ()) if isinstance(row, dict)]
    return Group(head, Text(), list_events(events)) if events else Group(head)


def in_words(name: str, value: Any) -> tuple[str, str]:
    """A line of the head: the label and the value, as text."""
    if name == "buffer_bytes" and isinstance(value, int):
        return "buffer", describe(value)
    if name == "low_water_percent":
        return "low water", f"{value}%"
    if name == "segment_bytes" and isinstance(value, int):
        return "segment size", human_bytes(value)
    label = for_terminal(name.removesuffix("_bytes").removesuffix("_s").replace("_", " "))
    if name == "refused" and isinstance(value, dict):
        return label, for_terminal("; ".join(f"{what}: {why}" for what, why in value.items()))
    if name == "rates" and isinstance(value, dict):
        return label, ", ".join(_rate(for_terminal(str(what)), n) for what, n in value.items())
    if name == "cost" and isinstance(value, dict):
        parts = [f"CPU {value.get('cpu_percent')}%"]
        if isinstance(value.get("memory_bytes"), int):
            parts.append(f"memory {human_bytes(value['memory_bytes'])}")
        return label, for_terminal(", ".join(parts))
    if name == "recorder" and isinstance(value, dict):
        return label, for_terminal(describe_window(value))
    if name == "ring_fill" and isinstance(value, (int, float)):
        return "ring fill", f"{100 * value:.1f}%"
    if name == "reader_lag_s" and isinstance(value, (int, float)):
        return "reader lag", f"{1000 * value:.1f} ms"
    if name == "disk_free_bytes" and isinstance(value, int):
        return "disk free", human_bytes(value)
    if isinstance(value, list):
        return label, for_terminal(", ".join(str(one) for one in value))
    if isinstance(value, dict):
        parts = [f"{key} {number}" for key, number in value.items() if number]
        return label, for_terminal(", ".join(parts) or "0")
    return label, _say(value)


def describe_window(window: dict[str, Any]) -> str:
    """What a flight recorder keeps, in words."""
    oldest, newest = (
        strftime("%H:%M:%S", gmtime(float(window.get(name, 0))))
        for name in ("oldest", "newest")
    )
    kept = human_bytes(int(window.get("bytes", 0)))
    limit = human_bytes(int(window.get("limit_bytes", 0)))
    parts = [
        f"{oldest} to {newest} UTC ({window.get('seconds')} s)",
        f"{window.get('records', 0):,} records, {kept} of {limit}",
        f"{window.get('dumps')} dumps" + (", one under way" if window.get("dumping") else ""),
    ]
    if window.get("held_back"):
        parts.append(f"{window['held_back']:,} triggers held back")
    if window.get("failed"):
        parts.append(f"failed: {window['failed']}")
    return "; ".join(parts)


def _rate(what: str, number: Any) -> str:
    if not isinstance(number, (int, float)):
        return what
    return f"{human_bytes(number)}/s" if what == "bytes/s" else f"{number:,.0f} {what}"


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
