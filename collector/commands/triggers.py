# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon triggers: the names that a trigger of the flight recorder can have."""

from __future__ import annotations

from collections.abc import Sequence

import click


@click.command("triggers")
@click.option("--columns", default="default", show_default=True, metavar="SET|NAME,...",
              help="Those that collect --columns records.")
@click.argument("texts", nargs=-1, metavar="[EXPR]...")
def command(columns: str, texts: Sequence[str]) -> int:
    """List the names that a trigger can have, or check triggers.

    \b
    tcpkmon triggers
    tcpkmon triggers 'srtt_us > 5 * min_rtt_us for 100ms' 'rto'
    """
    from collector.plan.columns import EVENT, choose_columns, load_schema, locations_of, make_layout
    from collector.plan.triggers import compile_triggers, explain

    schema = load_schema()
    layout = make_layout(schema, choose_columns(schema.event(EVENT), columns), ())
    locations = locations_of(schema)
    if texts:
        compile_triggers(texts, layout, locations)
        return 0
    members = schema.enum("location").members
    docs = {member.name: member.doc for member in members if member.name in locations}
    stored = {column.name for column in layout.columns}
    for name, what in explain(layout, docs):
        known = name in stored or all(name != field.name for field in layout.event.fields)
        if known:
            click.echo(f"{name:<20} {what}")
    return 0
