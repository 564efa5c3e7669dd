# SPDX-License-Identifier: Apache-2.0
"""Last records against sockets, of PSC files and logs: what is equal, at work, and differs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.loader.sock_diag import SOCKET
from tcpkmon.collector.metrics.connections import Connections
from tcpkmon.collector.metrics.watching import watch
from tcpkmon.collector.plan.columns import choose_columns, load_schema, locations_of, make_layout
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.request import Request, check_request
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.sequencer.buffer_pool import Pool
from tcpkmon.collector.sequencer.sequencer import FOREVER_NS, Queues
from tcpkmon.collector.session.differences import Found, find_differences
from tcpkmon.collector.session.reconciling import LISTED, REST_NS, Reconciling
from tcpkmon.collector.writer.log_batch import LogBatch
from tcpkmon.collector.writer.tcp_order import tcp_in_order
from tcpkmon.formats.base.changes import ChangeKind
from tcpkmon.formats.base.control import EXISTING, Change
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.reconciled import Reconciled, What
from tcpkmon.formats.registry import format_of
from tests.unit.makers import LogMaker, Maker

SCHEMA = load_schema()
LAYOUT = make_layout(SCHEMA, choose_columns(SCHEMA.event("SNAPSHOT"), "full"), ())
AT = locations_of(SCHEMA)
NOW_NS = 10**12
ENDS = {"laddr": bytes(10) + b"\xff\xff\n\0\0\1", "raddr": bytes(10) + b"\xff\xff\n\0\0\2"}


def row(**values: Any) -> Any:
    made = np.zeros(1, LAYOUT.dtype)
    first = {"location": AT["SEGMENT_RECEIVED"], "conn_id": 7, "state": 1, "lport": 5, "rport": 6,
             "netns": 1, "time_ns": NOW_NS - 2 * REST_NS, "bytes_acked": 1000,
             "bytes_received": 500, "snd_una": 2**32 - 10, "seg_ack": 90, "rcv_nxt": 40,
             "seg_seq": 40, "seg_len": 25, "total_retrans": 3}  # fmt: skip
    for name, value in {**first, **values}.items():
        made[name] = value
    for name, value in ENDS.items():
        made[name] = np.void(value)
    return made


def sock(state: int = 1, lport: int = 5, **info: int) -> Any:
    made = np.zeros(1, SOCKET)
    first = {"cookie": 1, "netns": 1, "state": state, "bytes_acked": 1100, "bytes_received": 525,
             "total_retrans": 3}  # fmt: skip
    for name, value in {**first, **info}.items():
        made[name] = value
    made["ends"][0, :4] = np.frombuffer(ENDS["laddr"] + ENDS["raddr"], "=u8")
    made["ends"][0, 4] = lport << 16 | 6
    return made


def differences(rows: Any, *sockets: Any, is_full: bool = False) -> tuple[int, list[Any]]:
    found = Found()
    columns = {name: rows[name] for name in rows.dtype.names}
    columns["at_rest"] = rows["time_ns"] < NOW_NS - REST_NS
    for _ in find_differences(columns, is_full, np.concatenate(sockets), found, 2, LISTED):
        pass
    assert found.differences == len(found.told)
    return found.compared, found.told


def test_equal_with_what_the_last_segment_brought() -> None:
    assert differences(row(), sock()) == (1, [])
    later = row(location=AT["CONG_STATE"], bytes_acked=1100, bytes_received=525)
    assert differences(later, sock()) == (1, [])
    assert differences(row(seg_ack=2**32 - 20), sock(bytes_acked=1000)) == (1, []), "an old ACK"
    assert differences(row(seg_seq=20), sock(bytes_received=505)) == (1, []), "partly old"
    assert differences(row(seg_seq=70), sock(bytes_received=500)) == (1, []), "out of order"
    assert differences(row(), sock(rcv_ooopack=1, bytes_received=9999)) == (1, []), "a filled hole"


@pytest.mark.parametrize(
    ("info", "expected"),
    [({"bytes_acked": 1101}, (What.BYTES_ACKED, 7, 1100, 1101)),
     ({"bytes_received": 524}, (What.BYTES_RECEIVED, 7, 525, 524)),
     ({"total_retrans": 2}, (What.RETRANSMITS, 7, 3, 2))],
)  # fmt: skip
def test_values_that_differ(info: dict[str, int], expected: tuple[int, ...]) -> None:
    assert differences(row(), sock(**info)) == (1, [(*expected, 5 << 16 | 6)])


def test_states() -> None:
    assert differences(row(), sock(8))[1] == [(What.STATE, 7, 1, 8, 5 << 16 | 6)]
    change = row(location=AT["STATE_CHANGE"], state=1, callvalue=8)
    assert differences(change, sock(8, bytes_acked=5)) == (1, []), "no bytes outside ESTABLISHED"
    assert differences(change, sock(1))[1][0][:4] == (What.STATE, 7, 8, 1)


def test_what_is_at_work_or_unsure_is_not_compared() -> None:
    assert differences(row(time_ns=NOW_NS), sock(8)) == (0, [])
    twice = np.concatenate((row(), row(conn_id=8)))
    assert differences(twice, sock(8)) == (0, [])


def test_a_connection_without_a_record() -> None:
    count, found = differences(row(), sock(), sock(lport=9))
    assert (count, found) == (2, [(What.NO_RECORD, 0, 0, 1, 9 << 16 | 6)])
    assert differences(row(), sock(lport=9), is_full=True) == (0, [])
    assert differences(row(), sock(netns=2))[1][0][0] == What.NO_RECORD
    assert differences(row()[:0], sock())[1][0][0] == What.NO_RECORD


def test_many_are_compared_in_pieces_and_the_first_are_told() -> None:
    rows = np.concatenate([row(lport=port, conn_id=port) for port in range(1000)])
    sockets = [sock(lport=port, bytes_acked=1100 + port % 2) for port in range(1000)]
    found = Found()
    columns = {name: rows[name] for name in rows.dtype.names} | {"at_rest": np.ones(1000, bool)}
    order = np.random.default_rng(1).permutation(1000)
    shuffled = np.concatenate(sockets)[order]
    turns = list(find_differences(columns, False, shuffled, found, 64, 10))
    assert (found.compared, found.differences) == (1000, 500)
    assert [one[1] for one in found.told] == [n for n in order.tolist() if n % 2][:10]
    assert len(turns) == 1 + -(-1000 // 64)


def told(altered: bool, lost: int = 0) -> list[Any]:
    """What a comparison writes: two sockets, one of them without a record, and one listed twice."""
    table, entries = Connections(LAYOUT.dtype, AT, 0.0), list[Any]()
    table.add(row())
    stream = SimpleNamespace(altered=altered, tell=entries.extend)
    counts: Any = SimpleNamespace(stream=stream, existing=SimpleNamespace(namespaces=[]))
    request: Any = SimpleNamespace(reconcile=True)
    watching: Any = SimpleNamespace(table=lambda: table)
    one = Reconciling(request, counts, watching)
    one._began_ns, one._sockets = NOW_NS, [sock(), sock(), sock(lport=9, cookie=2)]
    one.compare(lost)
    return entries


def test_what_is_written() -> None:
    missing = Reconciled(1, What.NO_RECORD, 0, 0, 1, 9 << 16 | 6)
    assert told(False) == [Reconciled(1, What.SUMMARY, 1, 2, 2, 0), missing]
    assert told(False, 5) == [Reconciled(1, What.SUMMARY, 1, 2, 2, 5)], "losses may explain it"
    assert told(True) == [Reconciled(1, What.SUMMARY, 0, 0, 2, 0)], "some events are not recorded"


@pytest.mark.parametrize("kind", ChangeKind)
def test_a_change_of_what_is_recorded_ends_the_comparison(tmp_path: Path, kind: int) -> None:
    maker = Maker(tmp_path / "s")
    assert not maker.stream.altered
    maker.stream.changed([Change(kind, 5, 1, 2, 1, 0)])
    assert maker.stream.altered is (kind not in (ChangeKind.RING, ChangeKind.LOW_WATER))
    maker.close()


def verified(kind: type[Maker], path: Path, *entries: Reconciled) -> tuple[int, list[str], str]:
    """Of a capture with these entries: exit code, problems and notes."""
    made = kind(path, rotates=False)
    made.records(5)
    made.stream.tell(entries)
    made.close()
    reports = format_of(path).verify(path)
    problems = [problem.what for report in reports for problem in report.problems]
    return max(one.exit_code for one in reports), problems, "\n".join(reports[-1].notes)


@pytest.mark.parametrize("kind", [Maker, LogMaker])
def test_a_summary_is_a_note_and_a_difference_a_problem(kind: type[Maker], tmp_path: Path) -> None:
    start, end = (Reconciled(when, What.SUMMARY, 3 * when, 9, 11, 55 * when) for when in (0, 1))
    code, problems, notes = verified(kind, tmp_path / "a", start, end)
    assert (code, problems) == (0, [])
    assert "at the end: 9 of 11 connections compared, 3 difference(s); 55 lost records" in notes
    assert "at the start: 9 of 11 connections compared, 0 difference(s)" in notes
    differs = Reconciled(2, What.STATE, 7, 1, 8, 5 << 16 | 6)
    code, problems, _ = verified(kind, tmp_path / "b", end, differs)
    what = "connection 7 (ports 5-6): state 1 by its last record, 8 by the kernel"
    assert code == 5 and f"after the rotation: {what}" in problems


def test_a_folder_tells_the_last_comparison(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "f")
    maker.records(5)
    maker.stream.tell([Reconciled(0, What.SUMMARY, 0, 3, 4, 0)])
    maker.rotate()
    maker.stream.tell([Reconciled(2, What.SUMMARY, 0, 9, 11, 0)])
    maker.close()
    *_, chain = format_of(tmp_path / "f").verify(tmp_path / "f")
    assert not chain.problems
    (line,) = [note for note in chain.notes if "reconciled" in note]
    assert "after the rotation: 9 of 11 connections compared" in line
    assert line.endswith("; 1 comparison(s) before")


HEAD = ("time_ns", "cpu", "serial")
"""Columns that the head of a log's record has."""
LOG_LAYOUT = make_layout(
    SCHEMA,
    [name for name in choose_columns(SCHEMA.event("SNAPSHOT"), "full") if name not in HEAD],
    (),
)
RING = np.dtype((np.void, LOG_LAYOUT.dtype.itemsize + 16))
"""As of a capture with other, longer events."""


def in_ring(serials: list[int], times: list[int], **columns: Any) -> Any:
    rows = np.zeros(len(serials), LOG_LAYOUT.dtype)
    columns = {"location": AT["SEND_CALL"], **columns}
    for name, value in columns.items():
        rows[name] = value
    table = np.zeros((len(rows), RING.itemsize), np.uint8)
    table[:, : LOG_LAYOUT.dtype.itemsize] = rows.view(np.uint8).reshape(len(rows), -1)
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
    watching = watch(LOG_LAYOUT, True, raw=True)
    watching.add(rows)
    table = watching.table()
    slots = table.slots()
    found = {name: table.values(name, slots).tolist() for name in ("conn_id", "time_ns")}
    assert dict(zip(found["conn_id"], found["time_ns"], strict=True)) == {7: 450, 9: 500}
    assert table.values("snd_cwnd_segs", slots).tolist() == [6, 5]
    assert tcp_in_order([])[0] is None


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
