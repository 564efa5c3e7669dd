# SPDX-License-Identifier: Apache-2.0
"""Two trees in turn: what is called slower is slower, what is noise is not."""

from __future__ import annotations

import json
import math
import random
import subprocess
from pathlib import Path

import pytest
from test_bench_figures import run_bench

from scripts.benchmark import compare, slowdown
from scripts.benchmark.results import Change, Results, chance_of, change, differ
from scripts.benchmark.slowdown import WORK
from scripts.benchmark.trees import Tree, tree
from tcpkmon.formats.base.errors import TcpkmonError, UsageError

TREES = [Tree("main", "abc", Path("/a")), Tree("HEAD", "def", Path("/b"))]


@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (14, 2.145), (30, 2.042)],
)
def test_chances_are_those_of_students_table(freedom: int, t: float) -> None:
    assert chance_of(t, freedom) == pytest.approx(0.05, abs=5e-5)
    assert chance_of(-t, freedom) == chance_of(t, freedom)
    assert chance_of(0.0, freedom) == pytest.approx(1.0)


def test_chance_of_a_large_t_is_small_and_no_less_than_nothing() -> None:
    assert chance_of(4.781, 9) == pytest.approx(0.001, rel=1e-3)
    assert 0 <= chance_of(1e9, 9) < 1e-12


def test_change_is_the_geometric_mean_with_its_error() -> None:
    found = change([math.log(1.1), math.log(1.3)])
    assert found.ratio == pytest.approx(math.sqrt(1.1 * 1.3))
    assert found.error == pytest.approx(math.log(1.3 / 1.1) / 2)
    assert change([0.0, 0.0]).chance == 1.0
    assert change([0.1, 0.1]).chance == 0.0


def test_noise_is_called_a_difference_in_one_of_twenty_runs_however_many_lines() -> None:
    random.seed(7)
    runs = 300
    wrong = sum(
        any(differ([change([random.gauss(0, 1) for _ in range(10)]) for _ in range(40)]))
        for _ in range(runs)
    )
    assert 0.02 < wrong / runs < 0.09


def test_lines_that_differ_are_found_among_those_that_do_not() -> None:
    # By Benjamini and Hochberg the bounds are 0.0125, 0.025, 0.0375, 0.05: the third drags
    # the second along, which is beyond its own bound.
    changes = [Change(1.1, 0.1, chance, 10) for chance in (0.9, 0.03, 0.001, 0.036)]
    assert differ(changes) == [False, True, True, True]
    assert differ([]) == []


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


def test_reader_of_next_to_nothing_is_not_compared() -> None:
    results = measured(1.0)
    records = results.values[slowdown.NAME]["records"]
    records[compare.case_of("b", slowdown.DEFAULT)][4] = 3
    assert compare.READER not in verdicts(results)


def test_table_and_json_say_the_same() -> None:
    results = measured(1.1)
    results.values[slowdown.NAME]["lost"][compare.case_of("b", slowdown.DEFAULT)][0] = 7
    found = compare.lines(results)
    table = compare.table(found, TREES, results)
    assert table.title == "A: main (abc); B: HEAD (def)"
    assert table.rows[0][0] == "collect: all work"
    assert {row[-1] for row in table.rows} == {"slower", "~"}
    assert "collect: A 0, B 7" in table.note
    document = json.loads(compare.to_json(found, TREES, results))
    assert document["trees"]["b"] == {"name": "HEAD", "commit": "def"}
    assert [line["verdict"] for line in document["lines"]] == [row[-1] for row in table.rows]
    assert document["results"]["values"] == results.values


def test_a_tree_is_a_folder_or_a_revision(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a folder nor a revision"), \
            tree("no-such-revision", print):  # fmt: skip
        pass
    with pytest.raises(UsageError, match="no tree of tcpkmon"), tree(str(tmp_path), print):
        pass


def test_a_folder_is_set_up_by_its_own_script(tmp_path: Path) -> None:
    setup = tmp_path / "scripts" / "setup"
    setup.parent.mkdir()
    setup.write_text("touch $(dirname $0)/done\n")
    with tree(str(tmp_path), print) as found:
        assert (tmp_path / "scripts" / "done").exists()
        assert found.programs == tmp_path / ".venv" / "bin"
    setup.write_text("echo no packages >&2; exit 1\n")
    with pytest.raises(TcpkmonError, match="no packages"), tree(str(tmp_path), print):
        pass


def test_a_revision_is_unpacked_and_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "setup").write_text("exit 0\n")
    git("init", "-q")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    (tmp_path / "scripts" / "setup").write_text("exit 1\n")
    monkeypatch.setattr("scripts.benchmark.trees.GIT", ("git", "-C", str(tmp_path)))
    with tree("HEAD", print) as found:
        assert (found.root / "scripts" / "setup").read_text() == "exit 0\n"
        assert len(found.commit) == 7
    assert not found.root.exists()


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
