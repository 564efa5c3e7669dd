# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon report FILE... -o report.html`: a capture as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.base.reader import complaints_of
from tcpkmon.formats.commands.proof import exit_code
from tcpkmon.formats.commands.shared import files_argument, output_option, refuse_input


@click.command("report")
@files_argument
@output_option("Write to this file.", required=True)
@click.option("-n", "most", type=click.IntRange(1, 100), default=10, show_default=True, metavar="N",
              help="Verdicts and graphs of the N connections with the most bytes.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def command(files: tuple[Path, ...], output: Path, most: int, force: bool) -> int:
    """Write a capture as one HTML file that opens without network.

    FILE is a capture of any format; segments of one are read as one. The page has verdicts, proof
    of completeness, a table of connections, linked graphs and settings. Long connections are
    thinned to what pixels show, and the page says so. Exit code 3: records were lost, or the end is
    unknown; 5: a capture is damaged.
    """
    from tcpkmon.formats.registry import group, open_files
    from tcpkmon.formats.report import collect, make_page

    refuse_input(output, files, force)
    if len(group(files)) > 1:
        raise UsageError("a report is of one capture", "write a file for each")
    with open_files(*files) as reader:
        page = make_page(collect(files, reader, most))
        for text in complaints_of(reader):
            say(f"tcpkmon report: {for_terminal(str(reader.path))}: {for_terminal(text)}")
        code = exit_code("tcpkmon report", reader, files)
    with create_file(output, force) as out:
        out.write(page.encode("utf-8", "backslashreplace"))
    return code
