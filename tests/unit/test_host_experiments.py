# SPDX-License-Identifier: Apache-2.0
"""The page of the host's experiments, and the plain reference, without a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.experiments.results import Results
from scripts.host import checks, everything, groups, overhead, page, session
from scripts.host.mix import BENCHMARKS, Command, Mix
from scripts.host.page import EXPERIMENTS, command
from scripts.host.reference import Reference, compare, covered, times
from tcpkmon.collector.commands.history.monitor import GROUPS
from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import UsageError
from tests.unit.test_condense import condensed, write
from tests.unit.test_condense import session as random_session


def made(off: float = 1.001, on: float = 1.005) -> Results:
    """Results of each experiment; off, on: how many times the CPU time that U1 takes."""
    results = Results(machine={"CPU model": "A | B", "CPU": "2 CPUs", "kernel": "6.18 x"}, rounds=3)
    add = results.add
    names = [
        f"{benchmark}: {step.name}"
        for benchmark, steps in BENCHMARKS.items() for step in steps if isinstance(step, Command)
    ]  # fmt: skip
    for at in range(3):
        for name in (*names, overhead.BOTH):
            for case, ratio in zip(overhead.CONDITIONS, (1.0, off, on), strict=True):
                add("U1", name, case, ratio * (1 + 0.0001 * at * (case != overhead.ABSENT)))
    for group in GROUPS:
        add("U1", overhead.EVENTS, str(group), 1000)
        add("H8", groups.RECORDS, str(group), 2)
        for case, ns in zip(overhead.CONDITIONS, (100.0, 110.0, 900.0), strict=True):
            add("H8", f"{groups.OPERATION}, {case}", str(group), ns)
    add("U1", overhead.COLLECTOR, overhead.ON, 0.001)
    add("U2", session.CELLS, "report", 400)
    add("U2", session.WRONG, "report", 0)
    add("U2", session.EVENTS, "monitor", 6000)
    add("U2", session.ELAPSED, "monitor", 60)
    for name in session.CLASSES:
        add("U2", "Response time (s), mean", name, 0.25)
        add("U2", "Response time (s), p95", name, 0.75)
    for name in ("U3", "U4", "U5", "H1", "H2", "H4", "H5", "H6"):
        checks.agree(results, name, "counts", 7, 7)
        checks.bound(results, name, "share", 60, least=50)
    for what, value in ((everything.PROVEN, 3), (everything.WARNINGS, 0), (everything.LOST, 2)):
        add("H10", what, "all", value)
    results.seconds = dict.fromkeys(EXPERIMENTS, 1.0)
    return results


def reached(results: Results) -> dict[str, bool | None]:
    found = [one for each in EXPERIMENTS.values() for one in each.figures(results)]
    return {one.experiment: one.reached for one in found}


def test_all_is_as_wanted() -> None:
    found = reached(made())
    assert len(found) == 18
    assert False not in found.values(), found


def test_each_target_can_be_missed() -> None:
    for results, missed in (
        (made(off=1.003), "U1: CPU time of both benchmarks, monitor attached, off"),
        (made(on=1.02), "U1: CPU time of both benchmarks, monitor on"),
    ):
        assert reached(results)[missed] is False
    results = made()
    results.values["U2"][session.WRONG]["report"] = [1]
    assert list(reached(results).values()).count(False) == 1
    for what, value in ((everything.PROVEN, 1), (everything.WARNINGS, 2)):
        results = made()
        results.values["H10"][what]["all"] = [value]
        assert list(reached(results).values()).count(False) == 1
    results = made()
    for group in GROUPS:
        results.values["H8"][f"{groups.OPERATION}, {overhead.OFF}"][str(group)] = [2000.0]
    assert list(reached(results).values()).count(False) == 1
    results = made()
    results.values["H1"]["counts"][checks.OURS] = [6]
    results.values["H2"]["share"][checks.OURS] = [49]
    assert reached(results)["H1: counts"] is False
    assert reached(results)["H2: share"] is False


def test_the_page_has_each_experiment_and_the_thesis(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    written = page.PAPER.write(made(), tmp_path)
    assert [path.name for path in written] == ["monitor.md", "monitor.png"]
    assert written[1].stat().st_size > 10_000
    text = written[0].read_text()
    for one in EXPERIMENTS.values():
        assert f"## {one.title}\n" in text
    for part in ("A \\| B", "Linux 6.18", "x 1.0006", "12.048", "25.058", "8017.077", "43.4541",
                 "0.250 / 0.750", "400 of 400"):  # fmt: skip
        assert part in text, part


@pytest.mark.parametrize("words, said", [
    (("--docs", "--quick"), "of a whole run"), (("--only", "U9"), "no such experiment: U9"),
    (("--session", "1"), "10<=x<=3600"),
])  # fmt: skip
def test_wrong_arguments(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, list(words), "host-experiments") == UsageError.exit_code
    assert said in capsys.readouterr().err


def test_what_differs_is_found() -> None:
    again = {"a": [1.0, {"b": None}], "c": {"d": 2}}
    assert compare({"a": [1.0, {"b": None}], "c": {"d": 2}, "more": 1}, again) == (3, [])
    count, wrong = compare({"a": [1.1, {"b": 0.0}], "c": {}}, again)
    assert count == 3
    assert wrong == ["a[0]: 1.1, again 1.0", "a[1].b: 0.0, again None", "c.d: None, again 2"]
    assert compare({"a": [1]}, {"a": [1, 2]})[1] == ["a: [1], again [1, 2]"]


def test_plain_figures() -> None:
    assert covered([(5, 9), (0, 4), (3, 6), (3, 5)]) == 9
    assert covered([]) == 0
    assert times([]) is None
    found = times([1_000_000_000 * n for n in (4, 1, 3, 2)])
    assert found is not None
    assert (found["count"], found["mean"], found["p50"], found["most"]) == (4, 2.5, 2.5, 4.0)
    assert found["p95"] == pytest.approx(3.85)


@pytest.mark.parametrize("seed", range(3))
def test_the_reference_is_the_condenser(tmp_path: Path, seed: int) -> None:
    """Both by themselves find the same in a made log; a wrong cell is told."""
    folder = write(tmp_path / "log", random_session(seed))
    report = condensed(folder)
    reference = Reference()
    with open_log(folder) as log:
        for event in log:
            reference.add(event)
    again = reference.report()
    by_name = {group["name"]: group for group in again["classes"]}
    for group in report.classes:
        mine = by_name[group.name]
        assert group.processes == mine["processes"]
        for told, plain in ((group.response, mine["response"]), (group.think, mine["think"]),
                            (group.cpu, mine["cpu"]), (group.io, mine["io"])):  # fmt: skip
            assert (told is None) == (plain is None)
            if told is not None:
                assert (told.count, told.mean) == (plain["count"], pytest.approx(plain["mean"]))
        assert group.virtual_faults == mine["virtual_faults"]
    assert report.disk is not None
    assert report.disk.true == pytest.approx(again["disk"]["true"])
    assert report.disk.total == pytest.approx(again["disk"]["total"])


def test_each_user_runs_a_command_as_often_as_told(tmp_path: Path) -> None:
    """mtime's -u and -r."""
    mix = Mix.__new__(Mix)
    mix.folder = tmp_path
    mix.run([Command("count", "echo $USER >> runs", users=2, runs=3)])
    assert sorted((tmp_path / "runs").read_text().split()) == ["user0"] * 3 + ["user1"] * 3
    with pytest.raises(ValueError, match="exit code 4"):
        mix.run([Command("fails", "exit 4", runs=2)])
