# SPDX-License-Identifier: Apache-2.0
"""A capture's budget: its steps, when they are taken and taken back, what verify says of them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpkmon.collector.commands import capture_options
from tcpkmon.collector.commands.collect import command
from tcpkmon.collector.loader import shedding
from tcpkmon.collector.plan import budget as plan
from tcpkmon.collector.plan import columns
from tcpkmon.collector.plan.budget import Budget, Step, is_in_sample, make_steps
from tcpkmon.collector.plan.event_codegen import event_lines
from tcpkmon.collector.plan.event_layout import EventLayout, lay_out_sources
from tcpkmon.collector.plan.options import make_part
from tcpkmon.collector.plan.schema_sources import find_sources
from tcpkmon.collector.session.budget import MOST_BACKOFF, Controller, Measured
from tcpkmon.formats.base.changes import ChangeKind
from tcpkmon.formats.base.control import Change
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.shedding import Why, encode_why
from tcpkmon.formats.klogger.batch import facts_of
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report, verify_file
from tcpkmon.formats.verify.klogger import integers
from tests.unit.log_files import LogMaker as SampleLog
from tests.unit.log_files import describe_events, make_schema
from tests.unit.makers import LogMaker
from tests.unit.psc_files import CaptureBuilder
from tests.unit.test_recorder import last_second, verify_dumps

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
        "DROPPED", "LISTENER", "ACCEPTED",
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


SETTINGS = {"budget": {"steps": ["IP_SEND", "all but 1/2 of the connections"]}}
TAKEN, CALM = encode_why(Why.DISK_RATE, 220), encode_why(Why.CALM, 46)
ORDER = {
    "magnet": [["QDISC_ENQUEUE", "QDISC_DEQUEUE", "DRIVER_START", "DRIVER_RESULT"],
               ["IP_SEND", "IP_RECV"]],
    "sched": [["TRY_TO_WAKEUP", "RESHUFFLE"], ["ADD_TO_RUNQ", "REMOVE_FROM_RUNQ"],
              ["SLEEP", "SCHEDOUT", "SCHEDIN"]],
    "syscall": [["SYSCALL_START"]],
    "user": [], "tty": [], "stopwatch": [],
}  # fmt: skip


def layout_of(*schemata: str, using: tuple[str, ...] = ()) -> EventLayout:
    return lay_out_sources(find_sources(schemata), using, data=False)


def steps_of(*schemata: str, using: tuple[str, ...] = ()) -> tuple[Step, ...]:
    events = [slot.event for slot in layout_of(*schemata, using=using).logged]
    return make_steps([event.name for event in events], (), events, has_tcp=False)


@pytest.mark.parametrize("schema", ORDER)
def test_the_order_is_that_of_the_schema(schema: str) -> None:
    steps = steps_of(schema, using=("driver",) if schema == "magnet" else ())
    assert [list(step.locations) for step in steps if step.locations] == ORDER[schema]
    samples = [step.sample for step in steps if step.sample]
    assert samples == ([*range(1, 7)] if schema == "magnet" else [])


@pytest.mark.parametrize("schema", ["disk", "locking", "network", "paging", "sampler"])
def test_each_other_schema_has_steps_and_keeps_an_event(schema: str) -> None:
    steps, layout = steps_of(schema), layout_of(schema)
    left_out = [name for step in steps for name in step.locations]
    if schema == "sampler":  # its default level has one event
        assert not steps
        return
    assert left_out and {*left_out} < {slot.name for slot in layout.logged}
    assert len(left_out) == len({*left_out})
    assert any(step.sample for step in steps) == (schema == "network")


def test_the_programs_sample_by_the_connection_and_always_name_it() -> None:
    text = "\n".join(event_lines(layout_of("magnet")))
    keys = dict(re.findall(r"klogger_\w+_([A-Z]+_[A-Z]+)\([^{]*\n{\n\tif \(!klogger_admit\(cpu, "
                           r"\d+, (.*)\)\)", text))
    assert keys.pop("MAGNET_CONNECTION") == "0"
    assert len(keys) == 8 and {*keys.values()} == {"klogger_key(connection_)"}


def shed_log(folder: Path, rotates: bool = False, **more: Any) -> list[Report]:
    made = LogMaker(folder, rotates, settings=SETTINGS, **more)
    made.records(5)
    made.checkpoint()
    made.step(0, 1, TAKEN)
    made.leave_out(7)
    if rotates:
        made.rotate()
    made.records(2)
    made.step(1, 0, CALM)
    made.close()
    return format_of(folder).verify(folder)


def test_a_log_tells_what_was_shed(tmp_path: Path) -> None:
    *logs, whole = shed_log(tmp_path / "log")
    assert whole.exit_code == 0 and not whole.problems, whole.problems
    assert whole.verdict == "adds up: nothing lost; 7 shed by the budget"
    assert whole.totals.shed == 7 and logs[0].totals.shed == 7 and not logs[1].totals.shed
    assert len(whole.shed) == 2 and whole.shed == logs[0].shed == logs[1].shed
    assert "step 1 of the budget leaves out IP_SEND (disk rate at 220 %" in whole.shed[0]


def test_a_log_whose_counts_are_wrong_does_not_add_up(tmp_path: Path) -> None:
    made = LogMaker(tmp_path / "log", False)
    made.records(5)
    made.leave_out(7)
    made.ledger["attempts"][0, made.row] += 1
    made.close()
    *_, whole = format_of(tmp_path / "log").verify(tmp_path / "log")
    assert whole.exit_code == 5


def test_a_segment_of_a_log_begins_with_the_step_in_force(tmp_path: Path) -> None:
    *segments, chain = shed_log(tmp_path / "log", rotates=True)
    assert not chain.problems and len(segments) == 2, chain.problems
    assert [len(one.shed) for one in segments] == [1, 2]
    assert all("leaves out IP_SEND" in one.shed[0] for one in segments)


def test_a_dump_begins_with_the_step_in_force(tmp_path: Path) -> None:
    """Taken so long before the window that no entry of it is kept."""
    made = last_second(tmp_path / "out", settings=SETTINGS)
    made.step(0, 1, TAKEN)
    for _ in range(5):
        made.second()
    made.stream.ask()
    made.second()
    made.close()
    (report,) = verify_dumps(tmp_path / "out")
    assert report.exit_code == 0 and len(report.shed) == 1, (report.problems, report.shed)
    assert "step 1 of the budget leaves out IP_SEND (disk rate at 220 %" in report.shed[0]


def test_logs_of_earlier_versions_have_neither_reason_nor_count(tmp_path: Path) -> None:
    events = describe_events(make_schema())
    for event in events:
        gone = {"CHANGE": "why", "LEDGER": "shed"}.get(event["name"])
        event["fields"] = [one for one in event["fields"] if one["name"] != gone]
    log = SampleLog(events=events)
    log.add("CHANGE", {"kind": 4, "before_ns": 1, "after_ns": 2, "new": 3})
    log.end_dump()
    path = tmp_path / "kernlog.dump.cpu0"
    path.write_bytes(log.data())
    with LogReader(path) as reader:
        assert reader.format.event("CHANGE").find_field("why") is None
        found = [change for batch in reader.batches() for _, change in facts_of(batch, Change)]
        shed = [integers(batch, "LEDGER", ("shed",)) for batch in reader.batches()]
    assert [(one.new, one.why) for one in found] == [(3, 0)] and not any(map(len, shed))
