# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon triggers: the names that a trigger of the flight recorder can have."""

from __future__ import annotations

from collections.abc import Sequence

import click


@click.command("triggers")
@click.option("--columns", default="default", show_default=True, metavar="SET|NAME,...",
              help="Those that collect --columns records.")
@click.option("--schema", "schemata", multiple=True, metavar="NAME|FILE",
              help="The events of this schema, for a Klogger log; several with more --schema.")
@click.argument("texts", nargs=-1, metavar="[EXPR]...")
def command(columns: str, schemata: Sequence[str], texts: Sequence[str]) -> int:
    """List the names that a trigger can have, or check triggers.

    \b
    tcpkmon triggers
    tcpkmon triggers 'srtt_us > 5 * min_rtt_us for 100ms' 'rto'
    tcpkmon triggers --schema sched 'SCHEDOUT and pid == 1'
    """
    from tcpkmon.collector.plan.extension import extends_only, tcp_schema
    from tcpkmon.collector.plan.schema_sources import find_sources

    if not extends_only(schemata):
        return _of_events(schemata, texts)
    from tcpkmon.collector.plan.columns import (
        EVENT,
        choose_columns,
        locations_of,
        make_layout,
    )
    from tcpkmon.collector.plan.recorder import columns_for
    from tcpkmon.collector.plan.triggers import compile_triggers, explain

    schema = tcp_schema(find_sources(schemata))
    chosen = choose_columns(schema.event(EVENT), columns_for(columns, texts))
    layout = make_layout(schema, chosen, ())
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


def _of_events(schemata: Sequence[str], texts: Sequence[str]) -> int:
    """The events of schemata, each with its fields."""
    from tcpkmon.collector.plan.event_layout import lay_out_sources
    from tcpkmon.collector.plan.event_triggers import compile_event_triggers
    from tcpkmon.collector.plan.schema_sources import find_sources

    events = lay_out_sources(find_sources(schemata))
    if texts:
        names = [slot.name for slot in events.logged]
        compile_event_triggers(texts, events, None, names, events.entry_size)
        return 0
    for slot in events.logged:
        fields = [p.field.name for p in slot.places if p.type.kind in ("int", "enum")]
        click.echo(f"{slot.name:<20} {' '.join(fields)}")
    return 0
