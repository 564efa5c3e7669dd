# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon requests FILE...`: the exchanges of requests and answers, and who was waited for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.commands.choosing import Chooser, ports_option, where_option
from tcpkmon.formats.commands.connections import report
from tcpkmon.formats.commands.shared import (
    PATH,
    files_argument,
    make_console,
    make_table,
    refuse_input,
)

if TYPE_CHECKING:
    from tcpkmon.formats.analysis.why import Table

_TABLES = (".parquet", ".arrow", ".csv", ".json")


@click.command("requests")
@files_argument
@ports_option
@where_option("exchanges", "'lport == 443 and request.side == \"server\"'")
@click.option("-n", "most", type=click.IntRange(0), default=10, show_default=True, metavar="N",
              help="The N connections that were waited for longest.")
@click.option("--slowest", type=click.IntRange(0), default=5, show_default=True, metavar="N",
              help="Tell of the N exchanges that took longest.")
@click.option("-v", "--verbose", is_flag=True,
              help="Percentiles of each connection too, not only of all.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line for each exchange.")
@click.option("-o", "--output", "outputs", multiple=True, metavar="OUT",
              type=PATH,
              help="Write a row for each exchange (.parquet, .arrow, .csv, .json), or draw a "
              "picture (.png, .svg, .pdf). Also several.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def command(
    files: tuple[Path, ...],
    ports: tuple[str, ...],
    where: str | None,
    most: int,
    slowest: int,
    verbose: bool,
    as_json: bool,
    outputs: tuple[Path, ...],
    force: bool,
) -> int:
    """Say where the time of each request went: the client's pause, the path, the server's thinking.

    FILE is a PSC file, a Klogger log or a folder of them, of the schema tcp; collect --requests
    records what makes times exact, other captures give bounds. An exchange is what one side sent
    until the other side sends, and that answer. Of a connection with both ends in the capture the
    text has the client's view, so each exchange once; tables have both. Exit code 3: records were
    lost, or the end is unknown; the column certain says of which exchanges.
    """
    import numpy as np

    from tcpkmon.formats.analysis.exchanges import as_known, each_once, exchanges
    from tcpkmon.formats.analysis.why import Source, has_waits, rows_of
    from tcpkmon.formats.registry import group

    chosen = Chooser("requests", files, ports, where, of="request")
    captures = group(files)
    _check(outputs, files, force)
    if outputs and len(captures) > 1:
        raise UsageError("-o takes one capture", "write a file for each")
    code = 0
    for paths in captures:
        with Source(*paths) as source:
            resolved = has_waits(source)
            table = exchanges(source)
            code = max(code, report(source, "requests", paths))
        origin = int(table["start_ns"].min(initial=np.iinfo(np.int64).max))
        whole, table = table, chosen(table)
        if paths is captures[-1]:
            chosen.check()
        for path in outputs:
            _write(table, path, force)
        if as_json:
            for row in rows_of(table):
                click.echo(json.dumps(row))
        else:
            rows, both = each_once(table)
            table = as_known({name: values[rows] for name, values in table.items()})
            meanwhile = _meanwhile(table, whole, slowest, paths if resolved else ())
            if not len(table["conn_id"]) and (ports or where):
                click.echo("no such exchange in this capture")
            else:
                _print(table, most, slowest, verbose, meanwhile, origin)
                if both:
                    say(f"tcpkmon requests: both ends of {both} connection{'s' * (both != 1)} are "
                        "in the capture: the client's view is shown (the server's: --where "
                        "'request.side == \"server\"')")  # fmt: skip
    return code


def _meanwhile(
    table: Table, whole: Table, slowest: int, log: Sequence[Path]
) -> dict[int, list[str]]:
    """What servers did while the slowest of these exchanges waited for them, by row. whole: all of
    the capture. log: a log with events of sched, or nothing."""
    from tcpkmon.formats.analysis.exchanges import (
        asked_meanwhile,
        did_meanwhile,
        served,
        slowest_of,
    )

    rows = slowest_of(table, slowest)
    at = served({name: values[rows] for name, values in table.items()}, whole)
    rows, at = rows[at >= 0], at[at >= 0]
    answered = {name: values[at] for name, values in whole.items()}
    found = [asked_meanwhile(answered, whole, slowest)]
    found += [did_meanwhile(log, answered, slowest)] if log else []
    return {row: [told[one] for told in found if one in told]
            for one, row in enumerate(rows.tolist())}  # fmt: skip


def _check(outputs: tuple[Path, ...], files: tuple[Path, ...], force: bool) -> None:
    for path in outputs:
        refuse_input(path, files, force)
        if path.suffix.lower() not in _TABLES:
            from tcpkmon.formats.drawing import check_output

            check_output(path)


def _write(table: Table, path: Path, force: bool) -> None:
    if path.suffix.lower() in _TABLES:
        from tcpkmon.formats.analysis.exchanges import as_arrow
        from tcpkmon.formats.analysis.why import write
        from tcpkmon.formats.base.table_text import form_of

        write("requests", table, form_of(None, path), path, force, make=as_arrow)
    else:
        from tcpkmon.formats.analysis.exchanges import draw_requests

        draw_requests(table, path, force)


def _print(
    table: Table, most: int, slowest: int, verbose: bool, meanwhile: dict[int, list[str]],
    origin: int,
) -> None:
    import numpy as np

    from tcpkmon.formats.analysis.exchanges import head, slowest_of, story, summarize
    from tcpkmon.formats.analysis.exchanges.story import ends
    from tcpkmon.formats.analysis.why import row_of

    if not len(table["conn_id"]):
        click.echo("no exchange: nobody sent anything, or only one side did")
        return
    for side in ("client", "server"):
        at = np.flatnonzero(table["side"] == side)
        if len(at):
            summary = summarize(table, at)
            click.echo(f"all, as {side}: {head(summary, side)}")
            _print_parts(summary, side)
    ids, first = np.unique(table["conn_id"], return_index=True)
    spent = np.zeros(len(ids))
    np.add.at(spent, np.searchsorted(ids, table["conn_id"]), np.nan_to_num(
        table["total_ns"].astype(np.float64)))  # fmt: skip
    order = np.argsort(-spent, kind="stable")
    for one in order[:most].tolist():
        at = np.flatnonzero(table["conn_id"] == ids[one])
        row = row_of(table, int(first[one]))
        who = f" ({row['comm']})" if row["comm"] else ""
        summary = summarize(table, at)
        text = f"{ends(row)}, {row['side']}{who}: {head(summary, row['side'])}"
        click.echo(for_terminal(text))
        if verbose:
            _print_parts(summary, row["side"])
    if len(order) > most:
        click.echo(f"{len(order) - most} more ends of connections: -n shows more")
    slow = slowest_of(table, slowest)
    if len(slow):
        click.echo("the slowest:")
        for at in slow.tolist():
            click.echo(for_terminal(f"    {story(row_of(table, at), origin)}"))
            for told in meanwhile.get(at, ()):
                click.echo(for_terminal(f"        {told}"))
    if table["pipelined"].any():
        count = len(np.unique(table["conn_id"][table["pipelined"]]))
        click.echo(f"pipelined: on {count} connection{'s' * (count != 1)} several requests were "
                   "under way at once (as in HTTP/2), or an answer began before all of its request "
                   "was read; single ones cannot be told apart: an exchange there may be "
                   "several, or a part")  # fmt: skip


def _print_parts(summary: Any, side: str) -> None:
    from tcpkmon.formats.analysis.exchanges.story import NAMES
    from tcpkmon.formats.analysis.exchanges.summary import LEAST, SHARES
    from tcpkmon.formats.analysis.why.words import human_time

    if not summary.measured:
        return
    some = SHARES if summary.measured >= LEAST else ()
    of = "" if summary.measured == summary.count else f"of {summary.measured} that are known whole"
    lines = make_table((of, *(f"p{one}" for one in some), "max", "share"), left=of)
    for name, part in summary.parts.items():
        if name in NAMES[side]:
            share = f"{100 * summary.share[name]:.0f} %" if name in summary.share else ""
            times = (human_time(ns / 1000) for ns in (*part.percentiles, part.most))
            lines.add_row(f"  {NAMES[side][name]}", *times, share)
    make_console().print(lines)
