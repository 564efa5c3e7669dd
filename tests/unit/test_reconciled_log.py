# SPDX-License-Identifier: Apache-2.0
"""--reconcile for Klogger logs: last records over all CPUs, and the events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.metrics.watching import watch
from tcpkmon.collector.plan.columns import choose_columns, load_schema, locations_of, make_layout
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.request import Request, check_request
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.sequencer.buffer_pool import Pool
from tcpkmon.collector.sequencer.sequencer import FOREVER_NS, Queues
from tcpkmon.collector.writer.log_batch import LogBatch
from tcpkmon.collector.writer.tcp_order import tcp_in_order
from tcpkmon.formats.base.control import EXISTING
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.reconciled import Reconciled, What, When
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report
from tests.unit.makers import LogMaker

SCHEMA = load_schema()
HEAD = ("time_ns", "cpu", "serial")
"""Columns that the head of a log's record has."""
LAYOUT = make_layout(
    SCHEMA,
    [name for name in choose_columns(SCHEMA.event("SNAPSHOT"), "full") if name not in HEAD],
    (),
)
AT = locations_of(SCHEMA)
RING = np.dtype((np.void, LAYOUT.dtype.itemsize + 16))
"""As of a capture with other, longer events."""


def in_ring(serials: list[int], times: list[int], **columns: Any) -> Any:
    rows = np.zeros(len(serials), LAYOUT.dtype)
    columns = {"location": AT["SEND_CALL"], **columns}
    for name, value in columns.items():
        rows[name] = value
    table = np.zeros((len(rows), RING.itemsize), np.uint8)
    table[:, : LAYOUT.dtype.itemsize] = rows.view(np.uint8).reshape(len(rows), -1)
    table[:, 0:4] = np.array(serials, "u4").view(np.uint8).reshape(-1, 4)
    table[:, 4:12] = np.array(times, "u8").view(np.uint8).reshape(-1, 8)
    return table.view(RING)[:, 0]


def test_the_last_record_is_that_of_all_cpus() -> None:
    queues = Queues(RING)
    queues.push(Batch(0, in_ring([1, 2, 3], [100, 400, 500], conn_id=[7, 7, 9], state=1,
                                 snd_cwnd_segs=[1, 4, 5]), 0))  # fmt: skip
    queues.push(Batch(1, in_ring([1, 2], [200, 450], conn_id=[9, 7], state=1,
                                 location=[EXISTING, AT["SEND_CALL"]],
                                 snd_cwnd_segs=[2, 6]), 0))  # fmt: skip
    queues.push(Batch(2, in_ring([1], [600], conn_id=7, location=40), 0))  # of another schema
    rows, _ = tcp_in_order([LogBatch(*copy) for copy in queues.copies(FOREVER_NS, Pool())])
    assert rows is not None and len(rows) == 5
    watching = watch(LAYOUT, True, raw=True)
    watching.add(rows)
    table = watching.table()
    slots = table.slots()
    found = {name: table.values(name, slots).tolist() for name in ("conn_id", "time_ns")}
    assert dict(zip(found["conn_id"], found["time_ns"], strict=True)) == {7: 450, 9: 500}
    assert table.values("snd_cwnd_segs", slots).tolist() == [6, 5]
    assert tcp_in_order([])[0] is None


def told(folder: Path, *entries: Reconciled) -> tuple[Report, list[Report]]:
    made = LogMaker(folder, rotates=False)
    made.records(5)
    made.stream.tell(entries)
    made.records(5)
    made.close()
    *logs, whole = format_of(folder).verify(folder)
    return whole, logs


def test_a_summary_is_a_note_and_a_difference_a_problem(tmp_path: Path) -> None:
    summary = Reconciled(When.END, What.SUMMARY, 0, 68, 68, 0)
    whole, _ = told(tmp_path / "a.klog", summary)
    line = "reconciled with the kernel at the end: 68 of 68 connections compared, 0 difference(s)"
    assert whole.exit_code == 0 and line in whole.notes, (whole.problems, whole.notes)
    differs = Reconciled(When.ROTATION, What.STATE, 7, 1, 8, 5201 << 16 | 41022)
    whole, logs = told(tmp_path / "b.klog", summary, differs)
    (problem,) = (one for log in logs for one in log.problems)
    assert problem.what == (
        "after the rotation: connection 7 (ports 5201-41022): state 1 by its last record, "
        "8 by the kernel"
    )
    assert line in whole.notes and 5 in {log.exit_code for log in logs}


def test_what_was_altered_is_not_compared(tmp_path: Path) -> None:
    for alter in (lambda made: made.switch(0), lambda made: made.stream.pause()):
        made = LogMaker(tmp_path / "out", rotates=True)
        assert not made.stream.altered
        alter(made)
        assert made.stream.altered
        made.close()


def check(**wrong: Any) -> None:
    check_request(Request(reconcile=True, filters=Filters(), **wrong))


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"file_format": "magnet", "schemata": ("magnet",)}, "no event of one at rest"),
        ({"file_format": "klogger", "schemata": ("sched",)}, "schema tcp, which is not captured"),
        ({"file_format": "klogger", "existing": False}, "with the open connections"),
    ],
)
def test_what_cannot_be_compared_is_said(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        check(output="x", **wrong)
    check(output="x", file_format="klogger", schemata=("tcp",))
    check(output="x", file_format="klogger", schemata=("sched", "tcp"))
