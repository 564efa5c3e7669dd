# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon repair FILE -o NEW`: makes a clean capture file from a damaged one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from formats.base.cli import use_colours

if TYPE_CHECKING:
    from formats.verify.report import Report


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
    entries, and the end is marked with reason `error`. Of a Klogger log all dumps before the first
    that is cut or damaged are kept. Prints what `tcpkmon verify` says of NEW.
    Exit code 0: NEW is sound (it may have losses); 5: it still does not add up, or the header of
    FILE cannot be read.
    """
    from formats.verify.report import DOES_NOT_ADD_UP
    from formats.verify.table import make_console, print_report

    summary, report = _repair(file, output)
    sound = report.exit_code != DOES_NOT_ADD_UP
    if not (quiet and sound):
        click.echo(summary, err=True)
        print_report(make_console(use_colours()), report)
    return 0 if sound else DOES_NOT_ADD_UP


def _repair(file: str, output: str) -> tuple[str, Report]:
    """What was done, for a person, and what verify says of the new file."""
    from formats.verify.log_structure import is_log

    if is_log(file):
        from formats.verify.log_repair import repair_log

        log = repair_log(file, output)
        return (
            f"{log.kept} dumps kept, {log.dropped} left out, {log.cut_bytes} bytes cut off"
        ), log.report
    from formats.verify.repair import repair_file

    repair = repair_file(file, output)
    return (
        f"{repair.kept} entries kept, {repair.dropped} left out, {repair.missing} sequence "
        f"number(s) newly counted as lost, {repair.cut_bytes} bytes cut off"
    ), repair.report
