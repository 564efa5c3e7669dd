# SPDX-License-Identifier: Apache-2.0
"""The command scripts/bench, inside the environment: measures and reports."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import click

from scripts.benchmark import compare, peers, rates, reading, slowdown, tables, trees
from scripts.benchmark import release as limits
from scripts.benchmark.results import Results
from scripts.benchmark.session import ROOT, UNFINISHED, Session, chosen, measure, session
from tcpkmon.formats.base.errors import FileError, UsageError

ROUNDS = 5
QUICK_ROUNDS = 2
PAGE = ROOT / "docs" / "cost.md"
MEASURES: dict[str, Callable[[Session], None]] = {
    slowdown.NAME: slowdown.measure,
    rates.NAME: rates.measure,
    reading.NAME: reading.measure,
}


@click.command("bench", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "json_file", metavar="FILE", type=click.Path(dir_okay=False),
              help="Write all values that were measured.")
@click.option("--docs", is_flag=True, help="Write the row of this CPU model into docs/cost.md.")
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
              help=f"Rounds of each measurement; what is compared gets {slowdown.MORE_ROUNDS} N.  "
                   f"[default: {ROUNDS}; quick: {QUICK_ROUNDS}; compare: {compare.ROUNDS}]")
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

    Some ten minutes in all, on a machine that does nothing else; as root.
    """
    if between is not None:
        if docs or release or read_file:
            raise UsageError("--compare has no page", "use it without --docs, --release, --read")
        return _compare(between, only, quick, rounds, folder, json_file)
    if release and not quick:
        raise UsageError("--release keeps the figures of a quick run", "add --quick")
    if docs and (quick or only):
        raise UsageError(
            "docs/cost.md takes the results of a whole run", "run it without --quick and --only"
        )
    if read_file is not None:
        try:
            results = Results.from_json(Path(read_file).read_text(encoding="utf-8"))
        except ValueError as error:
            raise FileError(f"{read_file}: {error}") from None
    else:
        results = Results(rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS), quick=quick)
        wanted = chosen(only, MEASURES, "section") or list(MEASURES)
        programs = [name for name in peers.PACKAGES if not (quick and name == "bpftrace")]
        measure(results, {name: MEASURES[name] for name in wanted}, folder, programs)
    if json_file is not None:
        Path(json_file).write_text(results.to_json(), encoding="utf-8")
    tables.show(results, tables.make_console())
    if docs:
        tables.write_row(results, PAGE)
        print(f"bench: written: {PAGE}", file=sys.stderr)
    if release:
        limits.renew(results)
    problems = [*limits.too_slow(results), *limits.slower_than_release(results)] if quick else []
    for problem in problems:
        print(f"bench: too slow: {problem}", file=sys.stderr)
    unfinished = any(UNFINISHED in cases for cases in results.skipped.values())
    return 1 if problems or unfinished else 0


def _compare(
    names: tuple[str, str],
    only: str | None,
    quick: bool,
    rounds: int | None,
    folder: str | None,
    json_file: str | None,
) -> int:
    words = chosen(only, compare.CASES, "case") or list(compare.USUAL)
    rounds = rounds or (QUICK_ROUNDS if quick else compare.ROUNDS)
    if rounds < 2:
        raise UsageError("a comparison needs two rounds or more", "without them, noise is unknown")
    results = Results(rounds=rounds, quick=quick)
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(session(results, folder, ["cc"]))
        both = [stack.enter_context(trees.tree(name, one.say)) for name in names]
        compare.measure(one, both, words)
    found = compare.lines(results)
    if json_file is not None:
        Path(json_file).write_text(compare.to_json(found, both, results), encoding="utf-8")
    tables.show_table(compare.table(found, both, results), tables.make_console())
    return 0
