# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon selftest: what captures on this kernel can be trusted with."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tcpkmon.formats.base.errors import TcpkmonError


@click.command("selftest")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Show each check, not only what is not ok.")
def command(as_json: bool, verbose: bool) -> int:
    """Hold captures of counted traffic against the kernel's and the applications' own counts.

    It makes two network namespaces, and connections in them with losses, resets and full windows.
    Captures of every location, filter, kind of rings and file format record them at once. The
    result is kept until the next boot, and its digest goes into the headers of later captures. Exit
    code 1: something is wrong.
    """
    from tcpkmon.collector.commands.selftest_captures import NOT_HERE
    from tcpkmon.collector.commands.selftest_checks import NOT_CAUSED, OK, UNPROVEN, WRONG, run
    from tcpkmon.collector.loader.selftest_result import Result

    progress = Console(stderr=True, highlight=False)
    with tempfile.TemporaryDirectory(prefix="tcpkmon-selftest-") as folder, progress.status(
        "selftest"
    ) as status:
        findings = run(Path(folder), lambda text: status.update(f"selftest: {text}"))
    result = Result.of([vars(one) for one in findings])
    result.keep()
    wrong = [one for one in findings if one.result == WRONG]
    if as_json:
        click.echo(json.dumps(result.as_dict(), indent=2))
        return TcpkmonError.exit_code if wrong else 0
    table = Table(box=None, pad_edge=False)
    for heading in ("check", "", "expected", "found", "result"):
        table.add_column(heading, overflow="fold")
    for one in findings:
        if verbose or one.result != OK:
            table.add_row(one.area, one.name, one.expected, one.found, one.result)
    out = Console(file=sys.stdout, markup=False, highlight=False,
                  width=None if sys.stdout.isatty() else 120)  # fmt: skip
    if table.row_count:
        out.print(table)
    parts = [
        f"{number} {what}"
        for what in (OK, WRONG, UNPROVEN, NOT_HERE, NOT_CAUSED)
        if (number := sum(one.result == what for one in findings))
    ]
    out.print(f"{result.kernel}: {', '.join(parts)}; digest {result.digest[:12]}")
    return TcpkmonError.exit_code if wrong else 0
