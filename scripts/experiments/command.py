# SPDX-License-Identifier: Apache-2.0
"""The command of a script with experiments, inside the environment: measures and reports."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

from scripts.experiments import report, running
from scripts.experiments.context import ROOT, Context
from scripts.experiments.paper import Paper
from scripts.experiments.results import Results
from tcpkmon.formats.base.errors import UsageError

ROUNDS = 10
QUICK_ROUNDS = 2


def make_command(
    paper: Paper, text: str, of_rounds: str, of_quick: str, *more: click.Option
) -> click.Command:
    """The command; text: its help. of_rounds: which experiments have rounds. of_quick: how long.

    more: options of its own, whose callbacks keep their values.
    """

    helping = {"help_option_names": ["-h", "--help"]}

    @click.command(paper.script, help=text, context_settings=helping)
    @click.option("--only", metavar="NAME,...",
                  help=f"Some experiments: {', '.join(paper.experiments)}.  [default: all]")
    @click.option("--quick", is_flag=True, help=f"Small sizes, {of_quick}.")
    @click.option("--rounds", type=click.IntRange(2, 100), metavar="N",
                  help=f"Rounds of {of_rounds}.  [default: {ROUNDS}; quick: {QUICK_ROUNDS}]")
    @click.option("--json", "json_file", metavar="FILE", type=click.Path(dir_okay=False),
                  help="Write all values that were measured.")
    @click.option("--docs", is_flag=True, help=f"Make docs/{paper.page} and its picture.")
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
        if docs and (quick or only):
            raise UsageError(
                "--docs makes a page of a whole run", "run it without --quick and --only"
            )
        if read_file is not None:
            results = running.read(read_file)
        else:
            results = Results(rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS), quick=quick)
            wanted = running.chosen(only, paper.experiments, "experiment")
            measures: dict[str, Callable[[Context], None]] = {
                name: paper.experiments[name].measure for name in wanted or paper.experiments
            }
            running.measure(results, measures, folder, paper.programs)
        if json_file is not None:
            Path(json_file).write_text(results.to_json(), encoding="utf-8")
        report.print_results(paper.sections(results), results, report.make_console())
        if docs:
            for path in paper.write(results, ROOT / "docs"):
                print(f"{paper.script}: written: {path}", file=sys.stderr)
        return 0 if running.is_whole(results) else 1

    command.params += more
    return command
