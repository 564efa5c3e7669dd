# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon why FILE...`: what limited each connection, with evidence, and what would help."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.text import counted, endpoint
from tcpkmon.formats.commands.choosing import Chooser, choosing_options
from tcpkmon.formats.commands.connections import report
from tcpkmon.formats.commands.shared import files_argument, make_console, make_table, output_option

if TYPE_CHECKING:
    from tcpkmon.formats.analysis.explaining import Explained
    from tcpkmon.formats.analysis.why import Connection

_INTERVALS_SHOWN = 40
_LINE = "\n    "
_NUMBERS = re.compile(r"\S*\d\S*( (%|[kMG]?B|[um]?s|[kMG]?bit/s)(?![A-Za-z]))?")


@click.command("why")
@files_argument
@choosing_options
@click.option("--sort", metavar="COL", default="",
              help="Sort by this column of tcpkmon connections; -COL: the largest first. Default: "
              "most bytes first.")
@click.option("-n", "most", type=click.IntRange(1), default=20, show_default=True, metavar="N",
              help="The first N connections.")
@click.option("-v", "--verbose", is_flag=True,
              help="Also the intervals: from when until when each limit held, and the values that "
              "decided.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: an object with `connections`.")
@click.option("--by", type=click.Choice(["unit", "container", "pod", "uid"]),
              help="Sums for each unit, container, pod or user (its number) in place of verdicts.")
@click.option("--intervals", is_flag=True,
              help="The table of intervals, as a table or a file (-o), in place of verdicts.")
@output_option("With --intervals: write to this file; its ending names the format: .parquet, "
               ".arrow, .csv, .json.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def command(
    files: tuple[Path, ...],
    ports: tuple[str, ...],
    where: str | None,
    sort: str,
    most: int,
    verbose: bool,
    as_json: bool,
    by: str | None,
    intervals: bool,
    output: Path | None,
    force: bool,
) -> int:
    """Say what limited each connection of a capture of the schema tcp, most important first.

    FILE is a PSC file, a Klogger log or a folder of them, with at least the default columns.
    Segments of a capture are read as one, other files one after the other. Exit code 3: records
    were lost, or the end is unknown; what that leaves uncertain is named.
    """
    import numpy as np

    from tcpkmon.formats.analysis.causes import Finder
    from tcpkmon.formats.analysis.explaining import Explaining, by_bytes
    from tcpkmon.formats.analysis.why import (
        Source,
        choose,
        cross_check,
        has_waits,
        row_of,
        rows_of,
        tables,
        tell_wholes,
        together,
        waits,
    )
    from tcpkmon.formats.registry import group

    chosen = Chooser("why", files, ports, where)
    if intervals:
        if sort:
            raise UsageError("--sort is for connections", "leave it out with --intervals")
        return _write_intervals(files, chosen, output, as_json, force)
    if output is not None:
        raise UsageError("-o is for --intervals", "tcpkmon connections -o writes connections")
    if by is not None:
        return _tell_owners(files, chosen, by, most, as_json)

    told = _Listed("connections")
    above: list[dict[str, Any]] = []
    codes, captures = [0], group(files)
    for paths in captures:
        with Source(*paths) as source:
            resolved = has_waits(source)
            finder = Finder(source)
            table, runs = tables(source, verbose or resolved, finder)
            codes.append(report(source, "why", paths))
        causes, whole = finder.causes(), table
        table = choose(chosen(table), sort=sort)
        if paths is captures[-1]:
            chosen.check()
        found = waits(paths, table, runs) if resolved else []
        lines: dict[int, list[str]] = {}
        for wait in found:
            lines.setdefault(wait.conn_id, []).append(str(wait))
        order = np.arange(len(table["conn_id"])) if sort else by_bytes(table)
        said = table["conn_id"][order if as_json else order[:most]]
        for whole_row, texts in tell_wholes(table):
            (plain,) = rows_of({name: np.array([one]) for name, one in whole_row.items()})
            above.append(plain | {"verdict": texts})
            if not as_json:
                click.echo("\n    ".join(map(for_terminal, texts)))
        if not (as_json or ports or where):
            for cause in causes:
                if cause.conn_id is None:
                    ends = endpoint(cause.laddr, cause.lport)
                    click.echo(for_terminal(f"{ends}: {cause.evidence}"))
        explaining = Explaining(paths, whole, said, causes)
        if as_json:
            for one, values in zip(explaining.of(table, order), rows_of(table, order), strict=True):
                told.add(_as_dict(one) | {**values, "waits": lines.get(values["conn_id"], [])})
            continue
        blocks: dict[object, list[_Block]] = {}
        for at, one in zip(order[:most].tolist(), explaining.of(table, order[:most]), strict=True):
            row = one.connection
            block = _Block(row, [*one.sentences, *lines.get(row.conn_id, [])])
            blocks.setdefault(at if verbose else block.kind, []).append(block)
            if verbose and (check := cross_check(row_of(table, at))):
                block.texts.append(check)
        for same in blocks.values():
            _print(same, runs if verbose else {})
        if len(order) > most:
            click.echo(for_terminal(together(table, len(order) - most)))
        if not len(order):
            click.echo("no such connection in this capture" if ports or where else
                       "no connection in this capture")  # fmt: skip
    if as_json:
        told.end({"mptcp": above} if above else {})
    return max(codes)


class _Listed:
    """Prints {key: [...]} as json.dumps(..., indent=2) does, each item when it comes: a million of
    them would take 8 GB."""

    def __init__(self, key: str) -> None:
        self._key, self._count = key, 0

    def add(self, item: dict[str, Any]) -> None:
        begin = "," if self._count else f'{{\n  "{self._key}": ['
        sys.stdout.write(f"{begin}\n    {_indented(item, _LINE)}")
        self._count += 1

    def end(self, more: dict[str, Any]) -> None:
        """Print the end. more: what the object has behind the list."""
        if not self._count:
            click.echo(json.dumps({self._key: [], **more}, indent=2))
            return
        click.echo(f"\n  ],{json.dumps(more, indent=2)[1:]}" if more else "\n  ]\n}")


def _indented(value: dict[str, Any] | list[Any], end: str) -> str:
    """json.dumps(value, indent=2) of what is not empty, behind the end of the line `end`.

    With an indent, json is Python's and ten times slower; else C, with any separator.
    """
    line, is_object = f"{end}  ", isinstance(value, dict)
    encode = _encoder(f",{line}")
    parts: list[str] = []
    flat: dict[Any, Any] = {}

    def tell() -> None:
        if flat:
            parts.append(encode(flat if is_object else [*flat.values()])[1:-1])
            flat.clear()

    for name, one in value.items() if isinstance(value, dict) else enumerate(value):
        if one and one.__class__ in (dict, list):
            tell()
            parts.append(f"{encode(name)}: " * is_object + _indented(one, line))
        else:
            flat[name] = one
    tell()
    begin, close = "{}" if is_object else "[]"
    return f"{begin}{line}{f',{line}'.join(parts)}{end}{close}"


@functools.cache
def _encoder(separator: str) -> Callable[[Any], str]:
    return json.JSONEncoder(separators=(separator, ": ")).encode


def _tell_owners(
    files: tuple[Path, ...], chosen: Chooser, by: str, most: int, as_json: bool
) -> int:
    """Print sums for each owner of each capture."""
    from tcpkmon.formats.analysis.why import Source, by_owner, tables
    from tcpkmon.formats.analysis.why.words import human_bytes
    from tcpkmon.formats.registry import group

    told, codes = [], [0]
    for paths in group(files):
        with Source(*paths) as source:
            table, _ = tables(source, with_intervals=False)
            codes.append(report(source, "why", paths))
        told += by_owner(chosen(table), by)
    chosen.check()
    if as_json:
        click.echo(json.dumps({"owners": told}, indent=2))
        return max(codes)
    for row in told[:most]:
        limit = f", most of the time {row['main_limit']} ({row['main_share']:.0%})"
        click.echo(for_terminal(
            f"{row[by] or 'of none, or not known'}: {counted(row['connections'], 'connection')}, "
            f"{human_bytes(row['bytes_sent'])} sent, {human_bytes(row['bytes_received'])} "
            f"received, {row['retransmissions']:,} retransmissions"
            f"{limit if row['main_limit'] else ''}"
        ))  # fmt: skip
    return max(codes)


def _write_intervals(
    files: tuple[Path, ...], chosen: Chooser, output: Path | None, as_json: bool, force: bool
) -> int:
    import numpy as np

    from tcpkmon.formats.analysis.why import Source, tables, write
    from tcpkmon.formats.base.table_text import form_of
    from tcpkmon.formats.registry import group

    if len(group(files)) > 1:
        raise UsageError("--intervals takes one capture", "write a file for each")
    form = form_of("json" if as_json else None, output)
    with Source(*files) as source:
        connections, table = tables(source, with_intervals=True)
        code = report(source, "why", files)
    kept = np.isin(table["conn_id"], chosen(connections)["conn_id"])
    chosen.check()
    table = {name: values[kept] for name, values in table.items()}
    write("intervals", table, form, output, force)
    return code


@dataclasses.dataclass
class _Block:
    """A connection, and what is said of it."""

    row: Connection
    texts: list[str]

    @property
    def kind(self) -> object:
        """What equal connections of one server have in common: its address and port, and what is
        said of them without its numbers."""
        row = self.row
        passive = row.role == "passive" or (row.role == "existing" and row.lport < row.rport)
        server = (row.laddr, row.lport) if passive else (row.raddr, row.rport)
        return passive, server, row.sends, *(_NUMBERS.sub("#", text) for text in self.texts)


def _print(same: list[_Block], runs: dict[str, Any]) -> None:
    """The one with most bytes, and how many more are as it is."""
    from tcpkmon.formats.analysis.why import head
    from tcpkmon.formats.analysis.why.words import human_bytes, human_time

    row = same[0].row
    began = f", since {row.start}" if row.start else ""
    click.echo(for_terminal(f"{head(row)}{began}"))
    for text in same[0].texts:
        click.echo(for_terminal(f"    {text}"))
    if others := [block.row for block in same[1:]]:
        times = sorted(1e6 * one.duration_s for one in others)
        nbytes = sum(max(one.bytes_acked, one.bytes_received) for one in others)
        click.echo(
            f"    and {len(others)} more of the same server of which the same is true, with other "
            f"numbers: {human_time(times[0])} to {human_time(times[-1])}, {human_bytes(nbytes)} "
            "in all; -v shows each"
        )
    if runs:
        _print_intervals(row, runs)


def _print_intervals(row: Connection, runs: dict[str, Any]) -> None:
    import numpy as np

    table = make_table(("from s", "to s", "limit", "acked", "cwnd", "in flight", "window", "unsent",
                        "srtt us", "records"), left="limit")  # fmt: skip
    mine = np.flatnonzero(runs["conn_id"] == row.conn_id)
    for at in mine[:_INTERVALS_SHOWN].tolist():
        one = {name: values[at] for name, values in runs.items()}
        table.add_row(
            f"{(int(one['start_ns']) - row.start_ns) / 1e9:.6f}",
            f"{(int(one['end_ns']) - row.start_ns) / 1e9:.6f}",
            one["limit"] + ("" if one["certain"] else " ?"),
            *(str(one[name]) for name in ("bytes_acked", "cwnd_end", "inflight_end", "snd_wnd_end",
                                          "notsent_end", "srtt_end_us", "records")),
        )  # fmt: skip
    make_console().print(table)
    if len(mine) > _INTERVALS_SHOWN:
        click.echo(f"    and {len(mine) - _INTERVALS_SHOWN} more intervals")


def _as_dict(one: Explained) -> dict[str, Any]:
    row = one.connection
    found = {name: value for name, value in vars(row).items() if name != "sysctl"}
    found |= {"duration_s": row.duration_s, "goodput": row.goodput}
    causes = [dataclasses.asdict(cause) for cause in one.causes]
    return found | {"verdict": one.sentences, "causes": causes}
