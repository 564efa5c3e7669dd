# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon doctor: what this machine can do, and what to install for more."""

from __future__ import annotations

import json
import sys

import click
from rich.console import Console
from rich.table import Table

from tcpkmon.collector.commands.doctor_checks import Report, examine
from tcpkmon.formats.base.errors import KernelError, PrivilegeError


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(as_json: bool) -> int:
    """Say what can be captured on this machine; exit with 4 if nothing can.

    It compiles what collect needs by default, so that the first capture starts at once.
    """
    report = examine()
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    else:
        show(report)
    if not report.is_root:
        return PrivilegeError.exit_code
    return 0 if report.able else KernelError.exit_code


def show(report: Report) -> None:
    """Prints the report as tables on stdout."""
    console = Console(file=sys.stdout, markup=False, highlight=False,
                      width=None if sys.stdout.isatty() else 100)
    checks = Table(box=None, pad_edge=False, show_header=False)
    for check in report.checks:
        checks.add_row("ok" if check.good else "--", check.name, check.found)
        if not check.good and check.advice:
            checks.add_row("", "", check.advice)
    console.print(checks)
    if report.locations:
        console.print()
        table = Table(box=None, pad_edge=False)
        for heading in ("location", "attached as"):
            table.add_column(heading)
        for name, how in report.locations.items():
            table.add_row(name, how or "-- " + report.missing.get(name, "not offered here"))
        console.print(table)
    if report.absent:
        console.print("\ncolumns absent on this kernel: " + ", ".join(report.absent))
    if report.is_root:
        console.print(f"\ntcpkmon {'can' if report.able else 'cannot'} capture here")
    else:
        console.print("\nonly root can capture, and see what can be captured; run: "
                      "sudo tcpkmon doctor")  # fmt: skip
