# SPDX-License-Identifier: Apache-2.0
"""The command scripts/bench, inside the environment: measures and reports."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.console import Console

from collector.loader.prepare import check_privilege
from formats.base.cli import run as run_command
from formats.base.errors import FileError, TcpkmonError, UsageError
from scripts.benchmark import (
    drain,
    inkernel,
    machine,
    peers,
    rates,
    reading,
    report,
    scale,
    sizes,
    slowdown,
    startup,
    targets,
)
from scripts.benchmark.context import ROOT, Context
from scripts.benchmark.load import compile_load
from scripts.benchmark.results import Results

ROUNDS = 5
QUICK_ROUNDS = 2
UNFINISHED = "the rest of this section"
DOCS = ROOT / "docs" / "benchmark.md"
MEASURES: dict[str, Callable[[Context], None]] = {
    slowdown.NAME: slowdown.measure,
    rates.NAME: rates.measure,
    inkernel.NAME: inkernel.measure,
    startup.NAME: startup.measure,
    drain.NAME: drain.measure,
    reading.NAME: reading.measure,
    sizes.NAME: sizes.measure,
    scale.NAME: scale.measure,
}


@click.command("bench", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "json_file", metavar="FILE", type=click.Path(dir_okay=False),
              help="Write all values that were measured.")
@click.option("--docs", is_flag=True, help="Make docs/benchmark.md of the results.")
@click.option("--read", "read_file", metavar="FILE",
              type=click.Path(exists=True, dir_okay=False),
              help="Measure nothing: report what --json wrote.")
@click.option("--quick", is_flag=True,
              help="Small sizes; exit with 1 if anything is several times slower than perf.")
@click.option("--rounds", type=click.IntRange(1, 100), metavar="N",
              help=f"Rounds of each measurement.  [default: {ROUNDS}; quick: {QUICK_ROUNDS}]")
@click.option("--only", metavar="SECTION,...", default=",".join(MEASURES),
              help=f"Some of: {', '.join(MEASURES)}.")
@click.option("--folder", metavar="FOLDER", type=click.Path(exists=True, file_okay=False),
              help="Where the tools write, on a disk.  [default: /var/tmp]")
def command(
    json_file: str | None,
    docs: bool,
    read_file: str | None,
    quick: bool,
    rounds: int | None,
    only: str,
    folder: str | None,
) -> int:
    """Measure what tcpkmon costs, side by side with perf, bpftrace and tcpdump.

    Less than 15 minutes in all, on a machine that does nothing else; as root.
    """
    if read_file is not None:
        try:
            results = Results.from_json(Path(read_file).read_text(encoding="utf-8"))
        except ValueError as error:
            raise FileError(f"{read_file}: {error}") from None
    else:
        results = _measure(_sections(only), quick, rounds, folder)
    if json_file is not None:
        Path(json_file).write_text(results.to_json(), encoding="utf-8")
    if docs:
        report.write_docs(results, DOCS)
    width = None if sys.stdout.isatty() else 160
    report.print_all(results, Console(width=width, markup=False, highlight=False))
    problems = targets.too_slow(results) if quick else []
    for problem in problems:
        print(f"bench: too slow: {problem}", file=sys.stderr)
    return 1 if problems or any(UNFINISHED in cases for cases in results.skipped.values()) else 0


def _sections(only: str) -> list[str]:
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in MEASURES]:
        raise UsageError(f"no such section: {unknown[0]}", f"there are {', '.join(MEASURES)}")
    return [name for name in MEASURES if name in wanted]


def _measure(
    wanted: Sequence[str], quick: bool, rounds: int | None, folder: str | None
) -> Results:
    check_privilege()
    results = Results(rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS), quick=quick)
    with tempfile.TemporaryDirectory(prefix="tcpkmon-bench-", dir=folder or "/var/tmp") as place:
        context = Context(results.rounds, quick, Path(place), results)
        programs = [name for name in peers.PACKAGES if not (quick and name == "bpftrace")]
        context.missing = peers.install(programs, context.say)
        for name, reason in context.missing.items():
            context.say(f"{name}: {reason}")
        results.machine = machine.describe(ROOT)
        context.load_program = compile_load(context.folder)
        for name in wanted:
            begun = time.monotonic()
            try:
                MEASURES[name](context)
            except (TcpkmonError, ValueError, OSError, subprocess.SubprocessError) as error:
                # The values so far are kept.
                context.say(f"{name}: {error}")
                results.skip(name, UNFINISHED, str(error))
            results.seconds[name] = round(time.monotonic() - begun, 1)
        total = sum(results.seconds.values())
        context.say(f"done: {total:.0f} s of measuring")
    each = ", ".join(f"{name} {seconds:.0f}" for name, seconds in results.seconds.items())
    results.machine["time taken"] = f"{total:.0f} s ({each})"
    return results


def main() -> None:
    """The entry point of scripts/bench."""
    sys.exit(run_command(command))
