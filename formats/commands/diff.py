# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon diff A B`: two captures, or two groups of them, compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import Errors, FileError, LossError, UsageError
from tcpkmon.formats.base.files import already_there
from tcpkmon.formats.commands.shared import make_console, output_option

if TYPE_CHECKING:
    from tcpkmon.formats.analysis.diff import Report


@click.command("diff")
@click.argument("sides", metavar="[NAME=]CAPTURE[,...] [NAME=]CAPTURE[,...]", nargs=-1)
@click.option("--where", metavar="CONDITION",
              help="Only connections for which this holds, as in tcpkmon check: 'rport == 443'.")
@click.option("--fail-if", "conditions", metavar="CONDITION", multiple=True,
              help="Exit with 3 if a metric differs by more than a bound: 'goodput_p50 worse 5%', "
              "'share_rwnd more 10%'. Also several.")
@click.option("--metrics", metavar="NAME,...",
              help="Compare these alone; help: list them. Fewer tests need fewer units.")
@click.option("--unit", type=click.Choice(["connection", "run"]),
              help="What is a unit of the statistics. Default: a run (a capture) where a side has "
              "several captures, else a connection.")
@click.option("--alpha", type=click.FloatRange(0, 0.5, min_open=True), default=0.01,
              show_default=True, metavar="P",
              help="How often at most equal sides may be taken for different.")
@click.option("--unproven-ok", is_flag=True,
              help="Compare captures too that do not prove that nothing is missing.")
@click.option("--json", "as_json", is_flag=True, help="All of it as JSON.")
@output_option("Draw the distributions and the courses over time (.png, .svg, .pdf).", "FILE")
@click.option("--force", is_flag=True, help="Let -o replace a file.")
def command(
    sides: tuple[str, ...],
    where: str | None,
    conditions: tuple[str, ...],
    metrics: str | None,
    unit: str | None,
    alpha: float,
    unproven_ok: bool,
    as_json: bool,
    output: Path | None,
    force: bool,
) -> int:
    """Compare two captures, or two groups of captures, of the schemata tcp and magnet.

    The settings that differ come first, then the metrics: ~ is no difference. Arguments of one NAME
    are one side. A folder that is no capture has the captures in it. Exit code 3: a --fail-if
    condition fails. 2: it cannot be judged, for lack of data or units. 5: a capture is not proven.
    """
    if metrics == "help":
        _list_metrics()
        return 0
    from tcpkmon.formats.analysis import diff
    from tcpkmon.formats.analysis.check import parse_where

    errors = Errors()
    with errors.caught():
        parsed = diff.parse_conditions(conditions)
    with errors.caught():
        chosen = None if where is None else parse_where(where)
    with errors.caught():
        wanted = diff.parse_metrics(metrics)
    with errors.caught():
        _check_output(output, force)
    with errors.caught():
        named = diff.parse_sides(sides)
    errors.raise_all()
    runs: dict[str, list[diff.Run]] = {name: [] for name in named}
    for name, path in ((name, path) for name, paths in named.items() for path in paths):
        with errors.caught():
            runs[name].append(diff.read_run(path, chosen))
    unproven = [run for some in runs.values() for run in some if not run.proven]
    if not unproven_ok:
        with errors.caught():
            diff.refuse_unproven(unproven)
    errors.raise_all()
    a, b = (diff.Side(name, tuple(some)) for name, some in runs.items())
    for run in unproven:
        say(f"tcpkmon diff: {run.path}: not proven: {run.verdict}")
    report = diff.make_report(a, b, parsed, alpha, wanted, unit or "")
    if output is not None:
        diff.draw_diff(report, output, force)
    code = _code(report)
    if as_json:
        click.echo(json.dumps(diff.as_json(report) | {"exit_code": code}, indent=2))
    else:
        diff.print_diff(report, make_console())
    return code


def _check_output(output: Path | None, force: bool) -> None:
    """Before anything is read: UsageError, FileError."""
    if output is None:
        return
    from tcpkmon.formats.drawing import check_output

    check_output(output)
    if output.exists() and not force:
        raise already_there(output)
    if not output.parent.is_dir():
        raise FileError(f"{output} cannot be written: there is no folder {output.parent}")


def _list_metrics() -> None:
    from tcpkmon.formats.analysis.diff import METRICS

    words = {1: "more is worse", -1: "less is worse", 0: "neither is worse"}
    for one in METRICS:
        click.echo(f"{one.name:22} {words[one.worse]:17} {one.text}")


def _code(report: Report) -> int:
    judged = [one.failed for one in report.judged]
    if True in judged:
        return LossError.exit_code
    return UsageError.exit_code if None in judged else 0
