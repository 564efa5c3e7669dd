# SPDX-License-Identifier: Apache-2.0
"""The metrics of requests: what they leave out, and what they take for exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.metrics.watching import Watching
from tcpkmon.collector.plan.columns import load_schema, locations_of
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.sequencer.buffer_pool import Pool
from tcpkmon.collector.sequencer.sequencer import FOREVER_NS, Queues
from tcpkmon.collector.writer.log_batch import LogBatch
from tcpkmon.collector.writer.tcp_order import tcp_in_order
from tcpkmon.formats.analysis.exchanges import NULL, cut
from tcpkmon.formats.base.control import Loss, encode_many
from tests.unit.request_capture import Socket, block_of, client, entries_of

AT = locations_of(load_schema())


def counted(entries: Any, **how: Any) -> dict[str, Any]:
    watching = Watching(entries.dtype, AT, at_once=True, ways=how.pop("ways", None))
    watching.add(entries, **how)
    told = watching.metrics()
    assert told["error"] == ""
    found: dict[str, Any] = told.get("requests", {})
    return found


def test_requests_with_a_lost_record_are_not_counted() -> None:
    """By the LOSS entries of a file, or by the gaps in a log's serials."""
    entries, _ = entries_of(client(think=400))
    assert sum(counted(entries)["think"]["client"]["counts"]) == 3
    middle = int(np.searchsorted(entries["time_ns"], 600_000_000))
    loss = encode_many([Loss(0, 7, 5 << 32, 2)], entries.dtype)
    loss["time_ns"] = entries["time_ns"][middle]
    with_loss = np.concatenate([entries[:middle], loss, entries[middle:]])
    assert sum(counted(with_loss)["think"]["client"]["counts"]) == 2
    lost = np.zeros(len(entries), np.int64)
    lost[middle] = 1
    assert sum(counted(entries, lost=lost)["think"]["client"]["counts"]) == 2


def test_calls_that_are_recorded_as_they_begin_are_not_taken_for_exact() -> None:
    """As the table of the same records has it."""
    one = Socket().open(1, active=True)
    for now in (5, 500, 1000):
        one.put(now, 9, callvalue=120)  # the call begins: nothing is written yet
        one.write(120)
        one.put(now + 50, 19)  # the first record that shows it
        one.segment(now + 400.1, 4000)
        one.put(now + 401, 10, callvalue=4000)
        one.read = one.arrived
    one.close(1500)
    entries, _ = entries_of(one)
    ends, begins = ({"SEND_CALL": way, "RECEIVE_CALL": way} for way in ("fexit", "kprobe"))
    rows, _ = cut(block_of(one), has_calls=True, at_entry=True)
    wanted = rows["think_ns"][rows["certain"] & (rows["think_ns"] != NULL)].sum() // 1000
    found = counted(entries, ways=begins)["think"]["client"]
    assert abs(found["sum_us"] - wanted) <= 3
    assert found["sum_us"] != counted(entries, ways=ends)["think"]["client"]["sum_us"]
    assert counted(entries, ways={"SEND_CALL": "fexit"}) == {}, "half of the calls"


def test_a_log_tells_what_is_missing_before_each_record() -> None:
    kind = np.dtype("V64")
    queues = Queues(kind)

    def batch(cpu: int, serials: list[int], points: list[int]) -> Batch:
        table = np.zeros((len(serials), 64), np.uint8)
        table[:, 0:4] = np.array(serials, "u4").view(np.uint8).reshape(-1, 4)
        table[:, 4:12] = np.array(serials, "u8").view(np.uint8).reshape(-1, 8)
        table[:, 16:20] = np.array(points, "u4").view(np.uint8).reshape(-1, 4)
        return Batch(cpu, table.view(kind)[:, 0], 0)

    queues.push(batch(0, [3, 5, 9, 12], [1, 40, 1, 40]))
    queues.push(batch(1, [2], [40]))
    rows, lost = tcp_in_order([LogBatch(*copy) for copy in queues.copies(FOREVER_NS, Pool())])
    assert rows is not None and len(rows) == 2
    assert lost.tolist() == [2, 1 + 3, 2 + 1], "of all events, and what is behind"


@pytest.mark.parametrize("call", [1, 2])
def test_a_fin_answers_nothing(call: int) -> None:
    """A call that returns while it is taken in has its number, not yet the state."""
    one = Socket().open(1, active=True)
    one.send(5, 10)
    one.put(6, 1, seg_seq=one.arrived, seg_len=0)
    one.arrived += 1
    for location, values in [(10, {"rcv_sb_cc": 1}), (4, {"callvalue": 8})][2 - call :]:
        one.put(6.001, location, **values)
    one.state = 8
    one.send(7, 10)
    one.put(8, 11, state=7)
    assert sum(counted(entries_of(one)[0])["think"]["client"]["counts"]) == 0
