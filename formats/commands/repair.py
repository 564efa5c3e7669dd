# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon repair FILE -o NEW`: makes a clean capture file from a damaged one."""

from __future__ import annotations

import click

from tcpkmon.formats.base.cli import use_colours


@click.command("repair")
@click.argument("file", type=click.Path(readable=False))
@click.option("-o", "--output", metavar="NEW", required=True, type=click.Path(readable=False),
              help="The file to write; it must not be there yet.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing when all went well.")
def command(file: str, output: str, quiet: bool) -> int:
    """Make a clean capture NEW from a damaged FILE, which is never touched.

    Entries that are cut short or make no sense are left out, what is missing is counted in LOSS
    entries, and the end is marked with reason `error`. Of a Klogger log all dumps before the first
    that is cut or damaged are kept. Prints what `tcpkmon verify` says of NEW.
    Exit code 0: NEW is sound (it may have losses); 5: it still does not add up, or the header of
    FILE cannot be read.
    """
    from tcpkmon.formats.registry import format_of
    from tcpkmon.formats.verify import DOES_NOT_ADD_UP, make_console, print_report

    summary, report = format_of(file).repair(file, output)
    sound = report.exit_code != DOES_NOT_ADD_UP
    if not (quiet and sound):
        click.echo(summary, err=True)
        print_report(make_console(use_colours()), report)
    return 0 if sound else DOES_NOT_ADD_UP
