# SPDX-License-Identifier: Apache-2.0
"""Budgets of Klogger logs: steps by schema, what the files tell, and verify."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.plan.budget import Step, make_steps
from tcpkmon.collector.plan.event_codegen import event_lines
from tcpkmon.collector.plan.event_layout import EventLayout, lay_out_sources
from tcpkmon.collector.plan.schema_sources import find_sources
from tcpkmon.formats.base.control import Change
from tcpkmon.formats.base.shedding import Why, encode_why
from tcpkmon.formats.klogger.batch import facts_of
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report
from tcpkmon.formats.verify.klogger.books import integers
from tests.unit.klogger_samples import LogMaker as SampleLog
from tests.unit.klogger_samples import describe_events, make_schema
from tests.unit.makers import LogMaker
from tests.unit.test_recorder import last_second, verify_dumps

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
