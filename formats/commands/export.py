# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon export FILE... -o OUT`: the records of a capture for analysis elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.reader import complaints_of
from tcpkmon.formats.commands.proof import exit_code
from tcpkmon.formats.commands.shared import files_argument, output_option, refuse_input, split_names
from tcpkmon.formats.export.forms import ENDINGS, FORMS, TABLES, WHOLE


@click.command("export")
@files_argument
@output_option("The file to write; stdout without it (not for tables, which are parquet and "
               "arrow). For tables of a Klogger log, a folder that gets a file for each event.")
@click.option("--format", "form", type=click.Choice([*FORMS, *WHOLE]),
              help="The format; by default that of the ending of OUT, else csv. spreadsheet is CSV "
              "in which text that a spreadsheet program takes for a formula begins with '. perl is "
              "for Klogger logs; psc1 is a PSC file as the report of 2000 has it, without what "
              "tcpkmon added. magnet is a MAGNeT file of a Klogger log. perfetto (.pftrace, "
              ".perfetto-trace) is a timeline of the host for viewers of traces. pcapng is for "
              "Wireshark: packets rebuilt from snapshots of the schema tcp, with the connection's "
              "state.")
@click.option("--columns", metavar="NAME,...", help="Only these columns.")
@click.option("--sort", type=click.Choice(["connection", "seq"]),
              help="connection: rows of a connection together in each row group, which needs "
              "a third of the space (default for parquet); seq: as in the file.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def command(
    files: tuple[Path, ...],
    output: Path | None,
    form: str | None,
    columns: str | None,
    sort: str | None,
    force: bool,
) -> int:
    """Export the snapshots of a capture, or the events of a Klogger log, for analysis elsewhere.

    Several FILEs are segments of one capture. Enumerated values, addresses and names become text.
    A folder of Klogger logs is exported in the order of time; tcpkmon decode can choose among the
    events of logs. Exit code 3: the capture has losses, or its end is missing; 5: it is damaged.
    What is good is exported in any case.
    """
    import tcpkmon
    from tcpkmon.formats.base.arrow import import_pyarrow

    if form is None:
        form = ENDINGS.get(output.suffix.lower(), "") if output is not None else "csv"
        if not form:
            raise UsageError(f"{output}: its ending is of no known format", "add --format parquet")
    if form in TABLES:
        if output is None:
            raise UsageError(f"{form} needs -o", "name a file")
        import_pyarrow()
    names = split_names(columns) if columns is not None else None
    if names is not None and not names:
        raise UsageError("--columns names none", "tcpkmon columns lists them")
    file = files[0]
    if form in WHOLE and (names is not None or sort is not None):
        raise UsageError(
            f"{form} has columns and an order of its own", "leave out --columns and --sort"
        )
    with tcpkmon.open(*files) as reader:
        refuse_input(output, files)
        if form in WHOLE:
            WHOLE[form](reader, output, force)
        else:
            FORMS[form](reader.for_export(form, names, sort), output, force)
        for text in complaints_of(reader):
            say(f"tcpkmon export: {file}: {text}")
        return exit_code("tcpkmon export", reader, files)
