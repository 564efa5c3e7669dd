# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon repair FILE -o NEW`: makes a clean capture file from a damaged one."""

from __future__ import annotations

import click

from formats.cli import use_colours


@click.command("repair")
@click.argument("file", type=click.Path())
@click.option(
    "-o",
    "--output",
    metavar="NEW",
    required=True,
    type=click.Path(),
    help="The file to write; it must not be there yet.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing when all went well.")
def command(file: str, output: str, quiet: bool) -> int:
    """Make a clean capture NEW from a damaged FILE, which is never touched.

    Entries that are cut short or make no sense are left out, what is missing is counted in LOSS
    entries, and the end is marked with reason `error`. Prints what `tcpkmon verify` says of NEW.
    Exit code 0: NEW is sound (it may have losses); 5: it still does not add up, or the header of
    FILE cannot be read.
    """
    from formats.verify.repair import repair_file
    from formats.verify.report import DOES_NOT_ADD_UP
    from formats.verify.table import make_console, print_report

    repair = repair_file(file, output)
    sound = repair.report.exit_code != DOES_NOT_ADD_UP
    if not (quiet and sound):
        click.echo(
            f"{repair.kept} entries kept, {repair.dropped} left out, {repair.missing} sequence "
            f"number(s) newly counted as lost, {repair.cut_bytes} bytes cut off",
            err=True,
        )
        print_report(make_console(use_colours()), repair.report)
    return 0 if sound else DOES_NOT_ADD_UP
