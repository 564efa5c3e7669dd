# SPDX-License-Identifier: Apache-2.0
"""The sections of all results, and the page that is made of them."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.benchmark.tables import SECTIONS, of_targets
from scripts.experiments.report import Section, in_markdown, remarks_of, rows_of
from scripts.experiments.results import Results
from scripts.experiments.stats import MANY

INTRODUCTION = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by `sudo scripts/bench --docs`: change scripts/benchmark, not this page. -->
# What it costs on {model}

Measured by `sudo scripts/bench`; [other CPUs](../benchmark.md). Every tool is measured in turn with
the others, round by round, so that a machine that gets slower gets slower for all. Figures are
medians of {rounds} rounds, with the lowest and the highest in brackets, of {many} rounds or more
(what the targets compare) with the quartiles; trust the ratios, since the times are this machine's.
"""


def markdown(results: Results) -> str:
    """The page of a CPU model."""
    model = results.machine.get("CPU model", "an unknown CPU")
    lines = [INTRODUCTION.format(model=model, rounds=results.rounds, many=MANY)]
    if results.quick:
        lines.append("**These figures are of a quick run: small sizes, few rounds.**\n")
    lines += ["## The machine\n", *rows_of(("", ""), results.machine.items())]
    lines += in_markdown(sections(results))
    return "\n".join(lines).rstrip() + "\n"


def sections(results: Results) -> Iterator[Section]:
    """Every table, every skipped case with its reason."""
    target_table = of_targets(results)
    yield target_table.title, [target_table], []
    for name, (title, make) in SECTIONS.items():
        if name not in results.values and name not in results.skipped:
            continue
        tables = [table for table in make(results) if table.rows]
        yield title, tables, remarks_of(results, name)
