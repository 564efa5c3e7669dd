# SPDX-License-Identifier: Apache-2.0
"""Which rules of `tcpkmon conform` this kernel's congestion controls keep: docs/conformance.md."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from scripts.markdown import table, write_part
from scripts.vm.kernels import version_key
from scripts.vm.tools import cache
from tcpkmon.collector.lab.endpoint import congestion_controls
from tcpkmon.formats.analysis.conform import RULES
from tcpkmon.formats.base.errors import KernelError
from tests.truth.base import DOCS, here
from tests.truth.conform import breaks, plays
from tests.truth.conform import scenarios as of_why
from tests.truth.conform.plays import PATHS, Judged, judge

PAGE = DOCS / "conformance.md"
Play = Callable[[Path, str, str], None]


def rules_table() -> str:
    """The rules, with their sentences and what Linux does otherwise, for the page."""
    rows = ([f"`{rule.name}`", rule.rfc, rule.quote, rule.deviations] for rule in RULES)
    lines = table(("rule", "of", "sentence", "Linux"), rows)
    return "\n".join(lines).replace("<-", "\\<-")


@dataclass
class Tally:
    """What the captures with one congestion control show. counts: (rules, 3). unseen: what the
    kernel showed no program. left: plays that were not begun, as the time was up."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((len(RULES), 3), np.int64))
    untellable: dict[str, str] = field(default_factory=dict)
    proven: int = 0
    others: int = 0
    unseen: set[str] = field(default_factory=set)
    left: int = 0

    @classmethod
    def read(cls, told: dict[str, Any]) -> Tally:
        """What write() made, perhaps with other rules."""
        counts = [told["counts"].get(rule.name, [0, 0, 0]) for rule in RULES]
        return cls(np.array(counts), told["untellable"], told["proven"], told["others"],
                   {*told["unseen"]}, told["left"])  # fmt: skip

    def write(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "counts": self.by_rule(), "untellable": self.untellable, "proven": self.proven,
            "others": self.others, "unseen": sorted(self.unseen), "left": self.left,
        }  # fmt: skip

    def by_rule(self) -> dict[str, list[int]]:
        """How often each rule is kept, is broken, cannot be told."""
        names = (rule.name for rule in RULES)
        return dict(zip(names, self.counts.tolist(), strict=True))

    def add(self, judged: Judged) -> None:
        self.counts += sum(judged.verdicts.counts.values(), np.zeros_like(self.counts))
        self.untellable |= judged.verdicts.untellable
        self.proven += judged.proven
        self.others += not judged.proven
        if judged.proven and judged.verdicts.unsure:
            self.unseen.add(judged.verdicts.unsure)


def take(folder: Path, play: Play, names: Iterable[str], algorithm: str, until: float) -> Tally:
    """Plays what the folder has no proven capture of, judges all, and prints each alarm. until: it
    begins no play after that (CLOCK_MONOTONIC, s)."""
    tally = Tally()
    for name in names:
        words = re.sub(r"\W+", "-", name)[:60]
        mark = hashlib.sha256(name.encode()).hexdigest()[:6]
        path = folder / f"{algorithm}-{words}-{mark}.pm"
        judged = judge(path) if path.exists() else None
        if judged is None or not judged.proven:
            if time.monotonic() > until:
                tally.left += 1
                continue
            play(path, name, algorithm)
            judged = judge(path)
        tally.add(judged)
        for one in judged.verdicts.breaks:
            click.echo(f"{path.name}: {one.rule.name}: {one}")
        if not judged.proven:
            click.echo(f"{path.name}: {judged.verdicts.unsure}")
    return tally


def of_guests() -> list[dict[str, Any]]:
    """What tests/vm/test_vm_conform.py found in guests: kernel, broken (rules, by what breaks
    them), tallies (by congestion control); the oldest kernel first."""
    read = [json.loads(path.read_text()) for path in (cache() / "conform").glob("*.json")]
    return sorted(read, key=lambda one: version_key(one["kernel"]))


def guests_sentence(found: list[dict[str, Any]]) -> str:
    """Which guests were asked, and what breaks rules in them."""
    if not found:
        return "No guest was asked."
    broken = [[rule for rules in one["broken"].values() for rule in rules] for one in found]
    names = ", ".join(f"{one['kernel']} ({_names(sorted(rules)) or 'not played'})"
                      for one, rules in zip(found, broken, strict=True))  # fmt: skip
    proven, others = (sum(told[key] for one in found for told in one["tallies"].values())
                      for key in ("proven", "others"))  # fmt: skip
    return (f"Emulated guests: {proven} proven captures and {others} others, each of all paths in "
            "turn; in brackets the rules that were broken on purpose there too: "
            f"{names}.")  # fmt: skip


def _names(rules: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in rules)


def matrix(tallies: dict[str, Tally]) -> str:
    """A row for each rule, a column for each kernel and congestion control."""
    rows = [
        [f"`{rule.name}`", *(
            one.untellable.get(rule.name) or " / ".join(f"{n:,}" for n in one.counts[at].tolist())
            for one in tallies.values()
        )]
        for at, rule in enumerate(RULES)
    ]  # fmt: skip
    heads = ["rule", *(f"{name}:" for name in tallies)]
    return "\n".join(["Kept / broken / cannot tell:", "", *table(heads, rows)])


def alarms(tallies: dict[str, Tally]) -> str:
    """How many captures there are, and how often a rule is broken in them."""
    heads = ("captures", "proven:", "not proven:", "kept:", "broken:", "cannot tell:")
    rows = [
        [name, str(one.proven), str(one.others),
         *(f"{n:,}" for n in one.counts.sum(axis=0).tolist())] for name, one in tallies.items()
    ]  # fmt: skip
    lines = ["Kernel {kernel}, {cpu}:".format(**here()), "", *table(heads, rows)]
    return "\n".join((*lines, "", *textwrap.wrap(" ".join(_remarks(tallies)), 118)))


def _remarks(tallies: dict[str, Tally]) -> Iterator[str]:
    """What is to be said of the table of alarms() besides."""
    yield f"In all {sum(one.proven for one in tallies.values()):,} proven captures."
    if left := [f"{one.left} of the {name}" for name, one in tallies.items() if one.left]:
        yield f"Not played, as the time was up: {'; '.join(left)}."
    untold = sum((one.counts[:, 2] for one in tallies.values()), np.zeros(len(RULES), np.int64))
    if untold.any():
        names = _names(rule.name for rule, n in zip(RULES, untold.tolist(), strict=True) if n)
        why = sorted({text for one in tallies.values() for text in one.unseen})
        yield f"What cannot be told is {names}" + (f" ({'; '.join(why)})." if why else ".")


def break_rules(folder: Path) -> str:
    """What breaks a rule on this kernel, and how often it was seen."""
    rows = []
    for name, one in breaks.BREAKS.items():
        try:
            found = breaks.play(folder / "broken.pm", name).verdicts
        except KernelError as error:
            click.echo(f"{name}: {error}")
            continue
        for rule in (rule for rule in RULES if found.total(rule)[1]):
            rows.append([f"`{rule.name}`", one.how, f"{found.total(rule)[1]:,}"])
    return "\n".join(table(("rule", "what breaks it", "broken:"), rows))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--docs", is_flag=True, help="Write what was found into docs/conformance.md.")
@click.option("--only", default="", metavar="NAME", help="This congestion control alone.")
@click.option("--scenarios", is_flag=True,
              help="Play the scenarios of `why` too: an hour.")
@click.option("--minutes", type=click.FloatRange(0), default=1e6, metavar="N",
              help="Begin no play after so many minutes.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Keep the captures here; those that are there are not played again.")
@click.option("--json", "output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write what was found; nothing is broken on purpose then.")
@click.option("--read", "earlier", multiple=True, metavar="FILE",
              type=click.Path(dir_okay=False, path_type=Path),
              help="Take what --json wrote in place of playing; several times.")
def command(
    docs: bool, only: str, scenarios: bool, minutes: float, keep: Path | None,
    output: Path | None, earlier: tuple[Path, ...],
) -> int:  # fmt: skip
    """Play transfers with each congestion control, and count which rules they keep."""
    names = sorted(name for name in congestion_controls() if only in name and "tcpkmon" not in name)
    until = time.monotonic() + 60 * minutes
    of_paths: dict[str, Tally] = {}
    of_scenarios: dict[str, Tally] = {}
    seen = ""
    for path in earlier:
        told = json.loads(path.read_text())
        of_paths |= {name: Tally.read(one) for name, one in told["paths"].items()}
        of_scenarios |= {name: Tally.read(one) for name, one in told["scenarios"].items()}
    with tempfile.TemporaryDirectory() as made:
        folder = keep or Path(made)
        folder.mkdir(exist_ok=True)
        for one in () if earlier else names:
            of_paths[one] = take(folder, plays.play, PATHS, one, until)
            if scenarios:
                each = of_why.EACH
                of_scenarios[one] = take(folder, of_why.play, each, one, until)
        if output is None:
            seen = break_rules(folder)
    if output is not None:
        parts = {"paths": of_paths, "scenarios": of_scenarios}
        output.write_text(json.dumps({
            part: {name: one.write() for name, one in tallies.items()}
            for part, tallies in parts.items()
        }))  # fmt: skip
    kernel = here()["kernel"]
    guests = of_guests()
    columns = {f"{kernel} {name}": one for name, one in of_paths.items()}
    columns |= {f"{one['kernel']} {name}": Tally.read(told)
                for one in guests for name, told in sorted(one["tallies"].items())}  # fmt: skip
    table = "\n".join((matrix(columns), "", *textwrap.wrap(guests_sentence(guests), 118)))
    counts = alarms({
        f"{what}, {name}": one
        for what, tallies in (("paths above", of_paths), ("scenarios of `why`", of_scenarios))
        for name, one in tallies.items()
    })  # fmt: skip
    for text in (table, counts, seen):
        click.echo(f"{text}\n")
    if docs:
        write_part(PAGE, "test --truth conform: rules", rules_table())
        write_part(PAGE, "test --truth conform: matrix", table)
    if docs and seen:
        write_part(PAGE, "test --truth conform: breaks", seen)
    if docs and of_scenarios:
        write_part(PAGE, "test --truth conform: alarms", counts)
    return 0
