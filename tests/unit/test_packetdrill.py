# SPDX-License-Identifier: Apache-2.0
"""tcpkmon packetdrill: the script of a connection whose records are written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.commands.packetdrill import command
from tcpkmon.formats.export.packetdrill import Options, Recorded, find_event, make_script
from tcpkmon.formats.export.packetdrill.walking import NEEDED, Board, Row
from tests.truth.drill.language import Asserts, parse
from tests.unit.psc_files import write_capture

MSS = 1000
ISN, PEER = (1 << 32) - 2000, 7_000_000
"""The sender's numbers wrap within its third segment."""
MS = 1_000_000
FIRST: dict[str, int] = dict.fromkeys(
    (one for one in NEEDED if one not in ("laddr", "raddr", "ca_name")), 0
) | {
    "lport": 40_000, "rport": 443, "mss": MSS, "advmss": 1460, "snd_cwnd_segs": 10, "ca": 1,
    "snd_ssthresh": (1 << 31) - 1, "snd_wnd": 60_000, "max_window": 60_000, "snd_wscale": 7,
    "rcv_wscale": 7, "srtt_us": 20_000, "segs_out": 1, "lost": 0, "state": 1,
}  # fmt: skip


def record(ms: float, una: int, nxt: int, written: int, **more: int) -> Row:
    """A record at this time. una, nxt, written: counted from the first byte, which is 1."""
    ns = 5_000_000_000 + int(ms * MS)
    made = FIRST | {
        "ns": ns, "snd_una": una + ISN, "snd_nxt": nxt + ISN, "write_seq": written + ISN,
        "rcv_nxt": PEER + 1, "copied_seq": PEER + 1, "seg_seq": PEER + 1, "seg_flags": 16,
        "snd_fack": una + ISN, "next_tx_us": ns // 1000 - 10_000, "segs_out": 2,
        "packets_out": (nxt - una + MSS - 1) // MSS, "location": 1,
    } | more  # fmt: skip
    for name in ("snd_una", "snd_nxt", "write_seq", "snd_fack", "seg_ack", "next_tx_us"):
        made[name] %= 1 << 32
    return made


def arrival(ms: float, una: int, nxt: int, ack: int, **more: int) -> Row:
    """An ACK arrives; the columns are from before it."""
    return record(ms, una, nxt, 5001, seg_ack=ack + ISN, data_segs_out=0, **more)


HANDSHAKE = [
    record(0, 0, 0, 0, location=4, callvalue=2, state=7, segs_out=0),
    record(20, 1, 1, 1, location=4, callvalue=1, state=2, segs_out=1),
]
SACKED = {"sacked_out": 1, "snd_fack": 3001 + ISN, "ca_state": 1}
LOSS = [
    *HANDSHAKE,
    arrival(60, 1, 5001, 1001, segs_in=2, next_tx_us=5_040_000),
    arrival(61, 1001, 5001, 1001, segs_in=3),
    arrival(62, 1001, 5001, 1001, segs_in=4, **SACKED),
    arrival(63, 1001, 5001, 1001, segs_in=4, location=2, seg_seq=1001 + ISN, seg_len=MSS,
            ca_state=3, sacked_out=2, snd_fack=4001 + ISN),
    arrival(84, 1001, 5001, 5001, segs_in=5, ca_state=3, sacked_out=2, snd_fack=4001 + ISN,
            retrans_out=1, total_retrans=1),
    arrival(90, 5001, 5001, 5001, segs_in=6, total_retrans=1),
]  # fmt: skip


def made(rows: list[Row], options: Options | None = None, **more: Any) -> tuple[str, str]:
    """The script and its notes."""
    given = {"path": "run.pm", "local": "10.0.0.1", "remote": "10.0.0.2", "kernel": "6.18",
             "sysctl": {"net.ipv4.tcp_sack": "1", "net.ipv4.tcp_recovery": "1"},
             "algorithms": ["cubic"], "tick_ns": 4 * MS, "sees_closing": True} | more  # fmt: skip
    text, notes = make_script(Recorded(rows=rows, **given), options)
    return text, " ".join(notes)


def test_a_client_with_a_loss() -> None:
    text, notes = made(LOSS)
    lines = text.splitlines()
    assert "0.200000 > S 0:0(0) <...>" in lines
    assert "0.220000 < S. 0:0(0) ack 1 win 60000 <mss 1000,nop,nop,sackOK,nop,wscale 7>" in lines
    assert '+0 setsockopt(3, SOL_TCP, TCP_CONGESTION, "cubic", 5) = 0' in lines
    assert 'sysctl -q net.ipv4.tcp_recovery="1" 2>/dev/null' in lines
    # Sent at once when it was written, which next_tx_us tells: nothing was in flight before.
    assert "0.240000 write(3, ..., 5000) = 5000" in lines
    assert "0.240000 > . 1:5001(5000) ack 1 <...>" in lines
    assert "0.260000 < . 1:1(0) ack 1001 win 468" in lines
    assert "0.261000 < . 1:1(0) ack 1001 win 468 <sack 2001:3001,nop,nop>" in lines
    assert "0.262000 < . 1:1(0) ack 1001 win 468 <sack 2001:4001,nop,nop>" in lines
    at = lines.index("// sent again")
    assert lines[at + 1] == "0.263000 > . 1001:2001(1000) ack 1 <...>"
    assert "assert tcpi_ca_state == TCP_CA_Recovery, tcpi_ca_state" in lines
    assert "assumed" not in text and "GAP" not in text and "imestamps" not in notes
    script = parse(text)
    assert script.tolerance == 0.02
    assert [one.begin for one in script.events] == sorted(one.begin for one in script.events)
    asserted = [one.what for one in script.events if isinstance(one.what, Asserts)]
    assert asserted[0].values["snd_cwnd"] == 10 and {"total_retrans": 1} in [
        {name: one.values[name] for name in one.values if name == "total_retrans"}
        for one in asserted[1:]
    ]


def test_a_lost_record_ends_the_script_where_it_may_be_of_the_connection() -> None:
    rows = [dict(row) for row in LOSS]
    for row in rows[4:]:
        row["lost"] = 3
    passed, notes = made(rows)
    assert "GAP" not in passed and "3 records are lost on the way" in notes
    for row in rows[4:]:
        row["segs_in"] += 1
    text, notes = made(rows)
    assert "// GAP: 3 records are lost before 0.262000" in text.splitlines()[-1]
    assert "sent again" not in text and "the script ends at the gap" in notes


def test_a_part_begins_where_nothing_is_lost() -> None:
    rows = LOSS[:2] + [dict(row, snd_ssthresh=8) for row in LOSS[2:]]
    since = rows[3]["ns"]
    text, notes = made(rows, Options(since_ns=since))
    assert "initcwnd 10 ssthresh 8" in text and "write(4, ..., 4000) = 4000" in text
    assert " > . 1:4001(4000) ack 1 <...>" in text and "not asserted" in notes
    assert "tcpi_snd_cwnd" not in text and "tcpi_sacked" in text
    # In the recovery there is no state that a script can set up: it begins before it.
    later, _ = made(rows, Options(since_ns=rows[6]["ns"]))
    assert later.count("<sack") == text.count("<sack") > 0
    with pytest.raises(FileError, match="no record from which a script can begin"):
        made(rows[4:6])


def test_timestamps_ecn_and_a_timer_are_told() -> None:
    rows = [dict(row, mss=1448, advmss=1448, ecn_flags=1) for row in LOSS]
    assert "timestamps" not in made(rows)[1].lower()
    rows[1]["advmss"] = 1460
    rows.insert(5, dict(rows[5], location=14))
    text, notes = made(rows)
    assert "Timestamps, which this host offers, are" in notes and "ECN was agreed" in notes
    assert "8 ms later" in notes and "// 0.263000 the retransmission timer expires" in text
    assert "0.263000 > . 1001:2001" in text and "0.292000 < . 1:1(0) ack 5001" in text


def test_syns_that_are_sent_again() -> None:
    """By timers, which a wheel makes late: by 9 ticks of 4 ms after a second, 65 after 4 s."""
    syn = {"location": 2, "state": 2, "total_retrans": 0, "seg_flags": 2}
    rows = [
        LOSS[0], record(1010, 0, 1, 1, **syn), record(5020, 0, 1, 1, **syn),
        *(dict(row, ns=row["ns"] + 5020 * MS, next_tx_us=row["next_tx_us"] + 5_020_000)
          for row in LOSS[1:]),
    ]  # fmt: skip
    text, notes = made(rows)
    lines = text.splitlines()
    at = lines.index("0.200000 > S 0:0(0) <...>")
    assert lines[at + 1 : at + 6] == [
        "// sent again", "1.174000~1.246000 > S 0:0(0) <...>",
        "// sent again", "4.924000~5.516000 > S 0:0(0) <...>",
        "5.536000 < S. 0:0(0) ack 1 win 60000 <mss 1000,nop,nop,sackOK,nop,wscale 7>",
    ]  # fmt: skip
    assert "5.556000 write(3, ..., 5000) = 5000" in lines and "tcpi_backoff" in text
    assert "is 296 ms later" in notes
    begins = [one.begin for one in parse(text).events]
    assert begins == sorted(begins)
    # Without timestamps there is no round-trip time of a SYN that was sent again.
    timed, _ = made(rows, sysctl={"net.ipv4.tcp_timestamps": "1"})
    assert "tcpi_backoff" not in timed


def test_without_what_arrives_after_the_end() -> None:
    rows = [*LOSS, dict(record(100, 5001, 5001, 5001, location=4, callvalue=4), segs_in=6,
                        total_retrans=1)]  # fmt: skip
    text, _ = made(rows, sees_closing=False)
    assert text.splitlines()[-3:-1] == ["0.300000 shutdown(3, SHUT_WR) = 0",
                                        "0.300000 > F. 5001:5001(0) ack 1 <...>"]  # fmt: skip
    assert "SEGMENT_CLOSING" in text.splitlines()[-1]


def test_what_is_sacked() -> None:
    board = Board()
    board.send(1, 9001, 1000)
    assert board.acknowledge(1, 1, 3001, False) == ([(2001, 3001)], "")
    assert board.acknowledge(1, 2, 6001, False) == ([(5001, 6001), (2001, 3001)], "")
    # Two more, with only two above: sure. A hole: which one, is not.
    assert board.acknowledge(1, 4, 8001, False) == ([(5001, 8001), (2001, 3001)], "")
    blocks, assumed = board.acknowledge(1, 5, 8001, False)
    assert blocks == [(1001, 3001), (5001, 8001)] and "hole" in assumed
    board.retransmit(1, 1000)
    blocks, assumed = board.acknowledge(1001, 5, 8001, True)
    assert blocks[0] == (1, 1001) and "twice" in assumed
    assert board.acknowledge(9001, 0, 9001, False) == ([], "")
    several = Board()
    several.send(1, 5001, 1000)
    assert several.acknowledge(1, 2, 5001, False) == (
        [(3001, 5001)], "the newest segments are in one block"
    )  # fmt: skip


def test_find_event() -> None:
    found = Recorded("run.pm", LOSS, "", "", {}, "", [], 1, True)
    assert find_event(found, "retransmit", {"RETRANSMIT": 2}) == LOSS[5]["ns"]
    with pytest.raises(FileError, match="has no RTO"):
        find_event(found, "rto", {"RTO": 14})
    with pytest.raises(UsageError, match="no location"):
        find_event(found, "nothing", {"RTO": 14})


def test_the_command_refuses(tmp_path: Path) -> None:
    path = str(write_capture(tmp_path / "run.pm", 100, 2))
    for arguments, message in (
        ([path, "-p", "5001.80"], "lacks what a script is made of"),
        ([path, "-p", "5001:80"], "not a connection"),
        ([path, "-p", "5001.80", "--around", "rto", "--since", "1"], "both choose a part"),
    ):
        done = CliRunner().invoke(command, arguments)
        assert isinstance(done.exception, UsageError) and message in str(done.exception)
