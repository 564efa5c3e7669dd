# SPDX-License-Identifier: Apache-2.0
"""Requests and answers: what cuts them, when each part was, and what cannot be known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tcpkmon.formats.analysis.exchanges import (
    EXCHANGE,
    NULL,
    Waited,
    asked_meanwhile,
    choose,
    each_once,
    exchanges,
    served,
    servers_of,
    summarize,
)
from tcpkmon.formats.analysis.exchanges import cut as cut_block
from tcpkmon.formats.analysis.why import Connection
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.commands import check, why
from tcpkmon.formats.commands.requests import command
from tests.kept.make import unpack
from tests.unit.request_capture import (
    MS,
    Socket,
    block_of,
    client,
    server,
    write_requests,
)


def cut(*sockets: Socket, calls: bool = True, at_entry: bool = False, acks: bool = False) -> Any:
    """The exchanges, by connection and number."""
    rows, ends = cut_block(block_of(*sockets, acks=acks), calls, at_entry)
    assert rows.dtype == EXCHANGE
    rows = choose(rows, ends, servers_of(ends))
    return rows[np.lexsort((rows["number"], rows["place"]))]


def test_a_client_waits_for_the_server() -> None:
    rows = cut(client())
    assert rows["number"].tolist() == [0, 1, 2]
    assert rows["request_bytes"].tolist() == [120] * 3
    assert rows["response_bytes"].tolist() == [4000] * 3
    first = rows[0]
    assert (first["start_ns"], first["wait_ns"]) == (5 * MS, 4 * MS)
    assert first["request_ns"] == 0
    assert first["network_ns"] == 0.1 * MS  # the smallest round trip
    assert first["think_ns"] == 400 * MS
    assert first["response_ns"] == 0.5 * MS
    assert first["read_ns"] == 0.5 * MS
    assert first["total_ns"] == 401.1 * MS
    assert rows["wait_ns"][1:].tolist() == [10 * MS] * 2
    assert rows["exact"].all() and rows["certain"].all() and not rows["pipelined"].any()


@pytest.mark.parametrize("calls", [True, False])
def test_connections_beside_it_change_nothing(calls: bool) -> None:
    sockets = client(3), server(5), pipelined()
    whole = cut(*sockets, calls=calls)
    alone = [cut(one, calls=calls) for one in sockets]
    for number, rows in enumerate(alone):
        rows["place"] = number
    assert (np.concatenate(alone) == whole).all()


def test_a_call_that_is_recorded_while_a_segment_is_under_way() -> None:
    """On another CPU, before the segment's ACK counts: the column seg_ack tells it all the same."""
    one = Socket().open(1, active=True)
    for at in (5, 25):
        one.write(45)
        one.put(at, 1, seg_seq=one.arrived, seg_len=5, seg_ack=one.written)
        one.put(at + 0.00003, 9, callvalue=45)
        one.arrived, one.acked = one.arrived + 5, one.written
        one.receive(at + 1, 5)
    rows = cut(one, acks=True)
    assert rows[["request_bytes", "response_bytes", "pipelined"]].tolist() == [(45, 5, False)] * 2


@pytest.mark.parametrize("iss, irs", [(2**32 - 60, 2**32 - 10), (2**32 - 2, 2**31 - 1)])
def test_sequence_numbers_wrap(iss: int, irs: int) -> None:
    for one, other in ((client(iss=iss, irs=irs), client()), (server(iss=iss, irs=irs), server())):
        assert (cut(one) == cut(other)).all()


def test_a_fin_is_no_request_and_a_keepalive_is_none() -> None:
    one = Socket().open(1, active=True)
    one.send(5, 10)
    one.segment(6, 10)
    one.receive(7, 10)
    one.put(500, 1, seg_seq=one.arrived - 1, seg_len=1)  # a keepalive with a byte that was there
    one.put(501, 1, seg_seq=one.arrived, seg_len=0, snd_wnd=1000)  # a window update
    one.close(600)
    assert cut(one)[["request_bytes", "response_bytes"]].tolist() == [(10, 10)]


@pytest.mark.parametrize("call_is_first", [False, True])
def test_a_call_that_returns_while_a_fin_is_taken_in(call_is_first: bool) -> None:
    """On another CPU: the number of the FIN is in it already, and not yet the state."""
    one = Socket().open(1, active=True)
    one.send(5, 10)
    one.segment(6, 10)
    one.put(7, 1, seg_seq=one.arrived, seg_len=0)
    one.arrived += 1
    for _ in range(2):
        if call_is_first:
            one.put(7.001, 10, callvalue=10, rcv_sb_cc=1)
        else:
            one.put(7.001, 4, callvalue=8)
        call_is_first = not call_is_first
    one.read, one.state = one.arrived, 8
    one.put(8, 4, callvalue=9)
    assert cut(one)[["request_bytes", "response_bytes"]].tolist() == [(10, 10)]


def test_a_segment_that_comes_again_begins_nothing() -> None:
    one = Socket(lport=80, rport=40000).open(1, active=False)
    one.segment(5, 100)
    one.receive(6, 100)
    one.send(7, 100)
    one.put(20, 1, seg_seq=one.arrived - 100, seg_len=100)  # the request again: its ACK was lost
    one.put(21, 2, callvalue=one.acked, seg_len=100)  # and the answer is sent again
    one.segment(30)
    rows = cut(one)
    assert rows[["request_bytes", "response_bytes", "think_ns"]].tolist() == [(100, 100, 2 * MS)]


def test_segments_out_of_order_have_arrived_when_the_hole_is_filled() -> None:
    one = Socket().open(1, active=True)
    one.send(5, 100)
    one.segment(105, 1448, ahead=1448)
    one.segment(150, 1448)
    one.arrived += 1448
    one.receive(151, 2896)
    (row,) = cut(one)
    assert row["response_bytes"] == 2896
    assert row["think_ns"] + row["network_ns"] == 145 * MS
    assert row["response_ns"] == 0 and row["read_ns"] == 1 * MS


def test_a_server_that_speaks_first_answers_nothing() -> None:
    """SMTP, MySQL: the greeting is a row without a request."""
    for one, waited in ((greeted(), 49), (greeting(), 49)):
        rows = cut(one)
        assert rows["request_bytes"].tolist() == [0, 30]
        assert rows["response_bytes"].tolist() == [80, 20]
        assert rows["think_ns"].tolist()[0] == NULL
        assert rows["wait_ns"][0] == waited * MS
        assert rows["think_ns"][1] >= 4.9 * MS


def greeted() -> Socket:
    one = Socket().open(1, active=True)
    one.segment(50, 80)
    one.receive(51, 80)
    one.send(60, 30)
    one.segment(65, 20)
    one.receive(66, 20)
    return one


def greeting() -> Socket:
    one = Socket(lport=25, rport=40000).open(1, active=False)
    one.send(50, 80)
    one.segment(60, 30)
    one.receive(61, 30)
    one.send(65, 20)
    return one


def pipelined() -> Socket:
    """Three requests at once, of which the server has two when it answers."""
    one = Socket(conn_id=3).open(1, active=True)
    for at in (5, 5.1, 5.2):
        one.send(at, 100)
    one.segment(7, 50, ack=100)
    one.segment(8, 50, ack=100)
    one.segment(20, 50)
    one.receive(21, 150)
    return one


def test_pipelined_requests_say_so() -> None:
    rows = cut(pipelined())
    assert rows["request_bytes"].tolist() == [200, 100]
    assert rows["response_bytes"].tolist() == [100, 50]
    assert rows["pipelined"].tolist() == [True, False]
    # The third was written at 5.2 and answered at 20, less the round trip of 0.1 ms.
    assert rows["think_ns"].tolist()[1] == 14.7 * MS


def test_a_server_that_has_not_read_all_says_so() -> None:
    one = Socket(lport=80, rport=40000).open(1, active=False)
    one.segment(5, 100)
    one.segment(5.1, 100)
    one.receive(6, 100)
    one.send(7, 50)
    one.receive(8, 100)
    one.send(9, 50)
    rows = cut(one)
    assert rows[["request_bytes", "response_bytes", "pipelined"]].tolist() == [(200, 100, True)]


def test_a_request_that_crosses_an_answer_says_so() -> None:
    """A segment with a new request that does not acknowledge all of the answer."""
    one = Socket(lport=80, rport=40000).open(1, active=False)
    one.segment(5, 100)
    one.receive(6, 100)
    one.send(7, 50)
    one.segment(7.2, 100, ack=50)
    one.receive(8, 100)
    one.send(9, 50)
    rows = cut(one)
    assert rows["pipelined"].tolist() == [True, False]
    assert rows["request_bytes"].tolist() == [100, 100]


def test_half_close() -> None:
    """The client shuts down its side after the request, and reads on when the socket is closed."""
    one = Socket().open(1, active=True)
    one.send(5, 100)
    one.put(6, 4, callvalue=4)
    one.state = 4
    one.write(1)
    one.put(7, 21, seg_seq=one.arrived)
    one.acked = one.written
    one.put(7, 4, callvalue=5)
    one.state = 5
    one.put(50, 21, seg_seq=one.arrived, seg_len=700)
    one.arrived += 701
    one.put(50, 4, callvalue=7)
    one.state = 7
    one.receive(60, 700)
    one.put(70, 11)
    (row,) = cut(one)
    assert (row["request_bytes"], row["response_bytes"]) == (100, 700)
    assert row["think_ns"] + row["network_ns"] == 45 * MS
    assert row["read_ns"] == 10 * MS


def test_fast_open() -> None:
    """The request is in the SYN, so it was written a round trip before the handshake ended."""
    one = Socket()
    one.written = one.sent = one.acked = one.acked + 100
    one.srtt_us = 2000
    one.open(10, active=True, seg_len=100)
    one.segment(30, 50)
    one.receive(31, 50)
    other = Socket(conn_id=2, lport=80, rport=40000)
    other.arrived += 100
    other.srtt_us = 2000
    other.open(10, active=False, seg_len=100)
    other.receive(11, 100)
    other.send(15, 50)
    mine, theirs = cut(one, other)
    assert mine["request_bytes"] == theirs["request_bytes"] == 100
    assert mine["start_ns"] == theirs["start_ns"] == 8 * MS
    assert mine["think_ns"] + mine["network_ns"] == 22 * MS
    assert theirs["think_ns"] == 7 * MS


def test_a_connection_from_before_the_capture() -> None:
    """Its first exchange may have begun before: not certain. Ports that others use tell sides."""
    one = Socket(conn_id=1, lport=80, rport=40000)
    one.put(1, 226)
    one.send(5, 50)  # a server's answer to what was asked before
    one.segment(10, 100)
    one.receive(11, 100)
    one.send(12, 50)
    other = server(3, 1)
    other.conn_id = 2
    rows = cut(other, one)
    mine = rows[~rows["is_client"] & (rows["response_bytes"] == 50)]
    assert mine["request_bytes"].tolist() == [0, 100]
    assert mine["certain"].tolist() == [False, True]
    assert mine["wait_ns"][0] == NULL
    alone = Socket()
    alone.put(1, 226)
    alone.send(5, 50)
    alone.segment(6, 10)
    assert cut(alone)["is_client"].tolist() == [True]


def test_lost_records_are_bounds_and_no_guess() -> None:
    one = Socket().open(1, active=True)
    one.send(5, 100)
    one.lost = 3
    one.arrived += 50
    one.acked = one.written
    one.put(105, 5)
    one.receive(106, 50)
    (row,) = cut(one)
    assert not row["certain"] and not row["exact"]
    assert row["lost_records"] == 3
    # The answer arrived after 5 and before 105 ms.
    assert row["uncertain_ns"] >= 100 * MS
    low = row["start_ns"] + row["request_ns"] + row["think_ns"] + row["network_ns"]
    assert 5 * MS <= low <= 105 * MS


def test_without_calls_an_ack_tells_when_a_request_was_sent() -> None:
    """At 50 ms 120 bytes are sent, at 450 ms their answer comes, with the ACK: the mean of 200 us
    grows by an eighth of 400 ms less 200 us. Nothing was recorded between."""
    one = Socket().open(1, active=True)
    one.write(120)
    one.segment(450, 500, srtt_us=200 + (400_000 - 200) // 8, packets_out=1)
    one.read += 500
    one.put(460, 5)
    (row,) = cut(one, calls=False)
    assert not row["exact"]
    assert abs(row["start_ns"] - 50 * MS) < 16_000
    assert abs(row["think_ns"] + row["network_ns"] - 400 * MS) < 16_000
    assert 16_000 <= row["uncertain_ns"] <= 10 * MS + 32_000  # it read within the last 10 ms


def test_without_calls_an_answer_that_lies_is_a_bound_of_the_next_pause() -> None:
    """Whether the client read it at 10 or at 60 ms is not known: nor what its pause was."""
    one = Socket().open(1, active=True)
    for at in (5, 65, 125):
        one.write(120)
        one.segment(at + 5, 500, srtt_us=200 + (5000 - 200) // 8, packets_out=1)
        one.srtt_us = 200
        one.read = one.arrived
    rows = cut(one, calls=False)
    assert (rows["wait_ns"][1:] > 54 * MS).all()
    assert (rows["uncertain_ns"][1:] >= rows["wait_ns"][1:]).all()
    assert not rows["exact"].any()


def test_a_proxy_says_whom_it_waited_for(tmp_path: Path) -> None:
    behind = client(think=300, count=1, conn_id=3, rport=8080)
    path = write_requests(tmp_path / "a.pm", server(think=400, count=1), behind)
    whole = exchanges(str(path))
    served = {name: values[whole["side"] == "server"] for name, values in whole.items()}
    assert asked_meanwhile(served, whole, 5) == {}, "nobody knows whose they are"
    whole["pid"] = np.full(2, 7.0)
    served["pid"] = np.full(1, 7.0)
    (told,) = asked_meanwhile(served, whole, 5).values()
    assert told == ("meanwhile its process waited 300 ms for an answer of 10.0.0.1:8080, 75 % of "
                    "that time")  # fmt: skip
    whole["pid"][whole["side"] == "client"] = 8
    assert asked_meanwhile(served, whole, 5) == {}, "another process asked"
    whole["pid"][:] = 7
    whole["start_ns"][whole["side"] == "client"] -= 2 * MS
    assert asked_meanwhile(served, whole, 5) == {}, "it was asked before"


def test_several_at_once_holds_for_the_whole_connection_and_its_other_end(tmp_path: Path) -> None:
    proves = Socket(conn_id=2, lport=80, rport=40000).open(1, active=False)
    for at in (5, 15):
        proves.segment(at, 100)
        proves.receive(at + 1, 100)
        proves.send(at + 2, 50)
    proves.segment(25, 100)
    proves.send(26, 50)  # before it has read what came
    proves.receive(27, 100)
    path = write_requests(tmp_path / "a.pm", proves, client(), client(conn_id=3, lport=40001))
    table = exchanges(path)
    assert dict(zip(table["conn_id"].tolist(), table["pipelined"].tolist(), strict=True)) == {
        1: True, 2: True, 3: False,
    }  # fmt: skip
    assert table["pipelined"].sum() == 6
    said = CliRunner().invoke(command, [str(path)], standalone_mode=False).output
    assert said.count("single ones cannot be told apart") == 1


def test_calls_that_are_recorded_as_they_begin() -> None:
    """A kprobe: the bytes are there after it."""
    one = Socket().open(1, active=True)
    one.put(5, 9, callvalue=120)
    one.write(120)
    one.segment(405.1, 50)
    (row,) = cut(one, at_entry=True)
    assert row["start_ns"] == 5 * MS
    assert row["think_ns"] == 400 * MS


def test_an_answer_larger_than_the_buffer_has_its_first_byte_at_its_first_ack() -> None:
    """The call blocks: it is recorded seconds after its first byte."""
    one = Socket(lport=80, rport=40000).open(1, active=False)
    one.segment(5, 100)
    one.receive(6, 100)
    full = {"sk_wmem_bytes": 1 << 20}
    one.write(1 << 20)
    one.segment(106, ack=1 << 19, srtt_us=200 + (1000 - 200) // 8, **full)  # sent at 105
    one.write(1 << 20)
    one.segment(1000, ack=1 << 19, **full)
    one.send(3000, 0)
    (row,) = cut(one)
    assert row["response_bytes"] == 2 << 20
    assert abs(row["think_ns"] - 100 * MS) < 32_000


def test_rows_of_a_file_and_the_command(tmp_path: Path) -> None:
    path = write_requests(tmp_path / "a.pm", client(), server())
    table = exchanges(path)
    assert table["side"].tolist() == ["client"] * 3 + ["server"] * 3
    assert table["laddr"].tolist() == ["10.0.0.1"] * 6
    assert np.isnan(table["pid"]).all() and table["comm"].tolist() == [None] * 6
    done = CliRunner().invoke(command, [str(path), "--json"], standalone_mode=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 6
    assert rows[0]["think_ns"] == 400 * MS and rows[3]["network_ns"] is None
    parquet = pytest.importorskip("pyarrow.parquet")
    out, picture = tmp_path / "a.parquet", tmp_path / "a.png"
    done = CliRunner().invoke(command, [str(path), "-v", "-o", str(out), "-o", str(picture)],
                              standalone_mode=False)  # fmt: skip
    assert "it waited 400 ms for the server's answer, 100 % of the time" in done.output
    assert "as client: 3 exchanges; 100 % of their time was spent waiting for" in done.output
    assert "as server" not in done.output and "own program" not in done.output
    assert done.output.count("the client's view is shown") == 1
    of_server = ["--where", 'request.side == "server"']
    done = CliRunner().invoke(command, [str(path), *of_server], standalone_mode=False)
    assert "its own program took 400 ms to answer" in done.output
    assert "view is shown" not in done.output
    read = parquet.read_table(out)
    assert read.column_names == list(rows[0])
    assert [row["think_ns"] for row in read.to_pylist()] == [400 * MS] * 6
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_a_connection_can_be_chosen(tmp_path: Path) -> None:
    path = write_requests(tmp_path / "a.pm", client(), client(conn_id=9, lport=41000))
    done = CliRunner().invoke(command, [str(path), "--json", "-p", "41000.80"],
                              standalone_mode=False)  # fmt: skip
    assert {json.loads(line)["lport"] for line in done.stdout.splitlines()} == {41000}
    assert run(command, [str(path), "-p", "1.2"], "x") == 2
    assert run(command, [str(path), "-o", str(path)], "x") == 2


def test_a_condition_chooses_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends = client(), server(think=30, count=2)
    for row in ends[0].rows + ends[1].rows:
        row["lost"] = 1  # before all of them
    path = str(write_requests(tmp_path / "a.pm", *ends))

    def told(where: str) -> tuple[int, str]:
        code = run(command, prog="tcpkmon requests", args=[path, "-n", "0", "--where", where])
        return code, capsys.readouterr().out

    code, text = told('lport == 80 and request.side == "server"')
    assert code == 3 and "all, as server: 2 exchanges" in text and "as client" not in text
    assert "all, as client: 3 exchanges" in told("request.think_ms > 100")[1]
    begin = told("request.number > 0")[1].split(" at ")[1].split()[0]
    assert begin != "0.000000"  # seconds since the capture's first exchange, whatever is chosen
    assert told("lport == 9") == (3, "no such exchange in this capture\n")
    assert run(command, prog="tcpkmon requests", args=[path, "--where", "think_ms > 1"]) == 2


ASKED = {"think_ns": 900 * MS, "network_ns": 100 * MS, "read_ns": 0, "uncertain_ns": 3000 * MS,
         "wait_uncertain_ns": 0, "pipelined": 0, "count": 10}  # fmt: skip


def told(limit_ns: dict[str, int], is_client: bool = True, pause_ms: int = 0,
         unanswered_ms: int = 0, **values: Any) -> tuple[list[str], float]:  # fmt: skip
    whole = {name: ns * MS for name, ns in limit_ns.items()}
    ends = {"laddr": "10.0.0.1", "raddr": "10.0.0.2", "min_rtt_us": 10_000, **values}
    one = Connection(1, end_ns=1000 * MS, limit_ns=whole, **ends)
    found, share = Waited(is_client, ASKED, pause_ms * MS, unanswered_ms * MS).told(one)
    return [text for _, text in found], share


def test_what_nagle_or_a_loss_holds_back_is_no_waiting_for_the_server() -> None:
    """A server that answers at once: the path's round trips are 100 ms, the rest was held back."""
    for limit in ("nagle", "rto_wait", "cwnd"):
        assert told({limit: 890, "app": 110}) == (
            ["waited 100 ms for the path's round trips, 10 % of the time"], 0.11
        )
    sentences, share = told({"cwnd": 1000})
    assert sentences == [] and share == 0
    # A cork over the program's work, and a loss at the end.
    sentences, _ = told({"nagle": 700, "app": 300}, pause_ms=900, unanswered_ms=50)
    assert [one.split(",")[0] for one in sentences] == [
        "its own program paused 200 ms before the next request",
        "waited 100 ms for the path's round trips",
    ]


def test_parts_are_of_the_same_exchanges_and_few_have_no_percentiles(tmp_path: Path) -> None:
    one = Socket().open(1, active=True)
    for at in (5, 416.1):
        one.send(at, 120)
        one.segment(at + 400, 4000)
        one.receive(at + 401.1, 4000)
    one.send(900, 77)  # is not answered
    table = exchanges(write_requests(tmp_path / "a.pm", one))
    assert (table["response_bytes"] == 0).sum() == 1
    summary = summarize(table, np.arange(3))
    assert (summary.count, summary.measured) == (3, 2)
    assert {part.percentiles for part in summary.parts.values()} == {()}
    assert summary.parts["wait"].sum == 14 * MS  # without the pause before the third
    few = CliRunner().invoke(command, [str(tmp_path / "a.pm"), "-v"], standalone_mode=False).output
    assert "p50" not in few and "of 2 that are known whole" in few
    path = str(write_requests(tmp_path / "b.pm", client(count=3)))
    assert "p50" in CliRunner().invoke(command, [path], standalone_mode=False).output


def test_the_client_s_view_says_what_the_server_did_meanwhile(tmp_path: Path) -> None:
    """A request arrives before the call that wrote it returns."""
    table = exchanges(write_requests(tmp_path / "a.pm", client(), server()))
    table["start_ns"][3:] -= 1000
    rows, both = each_once(table)
    assert rows.tolist() == [0, 1, 2] and both == 1
    assert served(table, table).tolist() == [3, 4, 5, 3, 4, 5]
    alone = {name: values[:3] for name, values in table.items()}
    assert served(alone, alone).tolist() == [-1] * 3
    assert each_once({name: values[3:] for name, values in table.items()})[1] == 0


def test_why_says_who_read_late(tmp_path: Path) -> None:
    one = Socket().open(1, active=True)
    one.send(5, 100)
    one.segment(6, 500)
    one.receive(96, 500)
    one.close(100)
    path = write_requests(tmp_path / "a.pm", one)
    done = CliRunner().invoke(why.command, [str(path)], standalone_mode=False)
    assert "its own program read the answers 90 ms late, together, 89 % of the time" in done.output


@pytest.mark.parametrize("close_ms, goodbye", [(1.2, True), (300, False)])
def test_a_last_message_before_a_close_is_a_goodbye(
    tmp_path: Path, close_ms: float, goodbye: bool
) -> None:
    """As Terminate of postgres: nothing answers it. Who waits for an answer closes later."""
    asks, answers = Socket().open(1, True), Socket(2, lport=80, rport=40000).open(1, False)
    asks.send(5, 120)
    asks.segment(405, 4000)
    asks.receive(406, 4000)
    asks.send(500, 5)
    asks.close(500 + close_ms)
    answers.segment(5, 120)
    answers.receive(5.1, 120)
    answers.send(404, 4000)
    answers.segment(500.1, 5)
    answers.receive(500.2, 5)
    answers.put(500.1 + close_ms, 4, callvalue=8)
    answers.put(1000, 11, state=8)
    path = write_requests(tmp_path / "a.pm", asks, answers)
    table = exchanges(path)
    assert table["goodbye"].tolist() == [False, goodbye] * 2
    text = CliRunner().invoke(command, [str(path)], standalone_mode=False).output
    assert ("1 goodbye, closed at once behind" in text) == goodbye != ("without an answer" in text)
    text = CliRunner().invoke(why.command, [str(path)], standalone_mode=False).output
    assert ("an answer that did not come" in text) == (not goodbye), text


def both_ends_greeted(tmp_path: Path) -> Path:
    """A server that speaks first and closes at once; both ends."""
    ends = Socket().open(1, True), Socket(2, lport=80, rport=40000).open(1.05, False)
    asks, greets = ends
    greets.send(1.2, 61)
    greets.close(1.21)
    asks.segment(1.3, 61)
    asks.read = asks.arrived
    asks.put(1.31, 4, callvalue=8)
    return write_requests(tmp_path / "a.pm", *ends)


def test_an_exchange_that_takes_no_time_is_there_once(tmp_path: Path) -> None:
    path = both_ends_greeted(tmp_path)
    table = exchanges(path)
    assert table["peer_conn_id"].tolist() == [2, 1]
    rows, both = each_once(table)
    assert table["side"][rows].tolist() == ["client"] and both == 1
    text = CliRunner().invoke(command, [str(path)], standalone_mode=False).output
    assert "as server" not in text and text.count("1 exchange") == 2


def test_an_answer_of_which_only_the_reading_is_not_known(tmp_path: Path) -> None:
    """Its bytes came for 2 s; then there is no record for 3 s, at whose end all was read."""
    one = Socket().open(1, active=True)
    one.send(5, 10)
    one.segment(6, 500)
    one.segment(2006, 500)
    one.read = one.arrived
    one.put(5006, 4, callvalue=4)
    path = write_requests(tmp_path / "a.pm", one, locations={"SEGMENT_RECEIVED": "btf"})
    text = CliRunner().invoke(command, [str(path)], standalone_mode=False).output
    assert "took 2 s: the answer arrived for 2 s, 100 % of the time; when its process read it " \
           "is not known" in text  # fmt: skip
    assert "receiving the answers" in text and "time that is not known" not in text


def test_what_is_as_uncertain_as_it_is_long_is_not_known() -> None:
    one = Connection(1, end_ns=1000 * MS, limit_ns={"app": 1000 * MS}, raddr="10.0.0.2")
    for unsure, words in ((0.95, "for how long is not known"), (0.3, "(uncertain by up to")):
        sums = {**ASKED, "uncertain_ns": int(unsure * ASKED["think_ns"])}
        text = Waited(True, sums, 0, 0).told(one)[0][0][1]
        assert words in text and ("900 ms" in text) == (unsure < 0.9)
    sums = {**ASKED, "think_ns": 0, "wait_uncertain_ns": 800 * MS}
    text = Waited(True, sums, 900 * MS, 0).told(one)[0][0][1]
    assert text.startswith("its own program paused before the next request or read the")


def test_who_closed_waits_for_no_request_and_makes_none(tmp_path: Path) -> None:
    """The other side's FIN comes 90 ms later: neither pauses, and no request is waited for."""
    other = Socket(2, lport=80, rport=40000)
    sockets = Socket().open(4.9, active=True), other.open(4.9, active=False)
    asks, answers = sockets
    asks.send(5, 100)
    asks.segment(6, 500)
    asks.receive(6, 500)
    answers.segment(5, 100)
    answers.send(5, 500)
    for one in sockets:
        one.put(6, 4, callvalue=4 if one is asks else 8)
        one.state = 4 if one is asks else 8
        one.put(96, 4, callvalue=7)
        one.put(96, 11)
    path = write_requests(tmp_path / "a.pm", *sockets)
    done = CliRunner().invoke(why.command, [str(path)], standalone_mode=False)
    assert "paused" not in done.output and "next request" not in done.output


def test_only_connections_that_are_printed_and_both_of_whose_ends_sent_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[set[int]] = []

    def note(block: Any, *how: bool) -> Any:
        read.append(set(block["conn_id"].tolist()))
        return cut_block(block, *how)

    monkeypatch.setattr("tcpkmon.formats.analysis.exchanges.table.cut", note)
    bulk = Socket(conn_id=3, lport=41000).open(1, active=True)
    for ms in range(5, 50):
        bulk.send(ms, 10_000)
    bulk.segment(51)
    bulk.segment(52)
    alone = str(write_requests(tmp_path / "bulk.pm", bulk))
    assert "waited" not in CliRunner().invoke(why.command, [alone], standalone_mode=False).output
    assert read == []
    asks = client(count=1), client(conn_id=5, lport=42000, count=3)
    path = str(write_requests(tmp_path / "a.pm", bulk, *asks))
    done = CliRunner().invoke(why.command, [path, "-n", "2"], standalone_mode=False)
    assert "server's answers of 3 requests" in done.output
    assert set.union(*read) == {5}
    read.clear()
    done = CliRunner().invoke(why.command, [path, "--json"], standalone_mode=False)
    assert set.union(*read) == {1, 5}


def test_assertions_on_requests(tmp_path: Path) -> None:
    path = str(write_requests(tmp_path / "a.pm", client(), server()))
    for text, code in (
        ("p99(request.think_ms) < 500", 0), ("p99(request.think_ms) < 50", 6),
        ("request.think_ms < 0.3s", 6), ('request.read_ms < 1 where request.side == "client"', 0),
        ("not any(request.pipelined)", 0), ("count() == 6 where request.number >= 0", 0),
        ("request.nothing < 1", 2), ("request.think_ms < 1s and rport == 80", 6),
    ):  # fmt: skip
        assert run(check.command, ["--unproven-ok", path, text], "x") == code, text


def test_a_capture_without_records_has_no_requests(tmp_path: Path) -> None:
    unpack("psc-rotated", tmp_path)
    (last,) = tmp_path.rglob("*000003.pm")
    table = exchanges(last)
    assert len(table["conn_id"]) == len(table["total_ns"]) == 0


def test_what_follows_the_last_answer_is_no_pause_before_a_request(tmp_path: Path) -> None:
    one = Socket().open(1, active=True)
    one.send(5, 100)
    one.segment(6, 500)
    one.receive(6, 500)
    one.segment(100)  # nothing more until the end
    path = write_requests(tmp_path / "a.pm", one)
    done = CliRunner().invoke(why.command, [str(path)], standalone_mode=False)
    assert "its own program asked for nothing more, " in done.output
    assert "next request" not in done.output
