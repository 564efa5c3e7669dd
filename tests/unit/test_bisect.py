# SPDX-License-Identifier: Apache-2.0
"""tcpkmon bisect: its error rate, its power, the halving, its exit codes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.commands import bisect, bisect_sides
from tcpkmon.collector.commands.bisect_scenario import Scenario, parse_path
from tcpkmon.collector.commands.bisect_sides import Guests, Sides, words_of
from tcpkmon.collector.commands.bisect_trial import Trials
from tcpkmon.formats.analysis.bisecting import (
    Look,
    Plan,
    Told,
    halve,
    make_plan,
    powers,
    refuse_useless,
    tell,
)
from tcpkmon.formats.analysis.diff import BY_NAME, DIFFERS, Compared, read_run
from tcpkmon.formats.base import cli
from tcpkmon.formats.base.errors import DamagedError, UsageError
from tests.unit.diff_capture import write_runs

pytest.importorskip("scipy")
ONE = ["duration_us"]
BOTH = ["duration_us", "goodput_mean"]


def play(
    plan: Plan, draw: Callable[[], dict[str, Any]], intervals: bool = False, change: float = 0.0
) -> Told:
    """A whole plan on values that are drawn: what it ends with. change: of the second side."""
    a, b = draw(), draw()
    for look in plan.looks:
        one, other = ({name: values[: look.runs] for name, values in side.items()}
                      for side in (a, b))  # fmt: skip
        other = {name: values * (1 + change) for name, values in other.items()}
        told = tell(plan, look, one, other, intervals)
        if told.is_sure:
            break
    return told


def drawing(chance: np.random.Generator, plan: Plan, scatter: float, digits: int = 9) -> Any:
    """Two metrics that depend on each other, with a long tail; few digits make them equal."""

    def draw() -> dict[str, Any]:
        base = chance.lognormal(0, scatter, plan.runs)
        return {"duration_us": np.round(1000 * base, digits),
                "goodput_mean": np.round(1e3 / base * chance.lognormal(0, 0.01, plan.runs), digits)}

    return draw


# Error rate and power


@pytest.mark.parametrize(
    ("runs", "digits", "plans", "most"),
    [
        (12, 9, 150, 15),
        pytest.param(20, 9, 2000, 123, marks=pytest.mark.full),
        pytest.param(12, -1, 60, 8, marks=[pytest.mark.full, pytest.mark.timeout(900)]),
    ],
)
def test_null_runs_are_taken_for_different_in_no_more_than_alpha(
    runs: int, digits: int, plans: int, most: int
) -> None:
    """Plans without a difference at alpha 0.05. most: what that exceeds in one case of 100."""
    plan = make_plan(BOTH, runs, 0.05, 0.05)
    draw = drawing(np.random.default_rng(runs), plan, 0.05, digits)
    alarms = sum(bool(play(plan, draw).changed) for _ in range(plans))
    print(alarms)
    assert alarms <= most


@pytest.mark.full
def test_looking_each_time_at_the_whole_level_would_alarm_too_often() -> None:
    """What the rule is for, and that the simulation above could fail."""
    plan = make_plan(ONE, 20, 0.05, 0.05)
    naive = replace(plan, looks=tuple(Look(runs, 0.05) for runs in range(4, 21, 2)))
    draw = drawing(np.random.default_rng(3), plan, 0.05)
    alarms = sum(bool(play(naive, draw).changed) for _ in range(150))
    print(alarms)
    assert alarms > 15


@pytest.mark.parametrize("runs", [5, 8, 20, 60])
def test_the_looks_spend_alpha_and_no_more(runs: int) -> None:
    plan = make_plan(ONE, runs, 0.05, 0.05)
    assert sum(look.alpha for look in plan.looks) == pytest.approx(0.05)
    assert plan.looks[-1].runs == runs and len(plan.looks) <= 4
    counts = [look.runs for look in plan.looks]
    assert counts == sorted(set(counts))


def test_runs_that_cannot_prove_anything_are_refused() -> None:
    with pytest.raises(UsageError, match="it takes --runs 6"):
        make_plan(BOTH, 3, 0.01, 0.05)
    assert make_plan(BOTH, 6, 0.01, 0.05).looks == (Look(6, 0.01),)
    with pytest.raises(UsageError, match="baseline takes more than 2"):
        make_plan(BOTH, 20, 1e-9, 0.05, baseline=2)
    # A long baseline needs few runs: one of four metrics of 3 runs against 20.
    assert make_plan(ONE, 3, 0.01, 0.05, baseline=20).looks[0].runs == 3


def test_the_power_is_as_told() -> None:
    """The runs that are told to show 5 % show it in 80 %, by a scatter that is known well."""
    chance = np.random.default_rng(4)
    wide = replace(make_plan(ONE, 20, 0.05, 0.05), runs=4000)
    (told,) = powers(make_plan(ONE, 20, 0.05, 0.05), *(drawing(chance, wide, 0.05)()
                                                      for _ in range(2)))  # fmt: skip
    assert told.scatter == pytest.approx(0.05, rel=0.06) and told.needed is not None
    plan = make_plan(ONE, told.needed, 0.05, 0.05)
    draw = drawing(chance, plan, 0.05)
    found = sum(bool(play(plan, draw, change=0.05).changed) for _ in range(150))
    print(told.needed, found)
    assert 0.7 * 150 <= found <= 0.97 * 150


def test_a_pilot_overstates_the_scatter_in_four_cases_of_five() -> None:
    plan = make_plan(ONE, 20, 0.05, 0.05)
    draw = drawing(np.random.default_rng(5), replace(plan, runs=5), 0.05)
    found = [powers(plan, draw(), draw())[0] for _ in range(500)]
    assert 0.74 < np.mean([one.scatter_most > np.expm1(0.05) for one in found]) < 0.86
    # Twice the runs show less than the same number, and no runs show nothing.
    more = powers(make_plan(ONE, 40, 0.05, 0.05), draw(), draw())[0]
    assert more.needed is not None and 0 < more.shows < 1
    assert powers(plan, {"duration_us": np.zeros(5)}, draw()) == []


def test_no_difference_is_said_wrongly_in_five_per_cent_at_most() -> None:
    """Of sides that differ by exactly the least change that matters; and it is said of equal ones.
    8 of 60 is what 5 % exceeds in one case of 100."""
    plan = make_plan(ONE, 20, 0.01, 0.05)
    draw = drawing(np.random.default_rng(6), plan, 0.05)
    wrong = sum(bool(play(plan, draw, True, 0.05).equal) for _ in range(60))
    tight = drawing(np.random.default_rng(7), plan, 0.02)
    told = [play(plan, tight, True) for _ in range(20)]
    print(wrong, sum(bool(one.equal) for one in told))
    assert wrong <= 8
    assert sum(bool(one.equal) for one in told) >= 18
    assert np.mean([one.runs[0] for one in told]) < 12  # it stops early


def test_a_large_change_is_named_at_the_first_look_with_its_interval() -> None:
    plan = make_plan(BOTH, 20, 0.01, 0.05)
    told = play(plan, drawing(np.random.default_rng(8), plan, 0.03), True, 0.38)
    (one, _) = told.changed
    assert told.runs == (plan.looks[0].runs,) * 2 and one.interval is not None
    assert one.interval[0] < 0.38 < one.interval[1]


def test_a_plan_whose_runs_are_all_equal_says_so() -> None:
    plan = make_plan(BOTH, 20, 0.01, 0.05)
    same = dict.fromkeys(BOTH, np.full(5, 7.0))
    with pytest.raises(UsageError, match=r"all runs of both sides are equal \(duration_us 7"):
        refuse_useless(plan, same, same)
    refuse_useless(plan, same, {**same, "goodput_mean": np.arange(5.0)})
    with pytest.raises(UsageError, match="no run has a value of goodput_mean"):
        refuse_useless(plan, {"duration_us": np.arange(5.0)}, {})


# Halving


def told(change: float | None) -> Told:
    """Of a pair: changed by so much; None: no difference."""
    one = Compared(BY_NAME["duration_us"], DIFFERS, change=change or 0.0, p=0.001)
    rows = (one,)
    return Told(Look(7, 0.01), (7, 7), rows if change else (), () if change else rows, ())


def steps(values: Sequence[float]) -> tuple[Any, list[Sequence[int]]]:
    """A trial of sides that have these values."""
    asked: list[Sequence[int]] = []

    def trial(sides: Sequence[int], _names: Sequence[str]) -> list[Told]:
        asked.append(tuple(sides))
        near = [values[side] for side in sides]
        return [told(b - a if b != a else None) for a, b in itertools.pairwise(near)]

    return trial, asked


@pytest.mark.parametrize("at", range(1, 8))
def test_halving_finds_the_step(at: int) -> None:
    trial, asked = steps([0.0] * at + [1.0] * (8 - at))
    found = halve(8, trial)
    assert (found.low, found.high) == (at - 1, at) and found.told.changed
    assert len(asked) <= 4 and not found.gradual


def test_halving_stops_where_it_cannot_go_on() -> None:
    trial, asked = steps([0.0, 3.0, 0.0])
    assert not halve(3, trial).told.changed and asked == [(0, 2)]
    trial, _ = steps([0.0, 1.0, 5.0, 6.0])
    found = halve(4, trial)
    assert (found.low, found.high, found.gradual) == (1, 2, (1, 2))

    def blind(sides: Sequence[int], _names: Sequence[str]) -> list[Told]:
        return [told(1.0)] if len(sides) == 2 else [told(None), told(None)]

    found = halve(5, blind)
    assert (found.low, found.high) == (0, 4) and found.told.changed


# The runs


class Drawn(Sides):
    """Sides whose captures are written, with a rate each."""

    def __init__(self, rates: Sequence[float], scatter: float = 0.02, **options: Any) -> None:
        super().__init__([f"x={rate:g}" for rate in rates], Scenario(("true",)), [], None)
        self.asked: list[int] = []
        self._rates, self._scatter, self._options = rates, scatter, options
        self._chance = np.random.default_rng(9)

    def play(self, side: int, output: Path) -> None:
        self.asked.append(side)
        rate = self._rates[side] * self._chance.lognormal(0, self._scatter)
        connections = [] if not self._rates[side] else [(rate, 20_000)]
        write_runs(output, connections, **self._options)


def test_sides_take_turns_and_a_change_is_found(tmp_path: Path) -> None:
    said: list[str] = []
    sides = Drawn([1e6, 1e6, 2e6])
    trials = Trials(sides, make_plan(ONE, 5, 0.05, 0.05), tmp_path, None, said.append)
    found = halve(3, trials.compare)
    assert (found.low, found.high) == (1, 2)
    change = found.told.changed[0].change
    assert change is not None and -0.55 < change < -0.45
    # A warm-up of each, then in turn, each time the other way round.
    assert sides.asked[:8] == [0, 2, 0, 2, 2, 0, 0, 2]
    assert any("runs of a side show a change of 5 %" in line for line in said), said
    assert not list(tmp_path.rglob("warm-up*"))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"lose": True}, DamagedError, "not proven"),
        ({"scatter": 0.0}, UsageError, "all runs of both sides are equal"),
    ],
)
def test_what_tells_nothing_is_refused(
    options: dict[str, Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    trials = Trials(Drawn([1e6, 1e6], **options), make_plan(ONE, 5, 0.05, 0.05), tmp_path, None,
                    print)  # fmt: skip
    with pytest.raises(error, match=text):
        trials.compare((0, 1), ())


def test_a_command_without_connections_is_refused_at_its_first_run(tmp_path: Path) -> None:
    sides = Drawn([0, 1e6])
    trials = Trials(sides, make_plan(ONE, 5, 0.05, 0.05), tmp_path, None, print)
    with pytest.raises(UsageError, match="makes no connection"):
        trials.compare((0, 1), ())
    assert sides.asked == [0]


def test_a_step_against_a_baseline(tmp_path: Path) -> None:
    good = [read_run(write_runs(tmp_path / f"{n}.pm", [(1e6 + 1e3 * n, 20_000)])) for n in range(8)]
    for rate, code in ((1e6, bisect.GOOD), (5e5, bisect.BAD), (2e6, bisect.GOOD)):
        plan = make_plan(ONE, 8, 0.05, 0.05, baseline=len(good))
        folder = tmp_path / f"{rate:g}"
        trials = Trials(Drawn([rate], 0.005), plan, folder, None, print, good)
        (found,) = trials.compare((0,), ())
        assert found.runs[0] == 8 and bisect._verdict(found, plan) == code, rate
    noisy = Trials(Drawn([1e6], 0.4), plan, tmp_path / "noisy", None, print, good)
    assert bisect._verdict(noisy.compare((0,), ())[0], plan) == bisect.SKIP


# The command


def run(*words: object) -> int:
    return cli.run(bisect.command, [str(word) for word in words], "tcpkmon bisect")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--", "true"), 2, "say what the sides are"),
        (("--over", "sysctl", "net.ipv4.tcp_sack=0,1"), 2, "no command after --"),
        (("--over", "sysctl", "a", "--metrics", "nono", "--path", "x=1", "--", "true"), 2,
         "no metric nono"),
        (("--over", "sysctl", "a", "--baseline", "b", "--", "true"), 2, "--baseline is for --step"),
        (("--over", "nothing", "--", "true"), 2, "invalid value"),
        # git bisect run takes 1 to 124, and 126 and 127, for a bad commit.
        (("--step", "--nono", "--", "true"), 128, "--nono"),
        (("--step", "--runs", "none", "--", "true"), 128, "none"),
        (("--step", "--", "true"), 128, "a baseline of several runs"),
        (("--step", "--over", "kernels", "--", "true"), 128, "--step has one side"),
        (("--step", "--baseline", "/nowhere", "--", "true"), 125, "nowhere"),
    ],
)  # fmt: skip
def test_mistakes(words: Sequence[str], code: int, text: str, capsys: Any) -> None:
    assert run(*words) == code
    assert text in capsys.readouterr().err.replace("Invalid", "invalid")


def test_help_of_a_step_is_no_bad_commit(capsys: Any) -> None:
    assert run("--step", "--help") == 0
    assert "git bisect run" in capsys.readouterr().out


def test_without_the_source_tree_there_are_no_guests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bisect_sides, "_GUESTS", tmp_path / "scripts/vm/bisecting.py")
    with pytest.raises(UsageError, match="source tree"):
        Guests(["6.1", "6.12"], Scenario(("true",)), tmp_path)


def test_paths_and_words() -> None:
    assert parse_path(None) == {} and parse_path("delay_ms=20, lose_every=3") == {
        "delay_ms": 20, "lose_every": 3
    }  # fmt: skip
    link = Scenario(("true",), path=parse_path("delay_ms=20,lose_every=3")).link
    assert link is not None and (link.there.delay_ms, link.back.delay_ms) == (20, 20)
    assert isinstance(link.there.lose_every, int)
    for text in ("delay=1", "delay_ms=x", "delay_ms=-1", "delay_ms=nan"):
        with pytest.raises(UsageError):
            parse_path(text)
    assert words_of(["a b"]) == ("sh", "-c", "a b") and words_of(["a", "b c"]) == ("a", "b c")
    with pytest.raises(UsageError):
        words_of([])


def test_what_is_printed(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command but for the kernel."""
    monkeypatch.setattr("tcpkmon.collector.linux.privileges.check_root", lambda _what: None)
    monkeypatch.setattr(bisect_sides, "sysctl_sides", lambda *_: Drawn([1e6, 5e5]))
    words = ("--over", "sysctl", "net.x=0,1", "--runs", "5", "--alpha", "0.05", "--metrics",
             "duration_us")  # fmt: skip
    assert run(*words, "-o", tmp_path / "kept", "--", "true") == 0
    out = capsys.readouterr().out
    assert "x=1e+06 -> 500000: duration_us" in out and "goodput_mean" in out, out
    assert len(list(tmp_path.rglob("*.pm"))) == 8
    assert run(*words, "--json", "--", "true") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["changed"][0]["worse"] and found["exit_code"] == 0
    assert run(*words, "-o", tmp_path / "kept", "--", "true") == 1  # it has files
    monkeypatch.setattr(bisect_sides, "sysctl_sides", lambda *_: Drawn([1e6, 1e6], 0.5))
    assert run(*words, "--", "true") == 2
    assert "neither a difference nor" in capsys.readouterr().out
