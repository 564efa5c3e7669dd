# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon magnet-parse FILE`: the records of a MAGNeT file as a tab-delimited table."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from tcpkmon.formats.base.cli import CLOCKS
from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.commands.proof import tell_missing, worst
from tcpkmon.formats.commands.shared import PATH


@click.command("magnet-parse")
@click.argument("file", type=PATH)
@click.option("--time", "clock", type=click.Choice(CLOCKS), default="mono", show_default=True,
              help="How timestamps are written: as they are in the file, ns of CLOCK_MONOTONIC in "
              "those of tcpkmon; in seconds since 1970, as UTC, in seconds since the start.")
@click.option("--bits", type=click.Choice(["32", "64"]),
              help="Of a file without a header, which needs it: the width of its pointers.")
@click.option("--big-endian", is_flag=True,
              help="Of a file without a header: it comes from a big-endian machine.")
@click.option("--data", is_flag=True, help="Of a file without a header: its records have data.")
@click.option("--event", "names", metavar="CODE=NAME", multiple=True,
              help="Of a file without a header: the name of an event, as 3=MAGNET_IP_SEND. With "
              "--data it says what the data is: struct magnet_tcp for SOCK and TCP, magnet_ip for "
              "IP and DEV.")
def command(
    file: Path,
    clock: str,
    bits: str | None,
    big_endian: bool,
    data: bool,
    names: tuple[str, ...],
) -> int:
    """Print a MAGNeT file as a table: a line of names, then one for each record.

    Columns are separated by tabs; those that a record does not have hold a minus sign. Any byte
    order and pointer width is read. A file without a header (of the original MAGNeT) is described
    by options. Exit code 3: events were lost, or the end of the file is unknown; 5: it is damaged.
    """
    from tcpkmon.formats.base.files import InputFile
    from tcpkmon.formats.klogger.logs import Logs
    from tcpkmon.formats.magnet.layout import NATIVE, Layout
    from tcpkmon.formats.magnet.parse import TabStyle, kinds_of
    from tcpkmon.formats.magnet.reader import open_reader
    from tcpkmon.formats.registry import format_of

    found = format_of(file)
    if file.is_file():
        InputFile(file).close()  # else one that may not be read would be of an unknown layout
    if found.name == "klogger":
        raise FileError(f"{file} is {found.title}, not a MAGNeT file", f"use {found.shown_by}")
    if found.name == "magnet":
        if bits or big_endian or data or names:
            raise UsageError(
                f"{file} has a header, which describes it",
                "leave out --bits, --big-endian, --data and --event",
            )
        layout = None
    elif not bits and file.is_file():
        raise UsageError(
            f"{file} has no header of tcpkmon",
            "give the layout of another program's file: --bits 64 or 32, --big-endian, --data",
        )
    else:
        layout = Layout(">" if big_endian else "<", int(bits or 64), data)
    chosen = kinds_of(_parse(text) for text in names) if layout else ()
    with open_reader(file, layout, chosen) as reader:
        if layout is not None:
            reader.check_size()
        logs = Logs([reader], clock=clock)
        out = sys.stdout.buffer
        logs.write_style(TabStyle(clock, NATIVE[reader.file.layout.data]), out)
        out.flush()
        code = tell_missing("tcpkmon magnet-parse", reader)
    return worst("tcpkmon magnet-parse", code, [file]) if layout is None else code


def _parse(text: str) -> tuple[int, str]:
    """CODE=NAME. UsageError."""
    match = re.fullmatch(r"(\d{1,3})=(\w{1,64})", text, re.ASCII)
    if match is None or int(match[1]) > 255:
        raise UsageError(f"no event: {text!r}", "write CODE=NAME, as 3=MAGNET_IP_SEND; 0 to 255")
    return int(match[1]), match[2]
