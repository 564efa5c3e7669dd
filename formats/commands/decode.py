# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon decode FILE...`: Klogger logs as an array of Perl hashes, JSON lines, CSV or Parquet."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from tcpkmon.formats.base.cli import CLOCKS
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.files import already_there
from tcpkmon.formats.commands.proof import tell_missing, worst
from tcpkmon.formats.commands.shared import files_argument, output_option, refuse_input

FORMATS = ("perl", "json", "csv", "spreadsheet", "parquet")


@click.command("decode")
@files_argument
@click.option("--format", "form", type=click.Choice(FORMATS), default="perl", show_default=True,
              help="An array of Perl hashes, JSON lines, one CSV table (spreadsheet: one in which "
              "no text is a formula), or a Parquet file for each event.")
@click.option("--merge", is_flag=True,
              help="Put the logs of several CPUs in time order, instead of one after the other.")
@output_option("Write FILE, or for parquet into the folder FILE (one event: into FILE.parquet).",
               "FILE")
@click.option("--force", is_flag=True, help="Let -o overwrite files.")
@click.option("--event", "names", metavar="NAME,...", multiple=True,
              help="Only these events; more with more --event.")
@click.option("--since", metavar="TIME", help="Only records of this time or later.")
@click.option("--until", metavar="TIME", help="Only records of this time or earlier.")
@click.option("--where", "conditions", metavar="FIELD=VALUE", multiple=True,
              help="Only records whose field has this value; also !=, <, <=, > and >=, and "
              "conditions such as 'pid == 5 or pid == 7'. Of several all must hold. Events that "
              "lack the field are left out.")
@click.option("--time", "clock", type=click.Choice(CLOCKS), default="mono", show_default=True,
              help="How times are written: in seconds since 1970, as UTC, in seconds since logging "
              "began, or as CLOCK_MONOTONIC in ns.")
def command(files: tuple[Path, ...], **asked: Any) -> int:
    """Decode Klogger logs (kernlog.dump.cpuN) and print their events.

    By default as the array of Perl hashes that Klogger's decoder printed, which Perl reads back by
    `do`. TIME is 2026-01-31T12:00:00 (UTC), or a number as --time writes it. What is lost or
    damaged is reported on stderr, and everything that is good is decoded. Exit code 3: events were
    lost, or the end of a log is unknown after a crash; 5: a log is damaged.
    """
    from tcpkmon.formats.export.forms import FORMS
    from tcpkmon.formats.klogger.choose import Choice, parse_condition
    from tcpkmon.formats.klogger.clock import parse_time
    from tcpkmon.formats.klogger.logs import Logs
    from tcpkmon.formats.registry import open_sources

    clock = asked["clock"]
    names = tuple(name.strip() for text in asked["names"] for name in text.split(","))
    choice = Choice(
        tuple(name for name in names if name) if names else None,
        parse_time(asked["since"], clock) if asked["since"] else None,
        parse_time(asked["until"], clock) if asked["until"] else None,
        tuple(parse_condition(text) for text in asked["conditions"]),
    )
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(one) for one in open_sources(*files)]
        logs = Logs(readers, choice, clock, asked["merge"])
        _check_output(files, asked["output"], asked["form"])
        FORMS[asked["form"]](logs, asked["output"], asked["force"])
        code = max(tell_missing("tcpkmon decode", reader) for reader in readers)
    return worst("tcpkmon decode", code, files)


def _check_output(files: tuple[Path, ...], output: Path | None, form: str) -> None:
    if output is None:
        if form == "parquet":
            raise UsageError("parquet needs -o", "name a folder; it gets a file for each event")
        return
    refuse_input(output, files, what="a log to be read")
    if output.is_symlink() and form != "parquet":
        raise already_there(output)
