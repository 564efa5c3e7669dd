# SPDX-License-Identifier: Apache-2.0
"""A capture's budget: its steps, when they are taken and taken back, what verify says of them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpkmon.collector.commands import capture_options
from tcpkmon.collector.commands.collect import command
from tcpkmon.collector.loader import shedding
from tcpkmon.collector.plan import budget as plan
from tcpkmon.collector.plan import columns
from tcpkmon.collector.plan.budget import Budget, is_in_sample, make_steps
from tcpkmon.collector.plan.options import make_part
from tcpkmon.collector.session.budget import MOST_BACKOFF, Controller, Measured
from tcpkmon.formats.base.changes import ChangeKind
from tcpkmon.formats.base.control import Change
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.shedding import Why, encode_why
from tcpkmon.formats.verify import verify_file
from tests.unit.captures import CaptureBuilder

SCHEMA = columns.load_schema()
LOCATIONS = set(columns.locations_of(SCHEMA))
BUDGET = Budget(cpu=0.05, back_after_s=10)
ROOT = Path(__file__).parents[2]


def feed(controller: Controller, parts: list[float], begin_s: float = 0.0) -> list[int]:
    """The level after each second in which so much of the CPU budget was used."""
    levels = []
    for second, part in enumerate(parts):
        controller.feed(Measured(begin_s + second, cpu=0.05 * part))
        levels.append(controller.level)
    return levels


def test_steps_in_their_order() -> None:
    steps = make_steps(LOCATIONS, ("snd_cwnd",))
    assert [step.locations for step in steps[:3]] == [*plan.LOCATIONS]
    assert [(step.unchanged, step.sample) for step in steps[3:]] == [
        (True, 0), *((False, n) for n in range(1, 7))
    ]
    kept = LOCATIONS - {name for step in steps for name in step.locations}
    assert kept == {
        "SEGMENT_RECEIVED", "RETRANSMIT", "RETRANSMIT_SYNACK", "STATE_CHANGE", "RESET_SENT",
        "RESET_RECEIVED", "DESTROY", "RCVQ_FULL", "SOCKET_ERROR", "RTO", "SEGMENT_CLOSING",
        "DROPPED",
    }


def test_each_second_above_is_a_step_and_no_more_than_there_are() -> None:
    controller = Controller(BUDGET, 3)
    assert feed(controller, [0.9, 1.0, 1.1, 2, 9, 9, 9]) == [0, 0, 1, 2, 3, 3, 3]


def test_that_no_step_helps_is_told_once_and_again_after_it_was_over() -> None:
    controller = Controller(BUDGET, 1)
    told = [controller.feed(Measured(n, cpu=0.1 if n != 4 else 0.04)) for n in range(7)]
    assert [bool(one and one.is_stuck) for one in told] == [
        False, True, False, False, False, True, False
    ]


def test_back_after_ten_calm_seconds_each_and_not_between() -> None:
    controller = Controller(BUDGET, 5)
    feed(controller, [2, 2])
    assert feed(controller, [0.71] * 50, 2) == [2] * 50
    assert feed(controller, [0.69] * 9 + [0.8] + [0.69] * 10, 52) == [2] * 20
    assert feed(controller, [0.69] * 11, 72) == [1] * 10 + [0]


def test_a_step_that_was_taken_back_too_early_waits_twice_as_long() -> None:
    controller, level, changes = Controller(BUDGET, 5), 0, []
    for second in range(3600):
        part = 1.2 / 2**controller.level  # a step halves it: 60 %, which is below 70 %
        decision = controller.feed(Measured(second, cpu=0.05 * part))
        if controller.level != level:
            assert decision is not None
            level = controller.level
            changes.append(second)
    back = [later - earlier for earlier, later in itertools.pairwise(changes)][0::2]
    assert back[:6] == [11, 21, 41, 81, 161, 321] and set(back[6:]) == {MOST_BACKOFF * 10 + 1}
    assert len(changes) < 35


def test_memory_takes_a_step_only_while_it_grows() -> None:
    controller = Controller(Budget(memory_bytes=100), 5)
    told = [controller.feed(Measured(n, memory=m)) for n, m in enumerate((90, 110, 110, 111, 130))]
    assert [controller.level] == [2]
    assert told[0] is None and told[1] is not None and told[1].why is Why.MEMORY
    assert told[2] is not None and told[2].is_stuck and told[3] is None


@given(st.lists(st.floats(0, 5), max_size=200), st.integers(1, 9))
def test_any_load_moves_by_one_step_for_a_reason(parts: list[float], most: int) -> None:
    controller, level, calm = Controller(BUDGET, most), 0, 0
    for second, part in enumerate(parts):
        calm = calm + 1 if part < 0.7 - 1e-9 else 0
        decision = controller.feed(Measured(second, cpu=0.05 * part))
        assert 0 <= controller.level <= most and abs(controller.level - level) <= 1
        if controller.level > level:
            assert part > 1 and decision is not None and decision.why is Why.CPU
        elif controller.level < level:
            assert calm > BUDGET.back_after_s and decision is not None
            assert decision.why is Why.CALM
        elif decision is not None:
            assert decision.is_stuck and level == most and part > 1
        level = controller.level


@given(st.integers(1, 2**63))
def test_a_smaller_sample_is_a_part_of_the_larger(conn_id: int) -> None:
    inside = [is_in_sample(conn_id, n) for n in range(7)]
    assert inside[0] and inside == sorted(inside, reverse=True)


def asked_for(words: list[str]) -> Budget | None:
    """The budget of a command line."""
    with command.make_context("collect", list(words)):
        budget = capture_options.given().get("budget")
    return None if budget is None else make_part(Budget, budget)


def test_options_and_what_they_refuse() -> None:
    words = "--max-cpu 5% --max-disk-rate 10M --max-memory 1G --back-after 3s"
    assert asked_for([]) is None
    assert asked_for(words.split()) == Budget(0.05, 10 << 20, 1 << 30, 3.0)
    for name, text in (("--max-cpu", "5"), ("--max-cpu", "0%"), ("--max-memory", "much")):
        with pytest.raises(UsageError):
            asked_for([name, text])
    with pytest.raises(UsageError, match="without a limit"):
        asked_for(["--back-after", "3s"])


def test_the_map_has_the_layout_of_the_c_structure() -> None:
    text = (ROOT / "bpf" / "include" / "klogger.h").read_text()
    body = re.search(r"struct klogger_shedding {(.*?)};", text, re.DOTALL)
    assert body is not None
    fields = re.findall(r"u(\d+) (\w+)(\[KLOGGER_POINTS\])?;", body[1])
    made = [(name, f"=u{int(bits) // 8}", *([256] if many else [])) for bits, name, many in fields]
    assert np.dtype(made, align=True) == shedding._SHEDDING and len(made) == 4


def shed_capture(tmp_path: Path, more: int = 0) -> Path:
    build = CaptureBuilder()
    build.snapshots(count=3)
    build.put(Change(ChangeKind.SHED, 0, 10, 20, 0, 1, why=encode_why(Why.CPU, 220)))
    build.withheld(shed=7)
    build.withheld(filtered=more)
    build.counts[0, 1]["filtered"] = 0
    build.snapshots(count=2)
    build.put(Change(ChangeKind.SHED, 0, 30, 40, 1, 0, why=encode_why(Why.CALM, 46)))
    build.end()
    return build.write(tmp_path / "a.pm")


def test_verify_adds_up_what_was_shed(tmp_path: Path) -> None:
    report = verify_file(shed_capture(tmp_path))
    assert not report.problems and report.exit_code == 0
    assert report.totals.shed == 7 and report.totals.attempts == 12
    assert report.verdict == "adds up: nothing lost; 7 shed by the budget"
    assert re.fullmatch(r".*Z: step 1 of the budget leaves out \(CPU at 220 % of its budget\)",
                        report.shed[0])
    assert "step 1 of the budget taken back (the highest at 46 %" in report.shed[1]
    assert report.as_json()["totals"]["shed"] == 7


def test_a_wrong_count_of_what_was_shed_does_not_add_up(tmp_path: Path) -> None:
    report = verify_file(shed_capture(tmp_path, more=1))
    assert report.exit_code == 5
    assert "13 attempts, but 12 filtered, unchanged, shed" in report.problems[0].what


def test_only_the_budget_has_a_reason_and_its_steps_are_in_order(tmp_path: Path) -> None:
    build = CaptureBuilder()
    build.put(Change(ChangeKind.LIMIT, 1, 10, 20, 0, 1, why=1))
    build.put(Change(ChangeKind.SHED, 0, 30, 40, 0, 1))
    build.put(Change(ChangeKind.SHED, 0, 50, 60, 3, 4))
    build.put(Change(ChangeKind.SHED, 0, 70, 80, 5, 0))  # a process that went on
    build.end()
    report = verify_file(build.write(tmp_path / "a.pm"))
    assert [one.what for one in report.problems] == [
        "CHANGE with a reason that only the budget has", "CHANGE from 3, but 1 was in force"
    ]
