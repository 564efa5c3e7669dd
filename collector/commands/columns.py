# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon columns: the columns that a capture can store."""

from __future__ import annotations

import json
import sys

import click
from rich.console import Console
from rich.table import Table

from tcpkmon.collector.plan.columns import EVENT, smallest_set
from tcpkmon.collector.plan.extension import tcp_schema
from tcpkmon.collector.plan.schema_sources import find_sources
from tcpkmon.formats.schema import field_type


@click.command("columns")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--schema", "schemata", multiple=True, metavar="FOLDER",
              help="The columns of this schema too, which extends tcp.")
def command(as_json: bool, schemata: tuple[str, ...]) -> int:
    """List the columns that --columns chooses from."""
    schema = tcp_schema(find_sources(schemata, trusted_only=False, text_needed=False))
    rows = [
        {
            "name": field.name,
            "bytes": field_type(schema, field).width,
            "set": smallest_set(field.tags),
            "unit": field.unit,
            "doc": field.doc,
        }
        for field in schema.event(EVENT).fields
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return 0
    table = Table(box=None, pad_edge=False)
    for heading in ("column", "bytes", "set", "unit", "meaning"):
        table.add_column(heading, justify="right" if heading == "bytes" else "left",
                         no_wrap=heading != "meaning")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 110, markup=False).print(table)
    return 0
