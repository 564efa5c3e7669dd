# SPDX-License-Identifier: Apache-2.0
"""The command scripts/why-scenarios."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import mean

import click

from collector.linux.machine import describe_machine
from formats.analysis.why import LIMITS
from formats.base.cli import run
from formats.base.errors import UsageError
from scripts.why.judging import Judged, play
from scripts.why.scenarios import SCENARIOS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "why.md"
BEGIN, END = "<!-- made by scripts/why-scenarios -->", "<!-- end -->"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True,
              help="Play each scenario so often.")
@click.option("--only", default="", metavar="WORD", help="The scenarios with this in their names.")
@click.option("--docs", is_flag=True, help="Write the tables into docs/why.md.")
def command(rounds: int, only: str, docs: bool) -> int:
    """Make connections whose limit is known, and compare with what `tcpkmon why` says of them."""
    found: list[Judged] = []
    with tempfile.TemporaryDirectory() as folder:
        for scenario in (one for one in SCENARIOS if only in one.name):
            for _ in range(rounds):
                found.append(play(scenario, Path(folder)))
                click.echo(f"{100 * found[-1].right:5.1f} %  {scenario.name}")
    if not found:
        raise UsageError(f"no scenario has {only!r} in its name")
    text = "\n".join(page(found, rounds))
    if not docs:
        click.echo(text)
        return 0
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    click.echo(f"wrote {PAGE}")
    return 0


def main() -> None:
    """The entry point of the script."""
    sys.exit(run(command, prog="why-scenarios"))


def page(found: list[Judged], rounds: int) -> list[str]:
    """The tables, as Markdown."""
    by_name: dict[str, list[Judged]] = defaultdict(list)
    for one in found:
        by_name[one.scenario.name].append(one)
    tuned = [one.right for one in found if not one.scenario.held_out]
    held = [one.right for one in found if one.scenario.held_out]
    lines = [
        f"{describe_machine()['cpu_model']}, Linux {platform.release()}; {rounds} rounds of "
        f"{len(by_name)} scenarios, {sum(one.lost for one in found)} records lost. In a limit that "
        f"is true: {_percent(tuned)} of the time in the scenarios that the rules were tuned by "
        f"(worst round {100 * min(tuned, default=0):.1f} %)"
        + (f", {_percent(held)} in those kept out of tuning (*; worst round "
           f"{100 * min(held):.1f} %)." if held else "."),
        "",
        "| scenario | true | right, mean | worst | found, mean |",
        "| --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for name, rows in by_name.items():
        shares = {limit: mean(one.shares.get(limit, 0.0) for one in rows) for limit in LIMITS}
        listed = ", ".join(
            f"{limit} {100 * share:.1f}" for limit, share in
            sorted(shares.items(), key=lambda item: -item[1]) if share >= 0.001
        )  # fmt: skip
        mark = " *" if rows[0].scenario.held_out else ""
        lines.append(
            f"| {name}{mark} | {', '.join(rows[0].scenario.truth)} | "
            f"{_percent([one.right for one in rows])} | "
            f"{100 * min(one.right for one in rows):.1f} % | {listed} |"
        )
    return [*lines, "", *_matrix(found)]


def _matrix(found: list[Judged]) -> list[str]:
    """Rows: the first true limit of a scenario. Columns: what was found, in % of the time."""
    truths = list(dict.fromkeys(one.scenario.truth[0] for one in found))
    columns = [name for name in LIMITS if any(name in one.shares for one in found)]
    lines = [
        "Confusion: a row is what was made (the first of its true limits), a column what was "
        "found, in % of the time.",
        "",
        f"| made | {' | '.join(columns)} |",
        f"| --- |{' --- |' * len(columns)}",
    ]
    for truth in truths:
        mine = [one for one in found if one.scenario.truth[0] == truth]
        cells = [100 * mean(one.shares.get(name, 0.0) for one in mine) for name in columns]
        lines.append(f"| {truth} | {' | '.join(f'{c:.1f}' if c >= 0.05 else '' for c in cells)} |")
    return lines


def _percent(values: list[float]) -> str:
    return f"{100 * mean(values):.1f} %" if values else "n/a"
