# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon events: the locations that a capture can record, from the schema."""

from __future__ import annotations

import json
import sys

import click
from rich.console import Console
from rich.table import Table

from collector.layout import FIRST_CONTROL, LOCATIONS, load_schema


@click.command("events")
@click.option("--control", is_flag=True, help="The control entries too.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(control: bool, as_json: bool) -> int:
    """List the locations that --locations chooses from."""
    rows = [
        {
            "number": member.value,
            "name": member.name,
            "default": "extra" not in member.tags and member.value < FIRST_CONTROL,
            "doc": member.doc,
        }
        for member in load_schema().enum(LOCATIONS).members
        if control or member.value < FIRST_CONTROL
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return 0
    table = Table(box=None, pad_edge=False)
    table.add_column("number", justify="right")
    table.add_column("location", no_wrap=True)
    table.add_column("default")
    table.add_column("what happened")
    for row in rows:
        table.add_row(str(row["number"]), str(row["name"]), "yes" if row["default"] else "no",
                      str(row["doc"]))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 110, markup=False).print(table)
    return 0
