# SPDX-License-Identifier: Apache-2.0
"""scripts/bench --compare: which of two trees slows TCP traffic down more, beyond noise."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scripts.benchmark import slowdown, tools
from scripts.benchmark.results import Change, Results, change, differ, percent
from scripts.benchmark.session import Session
from scripts.benchmark.slowdown import WORK, working
from scripts.benchmark.tables import Table
from scripts.benchmark.trees import Tree

NAME = "compare"
ROUNDS = 10
CASES = {
    "default": slowdown.DEFAULT,
    "columns": slowdown.COLUMNS,
    "filter": slowdown.FILTERED,
    "changed": slowdown.CHANGED,
    "all": slowdown.ALL,
    "perf": slowdown.RINGS,
}
"""By the word in --only."""
USUAL = ("default", "columns", "filter")
ALL_WORK = "all work"
CPU = "CPU of both ends"
READER = "reader's CPU a record"
FEW_RECORDS = 1000
"""In a round with fewer, the reader's CPU is not that of records."""


@dataclass(frozen=True)
class Line:
    """One case in one kind of work (or what is measured of all): B's time, divided by A's."""

    case: str
    work: str
    a: float | None
    b: float | None
    """The median slowdowns; None where there is none."""
    change: Change
    verdict: str
    """Of B: slower, faster, or ~ where noise can be the reason."""


def measure(session: Session, trees: Sequence[Tree], words: Sequence[str]) -> None:
    """Nothing, A, nothing, B and so on, under all the work; every second round B comes first."""
    with working(session) as worker:
        cases = {
            CASES[word]: [
                tools.collect(word, *slowdown.OPTIONS[CASES[word]], programs=tree.programs)
                for tree in trees
            ]
            for word in words
        }
        for number in session.each_round(NAME):
            before = worker.run()
            for case, pair in cases.items():
                for side in ("ab", "ba")[number % 2]:
                    before = slowdown.measure_one(
                        session, worker, pair["ab".index(side)], case_of(side, case), before
                    )


def case_of(side: str, case: str) -> str:
    """The case's name in the results; side: a or b."""
    return f"{side}: {case}"


def lines(results: Results) -> list[Line]:
    """The verdicts, for all cases of the results together."""
    found: list[tuple[str, str, float | None, float | None, Change]] = []
    for case in _cases(results):
        times = {work: _logarithms(results, work, case) for work in WORK}
        times = {work: values for work, values in times.items() if values}
        mean = [statistics.fmean(values) for values in zip(*times.values(), strict=True)]
        a, b = ([_slowdown(results, work, side, case) for work in times] for side in "ab")
        found.append((case, ALL_WORK, statistics.fmean(a), statistics.fmean(b), change(mean)))
        for work, values, one, other in zip(times, times.values(), a, b, strict=True):
            found.append((case, work, one, other, change(values)))
        used = [_logarithms(results, slowdown.cpu_subject(work), case) for work in times]
        cpu = [-statistics.fmean(values) for values in zip(*used, strict=True)]
        found.append((case, CPU, None, None, change(cpu)))
        if reader := _reader(results, case):
            found.append((case, READER, None, None, change(reader)))
    sure = differ([one[-1] for one in found])
    return [
        Line(*one, _verdict(one[-1], is_sure)) for one, is_sure in zip(found, sure, strict=True)
    ]


def _cases(results: Results) -> Iterator[str]:
    for case in CASES.values():
        if results.all(slowdown.NAME, "records", case_of("b", case)):
            yield case


def _verdict(found: Change, is_sure: bool) -> str:
    if not is_sure:
        return "~"
    return "slower" if found.ratio > 1 else "faster"


def _logarithms(results: Results, subject: str, case: str) -> list[float]:
    """By round, of how many times as long B took as A, each beside the same work without a tool.

    The subject is a rate; of a cost, the sign is the other one.
    """
    ours = [
        results.all(slowdown.NAME, subject, name)
        for side in "ab"
        for name in (case_of(side, case), slowdown.bare(case_of(side, case)))
    ]
    return [math.log(a / a0 / (b / b0)) for a, a0, b, b0 in zip(*ours, strict=False)]


def _slowdown(results: Results, work: str, side: str, case: str) -> float:
    name = case_of(side, case)
    return statistics.median(
        results.slowdowns(slowdown.NAME, work, name, slowdown.bare(name))
    )


def _reader(results: Results, case: str) -> list[float]:
    """The logarithms of the rounds; [] where next to nothing is recorded."""
    names = [case_of(side, case) for side in "ab"]
    records = [results.all(slowdown.NAME, "records", name) for name in names]
    if min(map(min, records)) < FEW_RECORDS:
        return []
    a, b = (results.all(slowdown.NAME, slowdown.READER, name) for name in names)
    return [math.log(y / x) for x, y in zip(a, b, strict=False)]


def table(found: Sequence[Line], trees: Sequence[Tree], results: Results) -> Table:
    a, b = (f"{tree.name} ({tree.commit})" for tree in trees)
    rows = []
    for line in found:
        one = line.change
        slowdowns = ["" if value is None else percent(value) for value in (line.a, line.b)]
        ratio = f"{one.ratio:.3f} \u00b1 {one.error * one.ratio:.3f}"
        rows.append([f"{line.case}: {line.work}", *slowdowns, ratio, line.verdict])
    lost = [
        f"{case}: A {sum(counts[0]):,.0f}, B {sum(counts[1]):,.0f}"
        for case in _cases(results)
        if any(map(any, counts := [results.all(slowdown.NAME, "lost", case_of(side, case))
                                   for side in "ab"]))
    ]  # fmt: skip
    return Table(
        f"A: {a}; B: {b}",
        ("", "A's slowdown", "B's", "B / A", "B is"),
        rows,
        f"Slowdown: the median of {results.rounds} rounds. B / A: time or CPU with B, divided by "
        "that with A, each beside the same work without a tool; the geometric mean of the rounds "
        "and its standard error. slower, faster: beyond noise (t test of the rounds' differences; "
        "of all lines called so, one in twenty is so by chance). ~: noise can be the reason. "
        f"Lost records: {'; '.join(lost) or 'none'}.",
    )


def to_json(found: Sequence[Line], trees: Sequence[Tree], results: Results) -> str:
    """All of it, with the values of each round."""
    document: dict[str, Any] = {
        "trees": {
            side: {"name": tree.name, "commit": tree.commit}
            for side, tree in zip("ab", trees, strict=True)
        },
        "lines": [asdict(line) for line in found],
        "results": asdict(results),
    }
    return json.dumps(document, indent=1) + "\n"
