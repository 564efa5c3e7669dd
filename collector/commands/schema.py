# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon schema: checks and shows schemata, and lists counters."""

from __future__ import annotations

import json
import sys

import click
from rich.console import Console
from rich.table import Table

from tcpkmon.collector.commands.schema_view import describe, summary, text_lines
from tcpkmon.collector.linux.privileges import check_root
from tcpkmon.collector.loader.perf_counters import list_counters
from tcpkmon.collector.loader.prepare import prepare
from tcpkmon.collector.plan.event_layout import lay_out
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.plan.schema_lint import read_checked
from tcpkmon.collector.plan.schema_sources import find_sources, made_events
from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.escape import for_terminal


@click.group("schema")
def command() -> None:
    """Check and show schemata: what events a log holds, and how they are logged.

    A schema is one that comes with tcpkmon, by name, or the path of a folder that holds NAME.conf
    and NAME.bpf.c.
    """


@command.command("check")
@click.argument("schemata", nargs=-1, required=True, metavar="NAME|PATH...")
@click.option(
    "--compile",
    "compiled",
    is_flag=True,
    help="Compile the C files too, and look for what this kernel lacks (needs root).",
)
def check(schemata: tuple[str, ...], compiled: bool) -> int:
    """Look for mistakes in schemata, and report all of them with file, line and column.

    Several schemata are checked together and with base, as a capture would load them. Without
    --compile, only #include and PROBE() are checked in the C files. An event that this kernel
    cannot log is a warning. Exit code 0: no mistakes; 2: there are some; 4: this kernel lacks what
    a schema needs.
    """
    sources = find_sources(schemata, trusted_only=False, text_needed=False)
    checked = read_checked(sources)
    layout = lay_out(checked.schema, made_events(checked.schema))
    if compiled:
        check_root("--compile")
        wanted = Request(Filters(), "-", schemata=schemata, file_format="klogger")
        prepared = prepare(wanted)
        for name, why in prepared.plan.missing.items():
            say(f"warning: {name}: {why}")
    for source in sources:
        if source.name in schemata or not source.shipped:
            click.echo(for_terminal(summary(source, layout)))
    return 0


@command.command("show")
@click.argument("schemata", nargs=-1, metavar="[NAME|PATH...]")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with offsets and sizes in bytes.")
def show(schemata: tuple[str, ...], as_json: bool) -> int:
    """Print schemata and base as one schema, as it is in a log.

    Comments after it have the id of each event, and whether it is logged: log levels may leave it
    out, and the collector makes the events of base.
    """
    sources = find_sources(schemata, trusted_only=False, text_needed=False)
    checked = read_checked(sources)
    made = made_events(checked.schema)
    layout = lay_out(checked.schema, made)
    if as_json:
        click.echo(json.dumps(describe(layout, sources, made), indent=2))
    else:
        for line in text_lines(layout, made):
            click.echo(for_terminal(line))
    return 0


@command.command("list-counters")
@click.option("--all", "all_names", is_flag=True, help="Also those that this machine lacks.")
@click.option("--json", "as_json", is_flag=True, help="As JSON (all of them).")
def counters(all_names: bool, as_json: bool) -> int:
    """List the counters that an arch section may bind, tried on this machine (needs root)."""
    listed = list_counters()
    if as_json:
        rows = [
            {"name": one.counter.name, "available": not one.why_not, "why_not": one.why_not,
             "hardware": one.counter.hardware, "doc": one.counter.doc}
            for one in listed
        ]  # fmt: skip
        click.echo(json.dumps(rows, indent=2))
        return 0
    table = Table(box=None, pad_edge=False)
    table.add_column("counter", no_wrap=True)
    table.add_column("meaning")
    for one in listed:
        if not one.why_not:
            table.add_row(one.counter.name, one.counter.doc)
        elif all_names:
            table.add_row(one.counter.name, f"-- {one.why_not}")
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 110, markup=False,
            highlight=False).print(table)  # fmt: skip
    lacking = sum(bool(one.why_not) for one in listed)
    if lacking and not all_names:
        say(f"{lacking} more are not counted on this machine (--all lists them)")
    return 0
