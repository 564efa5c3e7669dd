# SPDX-License-Identifier: Apache-2.0
"""Last records against sockets: what is equal, what is at work, and what differs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.loader.sock_diag import SOCKET
from tcpkmon.collector.metrics.connections import Connections
from tcpkmon.collector.plan.columns import choose_columns, load_schema, locations_of, make_layout
from tcpkmon.collector.session.differences import Found, find_differences
from tcpkmon.collector.session.reconciling import LISTED, REST_NS, Reconciling
from tcpkmon.formats.base.changes import ChangeKind
from tcpkmon.formats.base.control import Change
from tcpkmon.formats.base.reconciled import Reconciled, What
from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import verify_file
from tests.unit.captures import CaptureBuilder
from tests.unit.makers import Maker

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


def verify(folder: Path, *entries: Reconciled) -> Any:
    builder = CaptureBuilder()
    builder.snapshots(count=5)
    for entry in entries:
        builder.put(entry)
    builder.end()
    return verify_file(builder.write(folder / "x.pm"))


def test_verify_says_so(tmp_path: Path) -> None:
    fine = verify(tmp_path, Reconciled(0, What.SUMMARY, 0, 9, 11, 0),
                  Reconciled(1, What.SUMMARY, 3, 9, 12, 55))  # fmt: skip
    assert fine.exit_code == 0
    lines = "\n".join(fine.notes)
    assert "at the start: 9 of 11 connections compared, 0 difference(s)" in lines
    assert "at the end: 9 of 12 connections compared, 3 difference(s); 55 lost records" in lines
    turned = verify(tmp_path, Reconciled(2, What.SUMMARY, 0, 9, 9, 0))
    assert "after the rotation: 9 of 9 connections" in "\n".join(turned.notes)
    wrong = verify(tmp_path, Reconciled(1, What.SUMMARY, 1, 9, 12, 0),
                   Reconciled(1, What.STATE, 7, 1, 8, 5 << 16 | 6))  # fmt: skip
    assert wrong.exit_code == 5
    what = "at the end: connection 7 (ports 5-6): state 1 by its last record, 8 by the kernel"
    assert [one.what for one in wrong.problems] == [what]


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
