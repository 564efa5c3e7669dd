# SPDX-License-Identifier: Apache-2.0
"""A historic system's experiments, and the page that is made of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from scripts.experiments import report
from scripts.experiments.context import Context
from scripts.experiments.figure import Figure, table_of
from scripts.experiments.report import Section, Table
from scripts.experiments.results import Results


@dataclass(frozen=True)
class Experiment:
    """measure adds to the results; figures and tables read these, whatever of them there is."""

    title: str
    measure: Callable[[Context], None]
    figures: Callable[[Results], list[Figure]]
    tables: Callable[[Results], list[Table]]


def listed(*modules: ModuleType) -> dict[str, Experiment]:
    """By name: a module each, with NAME, TITLE, measure(), figures() and tables()."""
    return {
        one.NAME: Experiment(one.TITLE, one.measure, one.figures, one.tables) for one in modules
    }


def no_more(_results: Results) -> list[Section]:
    return []


@dataclass(frozen=True)
class Paper:
    """Experiments of `years`, the script that runs them, and their page in docs.

    introduction: the page's begin, in Markdown, with words in braces: those of introduce(), and of
    `words`. draw: makes the picture. more: sections after that of the figures. programs: what the
    experiments need, as peers.install() knows it.
    """

    script: str
    years: str
    experiments: Mapping[str, Experiment]
    programs: Sequence[str]
    page: str
    picture: str
    introduction: str
    words: Callable[[Results], dict[str, object]]
    draw: Callable[[Results, Path], None]
    more: Callable[[Results], list[Section]] = no_more

    def sections(self, results: Results) -> list[Section]:
        """The figures of all experiments, then each with its tables."""
        found: list[Section] = []
        figures = [one for each in self.experiments.values() for one in each.figures(results)]
        if figures:
            table = table_of(figures, self.years)
            missed = sum(one.reached is False and not one.unclear for one in figures)
            text = f"{missed} of {len(figures)} are not as wanted: see **no**."
            found.append((table.title, [table], [text] if missed else []))
        found += self.more(results)
        for name, one in self.experiments.items():
            if name in results.values or name in results.skipped:
                tables = [table for table in one.tables(results) if table.rows]
                found.append((one.title, tables, report.remarks_of(results, name)))
        return found

    def introduce(self, results: Results) -> str:
        machine = results.machine
        return self.introduction.format(
            model=machine.get("CPU model", "an unknown CPU"),
            kernel=machine.get("kernel", "?").partition(" ")[0],
            cpus=machine.get("CPU", "? CPUs").partition(" CPUs")[0].rpartition(" ")[2],
            rounds=results.rounds, picture=self.picture, **self.words(results),
        )  # fmt: skip

    def markdown(self, results: Results) -> str:
        lines = [self.introduce(results), *report.in_markdown(self.sections(results))]
        lines += ["\n## The machine\n", *report.rows_of(("", ""), results.machine.items())]
        return "\n".join(lines).rstrip() + "\n"

    def write(self, results: Results, docs: Path) -> list[Path]:
        """The page and its picture. UsageError for quick results, or incomplete ones."""
        report.check_whole(results, self.experiments)
        picture = docs / "images" / self.picture
        self.draw(results, picture)
        page = docs / self.page
        report.write_whole(page, self.markdown(results))
        return [page, picture]
