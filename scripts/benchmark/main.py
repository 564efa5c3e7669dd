# SPDX-License-Identifier: Apache-2.0
"""The command scripts/bench, inside the environment: measures and reports."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from scripts.benchmark import (
    compare,
    drain,
    inkernel,
    pages,
    rates,
    reading,
    report,
    scale,
    sizes,
    slowdown,
    startup,
    trees,
    work,
)
from scripts.benchmark import release as limits
from scripts.experiments import peers, running
from scripts.experiments.context import ROOT, Context
from scripts.experiments.report import make_console, print_results, print_table
from scripts.experiments.results import Results
from tcpkmon.collector.loader.prepare import check_privilege
from tcpkmon.formats.base.errors import UsageError

ROUNDS = 5
QUICK_ROUNDS = 2
DOCS = ROOT / "docs"
NOT_QUICK = {"bpftrace", "iperf3", "nginx", "wrk", "redis-server", "redis-benchmark"}
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
@click.option("--docs", is_flag=True,
              help="Make the page of this CPU model in docs/benchmark, and docs/benchmark.md.")
@click.option("--read", "read_file", metavar="FILE",
              type=click.Path(exists=True, dir_okay=False),
              help="Measure nothing: report what --json wrote.")
@click.option("--quick", is_flag=True,
              help="Small sizes; exit with 1 if anything is several times slower than perf, or "
                   "much slower than in the last release.")
@click.option("--release", is_flag=True,
              help="With --quick: keep the figures as those of the release.")
@click.option("--compare", "between", nargs=2, metavar="A B",
              help="Two trees (folders or git revisions) in turn: what is slower in B.")
@click.option("--rounds", type=click.IntRange(1, 100), metavar="N",
              help=f"Rounds of each measurement; what the targets compare gets "
                   f"{slowdown.MORE_ROUNDS} N.  [default: {ROUNDS}; quick: {QUICK_ROUNDS}; "
                   f"compare: {compare.ROUNDS}]")
@click.option("--only", metavar="NAME,...",
              help=f"Some sections: {', '.join(MEASURES)}. With --compare, cases: "
                   f"{', '.join(compare.CASES)}.  [default: all; compare: "
                   f"{','.join(compare.USUAL)}]")
@click.option("--folder", metavar="FOLDER", type=click.Path(exists=True, file_okay=False),
              help="Where the tools write, on a disk.  [default: /var/tmp]")
def command(
    json_file: str | None,
    docs: bool,
    read_file: str | None,
    quick: bool,
    release: bool,
    between: tuple[str, str] | None,
    rounds: int | None,
    only: str | None,
    folder: str | None,
) -> int:
    """Measure what tcpkmon costs, side by side with perf, bpftrace and tcpdump.

    Some 17 minutes in all, on a machine that does nothing else; as root.
    """
    if between is not None:
        if docs or release or read_file:
            raise UsageError("--compare makes no page", "use it without --docs, --release, --read")
        return _compare(between, only, quick, rounds, folder, json_file)
    if release and not quick:
        raise UsageError("--release keeps the figures of a quick run", "add --quick")
    if docs and (quick or only):
        raise UsageError("--docs makes a page of a whole run", "run it without --quick and --only")
    if read_file is not None:
        results = running.read(read_file)
    else:
        wanted = running.chosen(only, MEASURES, "section") or list(MEASURES)
        results = _measure(wanted, quick, rounds, folder)
    if json_file is not None:
        Path(json_file).write_text(results.to_json(), encoding="utf-8")
    print_results(report.sections(results), results, make_console())
    if docs:
        for path in pages.write(results, DOCS, list(MEASURES)):
            print(f"bench: written: {path}", file=sys.stderr)
    if release:
        limits.renew(results)
    problems = [*limits.too_slow(results), *limits.slower_than_release(results)] if quick else []
    for problem in problems:
        print(f"bench: too slow: {problem}", file=sys.stderr)
    return 1 if problems or not running.is_whole(results) else 0


def _compare(
    names: tuple[str, str],
    only: str | None,
    quick: bool,
    rounds: int | None,
    folder: str | None,
    json_file: str | None,
) -> int:
    words = running.chosen(only, compare.CASES, "case") or list(compare.USUAL)
    rounds = rounds or (QUICK_ROUNDS if quick else compare.ROUNDS)
    if rounds < 2:
        raise UsageError("a comparison needs two rounds or more", "without them, noise is unknown")
    check_privilege()
    results = Results(rounds=rounds, quick=quick)
    needs = [name for kind in work.WORK.values() if kind.program for name in kind.program.needs]
    programs = ["cc", *needs]
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(running.context_of(results, folder, programs))
        both = [stack.enter_context(trees.tree(name, context.say)) for name in names]
        compare.measure(context, both, words)
    found = compare.lines(results)
    if json_file is not None:
        Path(json_file).write_text(compare.to_json(found, both, results), encoding="utf-8")
    print_table(compare.table(found, both, results), make_console())
    for section in results.skipped.values():
        for case, reason in section.items():
            print(f"bench: skipped: {case}: {reason}", file=sys.stderr)
    return 0


def _measure(
    wanted: Sequence[str], quick: bool, rounds: int | None, folder: str | None
) -> Results:
    results = Results(rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS), quick=quick)
    programs = [name for name in peers.PACKAGES if not (quick and name in NOT_QUICK)]
    running.measure(results, {name: MEASURES[name] for name in wanted}, folder, programs)
    return results
