# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon connections FILE...`: a row for each connection, as a table or a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.reader import complaints_of
from tcpkmon.formats.commands.choosing import Chooser, choosing_options
from tcpkmon.formats.commands.proof import exit_code
from tcpkmon.formats.commands.shared import files_argument, form_option, output_option, split_names

if TYPE_CHECKING:
    from tcpkmon.formats.commands.proof import Known

_SHOWN = ("start", "laddr", "lport", "raddr", "rport", "role", "end_reason", "duration_us",
          "bytes_sent",
          "bytes_received", "goodput_mean", "retransmissions", "srtt_p50_us", "main_limit",
          "main_share", "proven")  # fmt: skip

_WHOLE = ("token", "peer_token", "laddr", "lport", "raddr", "rport", "role", "subflows", "conn_ids",
          "duration_us", "bytes_sent", "bytes_received", "reinjected", "timer_retrans",
          "proven")  # fmt: skip


@click.command("connections")
@files_argument
@choosing_options
@click.option("--sort", metavar="COL", default="",
              help="Sort by this column; -COL: the largest first. Default: as they were seen.")
@click.option("--columns", metavar="NAME,...",
              help="Only these columns; all: every one (default for files); help: list them.")
@click.option("--names", type=click.Choice(["tcptrace", "tstat"]),
              help="Name the columns as tcptrace -l or Tstat do, where those have them.")
@form_option
@output_option("Write to this file.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
@click.option("--mptcp", is_flag=True,
              help="In their place the MPTCP connections above them, a row each.")
def command(
    files: tuple[Path, ...],
    ports: tuple[str, ...],
    where: str | None,
    sort: str,
    columns: str | None,
    names: str | None,
    form: str | None,
    output: Path | None,
    force: bool,
    mptcp: bool,
) -> int:
    """List the connections of captures of the schema tcp, a row each.

    FILE is a PSC file, a Klogger log or a folder of them, with at least the default columns.
    Segments of a capture are read as one; with other files the first column is the file. Exit code
    3: records were lost, or the end is unknown; the columns lost_records and proven say where.
    """
    from tcpkmon.formats.analysis.why import choose, wholes, write
    from tcpkmon.formats.base.table_text import form_of

    if columns == "help":
        _list_columns()
        return 0
    form = form_of(form, output)
    chosen = Chooser("connections", files, ports, where)
    table, code = _read(files)
    table = chosen(table)
    chosen.check()
    if mptcp:
        table = wholes(table)
    wanted = split_names(columns or "")
    if not wanted and form == "table" and output is None:
        shown = _WHOLE if mptcp else ("file", *_SHOWN[:5], *_IF_TOLD[1:], *_SHOWN[5:])
        wanted = [name for name in shown if name in table and _is_told(name, table)]
    table = choose(table, [] if wanted == ["all"] else wanted, sort)
    write("mptcp" if mptcp else "connections", table, form, output, force, names or "")
    return code


def _read(files: tuple[Path, ...]) -> tuple[dict[str, Any], int]:
    """The connections of all captures; with several, the first column is the file."""
    import numpy as np

    from tcpkmon.formats.analysis.why import Source, connections
    from tcpkmon.formats.registry import group

    tables, code, captures = [], 0, group(files)
    for paths in captures:
        with Source(*paths) as source:
            table = connections(source)
            code = max(code, report(source, "connections", paths))
        if len(captures) > 1:
            table = {"file": np.full(len(table["conn_id"]), str(paths[0]), object), **table}
        tables.append(table)
    if len(tables) == 1:
        return tables[0], code
    return {name: np.concatenate([one[name] for one in tables]) for name in tables[0]}, code


_IF_TOLD = ("start", "comm", "unit", "container", "pod", "cgroup_path", "protocols")


def _is_told(name: str, table: dict[str, Any]) -> bool:
    """Whether a column says something: text that is null everywhere does not, nor does a path that
    the unit has."""
    if name == "cgroup_path":
        owners = zip(table[name], table["unit"], table["container"], strict=True)
        return any(path and not (unit or container) for path, unit, container in owners)
    return name not in _IF_TOLD or any(value is not None for value in table[name])


def report(source: Any, name: str, paths: Iterable[Path], known: Known | None = None) -> int:
    """Print what is wrong with what was read of these paths; returns the exit code. known: what
    verify says of them."""
    reader = source.reader
    for text in complaints_of(reader):
        say(f"tcpkmon {name}: {reader.path}: {for_terminal(text)}")
    return exit_code(f"tcpkmon {name}", reader, paths, known)


def _list_columns() -> None:
    from tcpkmon.formats.analysis.why import CONNECTIONS

    for column in CONNECTIONS:
        needs = f" (needs the column {column.needs})" if column.needs else ""
        click.echo(f"{column.name:22} {column.kind:6} {column.text}{needs}")
