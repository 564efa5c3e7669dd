# SPDX-License-Identifier: Apache-2.0
"""Last records against sockets: what is equal, what is at work, and what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.loader.sock_diag import Connection
from collector.loader.tcp_info import TCP_INFO
from collector.plan.columns import choose_columns, load_schema, locations_of, make_layout
from collector.session.reconciling import REST_NS, find_differences
from formats.base import control
from formats.base.reconciled import Reconciled, What, from_words
from formats.verify import verify_file
from tests.unit.captures import CaptureBuilder

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


def sock(state: int = 1, lport: int = 5, **info: int) -> Connection:
    told = np.zeros(1, TCP_INFO)
    first = {"bytes_acked": 1100, "bytes_received": 525, "total_retrans": 3}
    for name, value in {**first, **info}.items():
        told[name] = value
    return Connection(1, 1, 2, state, ENDS["laddr"], ENDS["raddr"], lport, 6, 0, 0, 9, 0,
                      told.tobytes(), b"", b"cubic", 0)  # fmt: skip


def differences(rows: Any, *sockets: Connection, is_full: bool = False) -> tuple[int, list[Any]]:
    compared, found = find_differences(rows, is_full, NOW_NS, sockets)
    listed = list(found)
    return compared[0], listed


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


def test_the_entry_keeps_its_numbers() -> None:
    entry = Reconciled(1, What.BYTES_ACKED, 2**40, 5, 2**63, 5 << 16 | 6)
    stored = control.decode(entry.callvalue(), Reconciled.location, entry.words())
    assert isinstance(stored, control.Unknown)
    assert from_words(stored.callvalue(), stored.words()) == entry


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
    wrong = verify(tmp_path, Reconciled(1, What.SUMMARY, 1, 9, 12, 0),
                   Reconciled(1, What.STATE, 7, 1, 8, 5 << 16 | 6))  # fmt: skip
    assert wrong.exit_code == 5
    what = "at the end: connection 7 (ports 5-6): state 1 by its last record, 8 by the kernel"
    assert [one.what for one in wrong.problems] == [what]
