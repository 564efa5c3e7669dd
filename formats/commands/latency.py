# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon latency FILE...`: where the time of each byte went, layer by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.ports import find_missing, parse_connection
from tcpkmon.formats.commands.choosing import ports_option
from tcpkmon.formats.commands.proof import tell_problems
from tcpkmon.formats.commands.shared import PATH, files_argument, make_console, refuse_input

if TYPE_CHECKING:
    from tcpkmon.formats.analysis.latency import Latency, Summary

_TABLE = ".parquet"


@click.command("latency")
@files_argument
@ports_option
@click.option(
    "--most",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    metavar="N",
    help="Print the N flows with the most bytes.",
)
@click.option(
    "--slowest",
    type=click.IntRange(0, 100),
    default=3,
    show_default=True,
    metavar="N",
    help="Tell of the N slowest writes of each flow.",
)
@click.option("--json", "as_json", is_flag=True, help="All flows as JSON, times in ns.")
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FILE",
    type=PATH,
    help="Draw a picture (.png, .svg, .pdf), or write a row for each byte range "
    "(.parquet). Also several.",
)
@click.option("--force", is_flag=True, help="Let -o replace a file.")
def command(
    files: tuple[Path, ...],
    ports: tuple[str, ...],
    most: int,
    slowest: int,
    as_json: bool,
    outputs: tuple[Path, ...],
    force: bool,
) -> int:
    """Show where the time of each byte went, from Klogger logs of schema magnet.

    FILE is the folder of a capture (collect --schema magnet --using driver), or its
    kernlog.dump.cpuN. Percentiles count bytes. Bytes with a missing record are unknown: counted,
    never guessed. Exit code 3: events were lost, or the end of a log is unknown; 5: a log is
    damaged.
    """
    from tcpkmon.formats.analysis import open_log
    from tcpkmon.formats.analysis.latency import Latency, Summary, find_flows, make_report
    from tcpkmon.formats.analysis.latency import as_json as report_json

    pairs = [parse_connection(text) for text in ports]
    table = _check(files, outputs, force)
    with open_log(*files) as log:
        latency = Latency(log)
        survey = latency.survey
        wanted = find_flows(survey, pairs)
        ends = zip(survey.ends["lport"].tolist(), survey.ends["rport"].tolist(), strict=True)
        if note := find_missing(pairs, ends, ", ".join(map(str, files))):
            say(f"tcpkmon latency: {note}")
        summary = Summary(wanted, survey.begin_ns, slowest)
        _measure(latency, summary, table, force)
        report = make_report(latency, summary)
        code = tell_problems("tcpkmon latency", log, files)
    for path in outputs:
        if path != table:
            from tcpkmon.formats.analysis.latency import draw_latency

            draw_latency(report, path, force)
    if as_json:
        click.echo(json.dumps(report_json(report), indent=2))
    else:
        from tcpkmon.formats.analysis.latency import print_latency

        print_latency(report, make_console(), most)
    return code


def _check(files: tuple[Path, ...], outputs: tuple[Path, ...], force: bool) -> Path | None:
    """Raise UsageError for outputs that cannot be; returns the one that is a table."""
    tables = [path for path in outputs if path.suffix == _TABLE]
    if len(tables) > 1:
        raise UsageError(f"-o {tables[1]}: there is one table already", "name one .parquet file")
    for path in outputs:
        refuse_input(path, files, force, "a log to be read")
        if path not in tables:
            from tcpkmon.formats.drawing import check_output

            check_output(path)
    return tables[0] if tables else None


def _measure(latency: Latency, summary: Summary, table: Path | None, force: bool) -> None:
    if table is None:
        for some in latency:
            summary.add(some)
        return
    from tcpkmon.formats.analysis.latency import Ranges
    from tcpkmon.formats.export.forms import FORMS

    FORMS["parquet"](Ranges(latency, summary.add), table, force)
