# SPDX-License-Identifier: Apache-2.0
"""The command scripts/magnet-experiments, inside the environment: measures and reports."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

from formats.base.cli import run as run_command
from formats.base.errors import UsageError
from scripts.benchmark import report, running
from scripts.benchmark.context import ROOT, Context
from scripts.benchmark.results import Results
from scripts.magnet import page
from scripts.magnet.experiments import EXPERIMENTS

ROUNDS = 10
QUICK_ROUNDS = 2
PROGRAMS = ("tcpdump", "cc")


@click.command("magnet-experiments", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", metavar="NAME,...",
              help=f"Some experiments: {', '.join(EXPERIMENTS)}.  [default: all]")
@click.option("--quick", is_flag=True, help="Small sizes, in two minutes.")
@click.option("--rounds", type=click.IntRange(2, 100), metavar="N",
              help=f"Rounds of M1, M3 and M4.  [default: {ROUNDS}; quick: {QUICK_ROUNDS}]")
@click.option("--json", "json_file", metavar="FILE", type=click.Path(dir_okay=False),
              help="Write all values that were measured.")
@click.option("--docs", is_flag=True, help="Make docs/magnet.md and its picture.")
@click.option("--read", "read_file", metavar="FILE",
              type=click.Path(exists=True, dir_okay=False),
              help="Measure nothing: report what --json wrote.")
@click.option("--folder", metavar="FOLDER", type=click.Path(exists=True, file_okay=False),
              help="Where the tools write, on a disk.  [default: /var/tmp]")
def command(
    only: str | None,
    quick: bool,
    rounds: int | None,
    json_file: str | None,
    docs: bool,
    read_file: str | None,
    folder: str | None,
) -> int:
    """Run the experiments of MAGNeT's paper of 2001, on a machine that does nothing else.

    Two network namespaces are both ends; as root. Exits with 1 if an experiment failed to run.
    """
    if docs and (quick or only):
        raise UsageError("--docs makes a page of a whole run", "run it without --quick and --only")
    if read_file is not None:
        results = running.read(read_file)
    else:
        results = Results(rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS), quick=quick)
        wanted = running.chosen(only, EXPERIMENTS, "experiment") or list(EXPERIMENTS)
        measures: dict[str, Callable[[Context], None]] = {
            name: EXPERIMENTS[name].measure for name in wanted
        }
        running.measure(results, measures, folder, PROGRAMS)
    if json_file is not None:
        Path(json_file).write_text(results.to_json(), encoding="utf-8")
    console = report.make_console()
    report.print_sections(page.sections(results), console)
    for name, text in results.machine.items():
        console.print(f"{name}: {text}")
    if docs:
        for path in page.write(results, ROOT / "docs"):
            print(f"magnet-experiments: written: {path}", file=sys.stderr)
    return 0 if running.is_whole(results) else 1


def main() -> None:
    """The entry point of scripts/magnet-experiments."""
    sys.exit(run_command(command))
