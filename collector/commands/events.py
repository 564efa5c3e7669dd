# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon events: what a capture can record, and where it is attached here."""

from __future__ import annotations

import dataclasses
import json
import sys

import click
from rich.console import Console
from rich.table import Table


@click.command("events")
@click.option("--schema", "schemata", multiple=True, metavar="NAME|FOLDER",
              help="The events of this schema; several together. Default: tcp.")
@click.option("--control", is_flag=True, help="The control entries of PSC files too.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(schemata: tuple[str, ...], control: bool, as_json: bool) -> int:
    """List the events that --locations chooses from.

    As root, also where each is recorded on this kernel, or why it cannot be.
    """
    from tcpkmon.collector.commands.event_list import list_events

    rows = list_events(schemata or ("tcp",), control)
    if as_json:
        click.echo(json.dumps([_as_dict(dataclasses.asdict(row)) for row in rows], indent=2))
        return 0
    table = Table(box=None, pad_edge=False)
    table.add_column("number", justify="right")
    table.add_column("event", no_wrap=True)
    table.add_column("default")
    if any(row.where or row.why_not for row in rows):
        table.add_column("recorded at")
    table.add_column("what happened")
    for row in rows:
        cells = [str(row.number), row.name, "yes" if row.on else "no"]
        if len(table.columns) == 5:
            cells.append(row.where or (f"nowhere: {row.why_not}" if row.why_not else "-"))
        table.add_row(*cells, row.doc)
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 110, markup=False).print(table)
    return 0


def _as_dict(row: dict[str, object]) -> dict[str, object]:
    row["default"] = row.pop("on")
    return row
