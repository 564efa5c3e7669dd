# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon verify FILE...`: proves from files alone what is in them and what is missing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from tcpkmon.formats.base.cli import use_colours
from tcpkmon.formats.base.errors import FileError

if TYPE_CHECKING:
    from tcpkmon.formats.verify import Report

_BY_WEIGHT = (5, 1, 3)


@click.command("verify")
@click.argument("files", metavar="FILE...", nargs=-1, required=True,
                type=click.Path(readable=False))
@click.option("-v", "--verbose", is_flag=True,
              help="Also what hardly matters: that process 1 had a CPU for less than a thousandth "
              "of the time, on kernels that run no program then.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(files: tuple[str, ...], verbose: bool, as_json: bool) -> int:
    """Recompute the loss ledger of captures and Klogger logs from the files alone.

    Of a folder of Klogger logs each is checked, and then all of them together.

    Exit code 0: nothing was lost, and that is proven. 3: something was lost and all of it is
    accounted for, or the end of the file is unknown after a crash. 5: the file does not add up or
    is damaged. Of several files the worst counts (1, a file that cannot be read, before 3).
    """
    from tcpkmon.formats.registry import format_of
    from tcpkmon.formats.verify import Report

    reports: list[Report] = []
    for path in files:
        try:
            found = format_of(path).verify(path)
        except FileError as error:
            if len(files) == 1:
                raise
            found = [Report(path, error=error.message, error_exit=error.exit_code)]
        for report in found:
            reports.append(report)
            if not as_json:
                _print(report, verbose, first=len(reports) == 1)
    if as_json:
        listed = [report.as_json() for report in reports]
        click.echo(json.dumps({"files": listed, "exit_code": _worst(reports)}, indent=2))
    return _worst(reports)


def _print(report: Report, verbose: bool, first: bool) -> None:
    from tcpkmon.formats.verify import make_console, print_report

    if not first:
        click.echo()
    if verbose:
        report.details.clear()
    print_report(make_console(use_colours()), report)


def _worst(reports: list[Report]) -> int:
    codes = {report.exit_code for report in reports}
    return next((code for code in _BY_WEIGHT if code in codes), 0)
