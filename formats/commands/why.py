# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon why FILE...`: what limited each connection, with evidence, and what would help."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from formats.base.cli import say
from formats.base.errors import DamagedError, LossError
from formats.base.escape import for_terminal

if TYPE_CHECKING:
    from formats.analysis.why import Connection

_INTERVALS_SHOWN = 40


@click.command("why")
@click.argument("files", metavar="FILE...", nargs=-1, required=True,
                type=click.Path(path_type=Path))
@click.option("-n", "most", type=click.IntRange(1), default=20, show_default=True, metavar="N",
              help="The N connections with most bytes.")
@click.option("-v", "--verbose", is_flag=True,
              help="Also the intervals: from when until when each limit held, and the values that "
              "decided.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: an object with `connections`.")
def command(files: tuple[Path, ...], most: int, verbose: bool, as_json: bool) -> int:
    """Say what limited each connection of a capture of the schema tcp, most important first.

    FILE is a PSC file, a Klogger log or a folder of them, with at least the default columns. Exit
    code 3: records were lost, or the end is unknown; what that leaves uncertain is named.
    """
    from formats.analysis.why import Source, tally

    told: list[dict[str, Any]] = []
    codes = [0]
    for path in files:
        intervals: list[Any] = []
        with Source(path) as source:
            rows = tally(source.read(), intervals.append if verbose else None)
            codes.append(_report(source))
        chosen = sorted(rows, key=lambda row: -max(row.bytes_acked, row.bytes_received))
        if as_json:
            told += [_as_dict(row) for row in chosen]
            continue
        for row in chosen[:most]:
            _print(row, intervals)
        if len(chosen) > most:
            click.echo(f"{len(chosen) - most} connections with fewer bytes: -n shows more")
        if not rows:
            click.echo("no connection in this capture")
    if as_json:
        click.echo(json.dumps({"connections": told}, indent=2))
    return max(codes)


def _print(row: Connection, intervals: list[Any]) -> None:
    from formats.analysis.why import head, verdict

    click.echo(for_terminal(head(row)))
    for text in verdict(row):
        click.echo(for_terminal(f"    {text}"))
    if intervals:
        _print_intervals(row, intervals)


def _print_intervals(row: Connection, intervals: list[Any]) -> None:
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    from formats.analysis.why import LIMITS

    mine = np.concatenate([rows[rows["conn_id"] == row.conn_id] for rows in intervals])
    table = Table(box=None, pad_edge=False)
    for name in ("from s", "to s", "limit", "acked", "cwnd", "in flight", "window", "unsent",
                 "srtt us", "records"):  # fmt: skip
        table.add_column(name, justify="left" if name == "limit" else "right", no_wrap=True)
    for one in mine[:_INTERVALS_SHOWN]:
        unsure = "" if one["lost_records"] == 0 else " ?"
        table.add_row(
            f"{(one['start_ns'] - row.start_ns) / 1e9:.6f}",
            f"{(one['end_ns'] - row.start_ns) / 1e9:.6f}", LIMITS[one["limit"]] + unsure,
            *(str(one[name]) for name in ("bytes_acked", "cwnd_end", "inflight_end", "snd_wnd_end",
                                          "notsent_end", "srtt_end_us", "records")),
        )  # fmt: skip
    console = Console(file=sys.stdout, markup=False, highlight=False,
                      width=None if sys.stdout.isatty() else 110)  # fmt: skip
    console.print(table)
    if len(mine) > _INTERVALS_SHOWN:
        click.echo(f"    and {len(mine) - _INTERVALS_SHOWN} more intervals")


def _as_dict(row: Connection) -> dict[str, Any]:
    from formats.analysis.why import verdict

    found = dataclasses.asdict(row)
    return {**found, "duration_s": row.duration_s, "goodput": row.goodput, "verdict": verdict(row)}


def _report(source: Any) -> int:
    reader = source.reader
    for text in reader.warnings:
        say(f"tcpkmon why: {reader.path}: {for_terminal(text)}")
    if reader.damaged:
        return DamagedError.exit_code
    return LossError.exit_code if reader.lost or not reader.complete else 0
