# SPDX-License-Identifier: Apache-2.0
"""Every location that can be provoked is provoked, and held against the kernel's own counters."""

from __future__ import annotations

import errno
import os
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.lab.counters import counters, losing
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.linux.btf import Btf, Kind
from tcpkmon.collector.loader.attach_trials import Probing
from tests.live.capturing import (
    Outcome,
    Records,
    capturing,
    connected,
    family_of,
    join,
    listening,
    make_socket,
    receive,
    tcp_info,
    wait_until,
    within,
)

CALLS = ("--locations", "default,SEND_CALL,RECEIVE_CALL,RCV_SPACE_ADJUST")
ALL = ("--columns", "all", *CALLS)
CLOSE, SYN_SENT, ESTABLISHED, NEW_SYN_RECV = 7, 2, 1, 12
OPEN, LOSS = 0, 4
RTO, WINDOW_PROBE, LOSS_PROBE = 1, 3, 5  # icsk_pending
SYN = 2
LARGE = "meta l4proto tcp meta length > 200"
SYN_ACK = "tcp flags & (syn|ack) == (syn|ack)"
SMALL_BUFFER = 4096
PRUNED = "SKB_DROP_REASON_TCP_OFO_QUEUE_PRUNE"


def check_chain(changes: Records, column: str) -> None:
    """Each change begins where the one before ended."""
    for identity in np.unique(changes["conn_id"]):
        one = changes.where(conn_id=identity)
        assert one[column].tolist()[1:] == one["callvalue"].tolist()[:-1]


def test_losses(tmp_path: Path, lab: Lab) -> None:
    """RTO, LOSS_PROBE, RETRANSMIT, CONG_STATE: all data is lost for a while."""
    with capturing(tmp_path / "a.pm", *ALL, *within(lab)) as run:
        with connected(lab) as pair:
            pair.exchange()
            with losing(lab.b, LARGE):
                pair.client.sendall(bytes(1000))
                wait_until(lambda: tcp_info(pair.client)["retransmits"] >= 2)
            receive(pair.server, 1000)
            pair.exchange(3000)
            wait_until(lambda: tcp_info(pair.client)["ca_state"] == OPEN)
            said = tcp_info(pair.client)
        counted = counters(lab.a)
        outcome = run.stop()
    outcome.check_complete()
    client = outcome.records.where(netns=lab.a.namespace.cookie)
    assert len(set(client["conn_id"].tolist())) == 1
    timeouts = client.at("RTO")
    assert len(timeouts) == counted["TCPTimeouts"] >= 2
    assert timeouts["callvalue"].tolist() == list(range(len(timeouts)))
    assert timeouts["retransmits"].tolist() == timeouts["callvalue"].tolist()
    assert set(timeouts["pending"].tolist()) == {RTO}
    assert np.all(np.diff(timeouts["rto_us"].astype(np.int64)) > 0)
    probes = client.at("LOSS_PROBE")
    assert len(probes) == counted["TCPLossProbes"] >= 1
    assert probes["pending"][0] == LOSS_PROBE
    assert probes["callvalue"][0] == 0
    again = client.at("RETRANSMIT")
    assert len(again) == counted["RetransSegs"] == said["total_retrans"] >= 3
    assert set(again["callvalue"].tolist()) == {timeouts["snd_una"][0].item()}
    assert again["seg_seq"].tolist() == again["callvalue"].tolist()
    assert set(again["seg_len"].tolist()) == {1000}
    changes = client.at("CONG_STATE")
    check_chain(changes, "ca_state")
    assert changes["callvalue"].tolist()[0] == LOSS
    assert changes.last("callvalue") == OPEN
    assert client.at("DESTROY").one("total_retrans") == said["total_retrans"]


def reset_reasons() -> dict[str, int]:
    """Why resets are sent, by name.

    Kernels before 6.10 do not tell, nor do they tell of resets that no socket sends.
    """
    btf = Btf.from_kernel()
    reasons = btf.find(Kind.ENUM, "sk_rst_reason")
    return {} if reasons is None else btf.enumerators(reasons)


def check_refusals(outcome: Outcome, lab: Lab, refused: list[tuple[str, int, int]]) -> None:
    """A connection to a port where nobody listens, of each family."""
    reasons = reset_reasons()
    for address, port, client_port in refused:
        sent = outcome.records.at("RESET_SENT").where(lport=port)
        here = "fd77::1" if ":" in address else "10.77.0.1"
        if reasons:
            assert sent.ends() == [(address, port, here, client_port)]
            assert sent.one("callvalue") == reasons["SK_RST_REASON_NO_SOCKET"]
            assert sent.one("netns") == lab.b.namespace.cookie
            assert (sent.one("conn_id"), sent.one("sk_addr"), sent.one("pid")) == (0, 0, 0)
            assert sent.one("family") == family_of(address)
        client = outcome.records.where(rport=port)
        assert len(set(client["conn_id"].tolist())) == 1
        got = client.at("RESET_RECEIVED")
        assert got.ends() == [(here, client_port, address, port)]
        assert got.one("state") == SYN_SENT
        errors = client.at("SOCKET_ERROR")
        assert errors["callvalue"][0] == errno.ECONNREFUSED
        assert errors["state"][0] == CLOSE
        # Although the kernel wipes the ends of a connection that failed.
        assert len(client.at("DESTROY")) == 1


def test_handshakes_and_resets(tmp_path: Path, lab: Lab) -> None:
    """RETRANSMIT_SYNACK, RESET_SENT with a socket and without, RESET_RECEIVED, SOCKET_ERROR."""
    refused = []
    with capturing(tmp_path / "a.pm", *ALL, *within(lab)) as run:
        with (
            listening(lab.b, "10.77.0.2") as listener,
            make_socket(lab.a) as client,
            losing(lab.a, SYN_ACK),
        ):
            silent = listener.getsockname()
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(silent)
            wait_until(lambda: counters(lab.b)["TCPSynRetrans"])
        silenced = counters(lab.a), counters(lab.b)
        for address in ("10.77.0.2", "fd77::2"):
            with listening(lab.b, address) as listener:
                port = listener.getsockname()[1]
            with make_socket(lab.a, family_of(address)) as client:
                client.bind(("::" if ":" in address else "", 0))
                refused.append((address, port, client.getsockname()[1]))
                with pytest.raises(ConnectionRefusedError):
                    client.connect((address, port))
        with connected(lab) as pair:
            ports = pair.client_port, pair.server_port
            pair.client.sendall(b"unread")
            wait_until(lambda: tcp_info(pair.client)["bytes_acked"] > 6)
            pair.server.close()
            with pytest.raises(ConnectionResetError):
                receive(pair.client, 1)
        resets = counters(lab.b)["OutRsts"]
        outcome = run.stop()
    outcome.check_complete()
    records = outcome.records
    # A SYN-ACK that is lost: the server's request is no socket yet.
    again = records.at("RETRANSMIT_SYNACK")
    assert len(again) == silenced[1]["TCPSynRetrans"] >= 1
    assert again["callvalue"].tolist() == list(range(len(again)))
    assert set(again["lport"].tolist()) == {silent[1]}
    assert set(again["state"].tolist()) == {NEW_SYN_RECV}
    assert set(again["conn_id"].tolist()) == {0}
    assert set(again["netns"].tolist()) == {lab.b.namespace.cookie}
    client = records.where(rport=silent[1])
    syns = client.at("RETRANSMIT")
    assert len(syns) == silenced[0]["TCPSynRetrans"] == silenced[0]["RetransSegs"]
    assert set(syns["seg_flags"].tolist()) <= {SYN}
    assert set(syns["state"].tolist()) <= {SYN_SENT}
    assert len(client.at("RTO")) == silenced[0]["TCPTimeouts"]
    check_refusals(outcome, lab, refused)
    # A connection closed with data unread.
    here, there = ports
    server = records.where(lport=there, rport=here)
    reason = server.at("RESET_SENT").one("callvalue")
    reasons = reset_reasons()
    assert reason == reasons.get("SK_RST_REASON_TCP_ABORT_ON_CLOSE", reason)
    assert len(set(server["conn_id"].tolist())) == 1
    client = records.where(lport=here, rport=there)
    assert client.at("RESET_RECEIVED").one("state") == ESTABLISHED
    assert client.at("SOCKET_ERROR").one("callvalue") == errno.ECONNRESET
    assert resets == 3
    assert len(records.at("RESET_SENT")) == (3 if reasons else 1)
    check_chain(records.at("STATE_CHANGE"), "state")


def test_windows_and_buffers(tmp_path: Path, lab: Lab) -> None:
    """ZERO_WINDOW_PROBE, RCVQ_FULL, RCV_SPACE_ADJUST: receivers that are slow, or shrink."""
    with capturing(tmp_path / "a.pm", *ALL, *within(lab)) as run:
        with make_socket(lab.b) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
            listener.bind(("10.77.0.2", 0))
            listener.listen()
            pair = join(lab.a, listener, "10.77.0.2")
        slow = pair.client_port
        sent = 0
        with suppress(BlockingIOError):
            while True:
                sent += pair.client.send(bytes(10_000), socket.MSG_DONTWAIT)
        wait_until(lambda: counters(lab.a)["TCPWinProbe"] >= 2)
        receive(pair.server, sent)
        wait_until(lambda: not tcp_info(pair.client)["unacked"])
        probed = counters(lab.a)
        pair.close()
        with connected(lab) as pair:
            shrunk = pair.client_port
            pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 19)
            pair.server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
            sent = 0
            with suppress(BlockingIOError):
                while sent < 60_000:
                    sent += pair.client.send(bytes(1000), socket.MSG_DONTWAIT)
            wait_until(lambda: counters(lab.b)["TCPRcvQDrop"])
            receive(pair.server, sent)
            dropped = counters(lab.b)
        outcome = run.stop()
    outcome.check_complete()
    client = outcome.records.where(lport=slow)
    probes = client.at("ZERO_WINDOW_PROBE")
    assert len(probes) == probed["TCPWinProbe"] >= 2
    assert probes["callvalue"].tolist() == probes["probes_out"].tolist()
    assert set(probes["pending"].tolist()) == {WINDOW_PROBE}
    assert set(probes["packets_out"].tolist()) == {0}
    assert probes["backoff"].tolist()[:2] == [0, 1]
    assert np.all(probes["notsent_bytes"] > 0)
    full = outcome.records.at("RCVQ_FULL")
    assert shrunk in full["rport"].tolist()
    btf = Btf.from_kernel()
    reason = btf.find(Kind.ENUM, "skb_drop_reason")
    assert reason is not None
    reasons = {value: name for name, value in btf.enumerators(reason).items()}
    names = [reasons[value] for value in full["callvalue"].tolist()]
    # Some kernels (6.1) first give up what came out of order, and count how often they do.
    pruned = names.count(PRUNED)
    assert pruned >= dropped["OfoPruned"]
    counted = sum(
        dropped[name]
        for name in ("TCPRcvQDrop", "TCPOFODrop", "TCPZeroWindowDrop", "TCPBacklogDrop")
    )
    # Seen on 6.1.0-56, not explained: all have the reason PRUNED, as many as were dropped and more.
    is_odd = os.uname().release.startswith("6.1.") and len(full) == pruned
    assert len(full) >= counted if is_odd else len(full) - pruned == counted
    assert set(names) - {PRUNED} <= {
        "SKB_DROP_REASON_PROTO_MEM",
        "SKB_DROP_REASON_SOCKET_RCVBUFF",
        "SKB_DROP_REASON_TCP_ZEROWINDOW",
        "SKB_DROP_REASON_SOCKET_BACKLOG",
    }
    assert np.any(full["sk_rmem_bytes"] > full["sk_rcvbuf"])
    adjusted = outcome.records.at("RCV_SPACE_ADJUST")
    assert adjusted["callvalue"].tolist() == adjusted["rcv_space"].tolist()
    assert len(set(adjusted.where(rport=slow)["callvalue"].tolist())) > 1


def test_owners_where_calls_are_not_recorded(tmp_path: Path, lab: Lab) -> None:
    """Calls tell the owner all the same, and its new name within a jiffy."""
    name = Path("/proc/thread-self/comm")
    before = name.read_text().strip()
    with capturing(tmp_path / "a.pm", "--columns", "full", *within(lab)) as run:
        try:
            name.write_text("first")
            with connected(lab) as pair:
                port = pair.client_port
                pair.exchange()
                name.write_text("second")
                deadline = time.monotonic() + 0.1
                while time.monotonic() < deadline:
                    pair.exchange()
        finally:
            name.write_text(before)
        outcome = run.stop()
    outcome.check_complete()
    assert not outcome.records.counts().keys() & {"SEND_CALL", "RECEIVE_CALL"}
    for end in (outcome.records.where(lport=port), outcome.records.where(rport=port)):
        owners = end["pid"].tolist()
        start = next(row for row, pid in enumerate(owners) if pid)
        assert set(owners[start:]) == {os.getpid()}
        # The first message finds the server's end without an owner, the next ones no more.
        assert len(end.pick(end["pid"] == 0).at("SEGMENT_RECEIVED")) <= 2
        assert end["comm"][start] == b"first"
        assert end.last("comm") == b"second"


def test_owners(tmp_path: Path, lab: Lab) -> None:
    """The owner is who called last, by the name it had then; a softirq's context is nobody's."""
    name = Path("/proc/thread-self/comm")
    before = name.read_text().strip()
    with capturing(tmp_path / "a.pm", *ALL, *within(lab)) as run:
        try:
            name.write_text("owner-of-15-byt")
            with connected(lab) as pair:
                port = pair.client_port
                pair.exchange()
                name.write_text("\x1b[31mred")
                pair.exchange()
        finally:
            name.write_text(before)
        outcome = run.stop()
    outcome.check_complete()
    client = outcome.records.where(lport=port)
    assert set(client["comm"].tolist()) == {b"owner-of-15-byt", b"\x1b[31mred"}
    assert set(client.at("SEGMENT_RECEIVED")["pid"].tolist()) == set(client["pid"].tolist())
    server = outcome.records.where(rport=port)
    # It is not known before the server's first call, and from then on always.
    owners = server["pid"].tolist()
    assert owners[0] == 0
    assert server["comm"].tolist()[0] == b""
    start = next(row for row, pid in enumerate(owners) if pid)
    assert len(set(owners[start:])) == 1
    # Where a program can hang on to its end, accept() is that call.
    if not Probing(Btf.from_kernel()).can("fexit", "inet_csk_accept"):
        assert server["location"][start] == server.at("RECEIVE_CALL")["location"][0]


def test_listeners(tmp_path: Path, lab: Lab) -> None:
    """Queues at each connection, SYN and ACK that a listener refuses or defers, against ss."""
    path = tmp_path / "a.pm"
    with capturing(path, *ALL, *within(lab)) as run:
        with ExitStack() as stack:
            ends = [stack.enter_context(make_socket(lab.a)) for _ in range(5)]
            full, deferring = (stack.enter_context(make_socket(lab.b)) for _ in range(2))
            for end, backlog in ((full, 1), (deferring, 9)):
                end.bind(("10.77.0.2", 0))
                end.listen(backlog)
            deferring.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 3)
            for client in ends[1:]:
                client.setblocking(False)
                client.connect_ex(full.getsockname())
            ends[0].connect(deferring.getsockname())
            wait_until(lambda: counters(lab.b)["ListenDrops"] >= 4)
            said = lab.b.command(["ss", "-Hltn", f"sport = {full.getsockname()[1]}"]).split()
            counted = counters(lab.b)
            ends[0].sendall(b"data")
            for listener in (deferring, full):
                stack.enter_context(listener.accept()[0])
            port = full.getsockname()[1]
        outcome = run.stop()
    outcome.check_complete()
    with tcpkmon.open(path) as capture:
        rows = capture.table("listeners").to_pylist()
    mine = [row for row in rows if row["lport"] == port]
    made = [row["queue"] for row in mine if row["event"] == "connection"]
    assert made == [0, 1] and said[1:3] == ["2", "1"] and {row["backlog"] for row in mine} == {1}
    assert (mine[0]["event"], mine[-1]["event"]) == ("listen", "close")
    assert (mine[-1]["queue"], mine[-1]["drops"]) == (1, counted["ListenDrops"])
    missing = outcome.capture.settings["missing_locations"]
    syns = [row for row in mine if row["event"] == "syn"]
    if "LISTENER" not in missing:
        assert 2 <= len(syns) <= counted["ListenDrops"]
        assert all(row["queue"] == 2 for row in syns)
        acks = [row for row in rows if row["event"] == "ack"]
        assert [row["defer_accept"] > 0 for row in acks].count(True) == 2  # the ACK, and the data
        assert counted["TCPDeferAcceptDrop"] == 1
    if "ACCEPTED" not in missing:
        assert outcome.records.at("ACCEPTED")["callvalue"].tolist() == [0, 1]
