# SPDX-License-Identifier: Apache-2.0
"""Two trees in turn: what is called slower is slower, what is noise is not."""

from __future__ import annotations

import random

import pytest
from test_bench_figures import run_bench

from scripts.benchmark import compare, slowdown
from scripts.benchmark.results import Results, change, differ
from scripts.benchmark.slowdown import WORK


def test_noise_is_called_a_difference_in_one_of_twenty_runs_however_many_lines() -> None:
    random.seed(7)
    runs = 300
    wrong = sum(
        any(differ([change([random.gauss(0, 1) for _ in range(10)]) for _ in range(40)]))
        for _ in range(runs)
    )
    assert 0.02 < wrong / runs < 0.09


def measured(times: float, rounds: int = 10, noise: float = 0.02) -> Results:
    """Of a B whose default takes so many times as long in all work, on a machine that drifts."""
    random.seed(4)
    results = Results(rounds=rounds)
    for number in range(rounds):
        for side, factor in (("a", 1.2), ("b", 1.2 * times)):
            speed = 1 + number / rounds + (side == "b") / 5
            case = compare.case_of(side, slowdown.DEFAULT)
            for work in WORK:
                rate = 100 * speed / (factor * random.gauss(1, noise))
                for subject, value, bare in (
                    (work, rate, 100 * speed),
                    (slowdown.cpu_subject(work), 1 / rate, 1 / (100 * speed)),
                ):
                    results.add(slowdown.NAME, subject, case, value)
                    results.add(slowdown.NAME, subject, slowdown.bare(case), bare)
            results.add(slowdown.NAME, "records", case, 50_000)
            results.add(slowdown.NAME, "lost", case, 0)
            reader = 0.2 * random.gauss(1, noise) * (2 if side == "b" and times < 1 else 1)
            results.add(slowdown.NAME, "cpu_us", case, reader)
    return results


def verdicts(results: Results) -> dict[str, str]:
    return {line.work: line.verdict for line in compare.lines(results)}


@pytest.mark.parametrize(("times", "word"), [(1.0, "~"), (1.1, "slower"), (0.9, "faster")])
def test_verdict_on_trees_that_differ_by_so_much(times: float, word: str) -> None:
    found = verdicts(measured(times))
    assert {found[work] for work in (compare.ALL_WORK, compare.CPU, *WORK)} == {word}
    assert found[compare.READER] == ("slower" if times < 1 else "~")


def test_a_ratio_is_of_b_to_a_beside_the_same_work_without_a_tool() -> None:
    [line] = [one for one in compare.lines(measured(1.1)) if one.work == compare.ALL_WORK]
    assert line.change.ratio == pytest.approx(1.1, rel=0.01)
    assert line.a == pytest.approx(0.20, abs=0.01)
    assert line.b == pytest.approx(0.32, abs=0.01)
    assert line.change.rounds == 10


def test_with_much_noise_and_few_rounds_nothing_is_told_apart() -> None:
    assert set(verdicts(measured(1.05, rounds=3, noise=0.3)).values()) == {"~"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--docs",), "has no page"),
        (("--rounds", "1"), "two rounds"),
        (("--only", "churn"), "no such case: churn"),
    ],
)
def test_a_comparison_refuses_what_it_cannot_do(words: tuple[str, ...], said: str) -> None:
    done = run_bench("--compare", "HEAD", "HEAD", *words)
    assert done.returncode == 2
    assert said in done.stderr
