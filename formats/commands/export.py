# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon export FILE -o OUT`: the snapshots of a PSC file for analysis elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from formats.base.cli import say
from formats.base.errors import DamagedError, LossError, UsageError

_FORMS = ("parquet", "arrow", "csv", "json")


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", metavar="OUT", type=click.Path(path_type=Path),
              help="The file to write; stdout without it (csv and json).")
@click.option("--format", "form", type=click.Choice(_FORMS),
              help="What to write; by default what the ending of OUT says, else csv.")
@click.option("--columns", metavar="NAME,...", help="Only these columns.")
@click.option("--sort", type=click.Choice(["connection", "seq"]),
              help="connection: rows of a connection together in each row group, which takes a "
              "third of the room (default for parquet); seq: as in the file.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def command(
    file: Path,
    output: Path | None,
    form: str | None,
    columns: str | None,
    sort: str | None,
    force: bool,
) -> int:
    """Export the snapshots of a capture for analysis elsewhere.

    Enumerated values, addresses and names become text. Exit code 3: the capture has losses, or its
    end is missing; 5: it is damaged. What is good is exported in any case.
    """
    import formats
    from formats.export.columns import ENDINGS, Export, import_pyarrow, write
    from formats.pmgraph.output import create_file

    if form is None:
        form = ENDINGS.get(output.suffix.lower(), "") if output is not None else "csv"
        if not form:
            raise UsageError(f"{output}: its ending is of no known format", "add --format parquet")
    if form in {"parquet", "arrow"}:
        if output is None:
            raise UsageError(f"{form} needs -o", "name a file")
        import_pyarrow()
    names = [n.strip() for n in columns.split(",") if n.strip()] if columns is not None else None
    if names is not None and not names:
        raise UsageError("--columns names none", "tcpkmon columns lists them")
    by_connection = (sort or ("connection" if form == "parquet" else "seq")) == "connection"
    with formats.open(file) as capture:
        export = Export(capture, names, by_connection)
        if output is None:
            write(export, form, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            if output.exists() and output.samefile(file):
                raise UsageError(f"-o {output} is the capture itself", "choose another name")
            with create_file(output, force) as out:
                write(export, form, out)
        for warning in capture.warnings:
            say(f"tcpkmon export: {file}: {warning}")
        if capture.lost:
            say(f"tcpkmon export: {file}: {capture.lost:,} records were lost")
        if not capture.complete:
            say(f"tcpkmon export: {file}: the end is missing; what was lost there is unknown")
        if capture.damaged:
            return DamagedError.exit_code
        return LossError.exit_code if capture.lost or not capture.complete else 0
