# SPDX-License-Identifier: Apache-2.0
"""Oracle 2: at rest, a connection's last record says what `ss` and getsockopt(TCP_INFO) say."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.lab.lab import Bottleneck, Lab, Side
from tests.live.capturing import (
    Pair,
    Records,
    capturing,
    connected,
    look,
    tcp_info,
    wait_until,
    within,
)

MOVING = re.compile(r"(?:lastsnd|lastrcv|lastack|ato):\d+|timer:\(\S+\)")
EVERY = ("--columns", "all", "--locations", "default,SEND_CALL,RECEIVE_CALL")
BBR = ("bbr_bw", "bbr_min_rtt_us", "bbr_pacing_gain", "bbr_cwnd_gain", "bbr_mode")
INFINITE = 0x7FFFFFFF
SK_MEMINFO = ("r", "rb", "t", "tb", "f", "w", "o", "bl", "d")


def ss(side: Side, port: int) -> str:
    """What ss tells of the connection whose local port this is, without what only counts time."""
    text = side.command(["ss", "-tinmoeH", f"sport = :{port}"])
    lines = [line for line in text.splitlines() if not line.startswith("LISTEN")]
    return MOVING.sub("", " ".join(" ".join(lines).split()))


def number(text: str, pattern: str, absent: str = "0") -> int:
    """The first group of the pattern; ss leaves out what is 0."""
    found = re.search(rf"(?:^|\s){pattern}(?=\s|$)", text)
    return int(float(found.group(1) if found else absent))


def us(text: str, pattern: str) -> float:
    """A time that ss gives in ms, in us."""
    found = re.search(rf"(?:^|\s){pattern}", text)
    return float(found.group(1)) * 1000 if found else 0.0


def at_rest(lab: Lab, pair: Pair) -> tuple[str, str]:
    """Looks at both ends when nothing moves any more; what ss says of the client and the server."""

    def twice() -> tuple[str, str] | None:
        before = ss(lab.a, pair.client_port), ss(lab.b, pair.server_port)
        if any("unacked:" in text or "timer" in text for text in before):
            return None
        look(pair.client)
        look(pair.server)
        after = ss(lab.a, pair.client_port), ss(lab.b, pair.server_port)
        return after if after == before else None

    answer = wait_until(twice)
    assert isinstance(answer, tuple)
    return answer


def check_against_ss(records: Records, text: str) -> None:
    """The last record of one connection against ss's line of it."""
    value = records.last
    assert records.at("RECEIVE_CALL")["seq"][-1] == value("seq")
    assert value("snd_cwnd_segs") == number(text, r"cwnd:(\d+)")
    assert value("snd_ssthresh") == number(text, r"ssthresh:(\d+)", str(INFINITE))
    assert value("mss") == number(text, r"mss:(\d+)")
    assert value("snd_cwnd") == value("snd_cwnd_segs") * value("mss")
    assert value("rto_us") == us(text, r"rto:([\d.]+)")
    # ss prints three significant digits after the point, and drops what is beyond a fraction.
    assert value("srtt_us") == pytest.approx(us(text, r"rtt:([\d.]+)/"), abs=1)
    assert value("rttvar_us") == pytest.approx(us(text, r"rtt:[\d.]+/([\d.]+)"), abs=1)
    assert value("min_rtt_us") == pytest.approx(us(text, r"minrtt:([\d.]+)"), abs=1)
    assert value("bytes_acked") == number(text, r"bytes_acked:(\d+)")
    assert value("bytes_received") == number(text, r"bytes_received:(\d+)")
    assert value("bytes_sent") == number(text, r"bytes_sent:(\d+)")
    assert value("bytes_retrans") == number(text, r"bytes_retrans:(\d+)")
    assert value("total_retrans") == number(text, r"retrans:\d+/(\d+)")
    assert value("retrans_out") == number(text, r"retrans:(\d+)/\d+")
    assert value("segs_out") == number(text, r"segs_out:(\d+)")
    assert value("segs_in") == number(text, r"segs_in:(\d+)")
    assert value("delivered") == number(text, r"delivered:(\d+)")
    assert value("rcv_mss") == number(text, r"rcvmss:(\d+)")
    assert value("advmss") == number(text, r"advmss:(\d+)")
    assert value("rcv_space") == number(text, r"rcv_space:(\d+)")
    assert value("rcv_ssthresh") == number(text, r"rcv_ssthresh:(\d+)")
    assert value("snd_wnd") == number(text, r"snd_wnd:(\d+)")
    assert value("busy_us") == pytest.approx(us(text, r"busy:(\d+)ms"), abs=1000)
    assert value("reordering") == number(text, r"reordering:(\d+)", "3")
    memory = re.search(r"skmem:\(([^)]*)\)", text)
    assert memory
    sizes = {name: int(size) for name, size in re.findall(r"([a-z]+)(\d+)", memory.group(1))}
    assert value("sk_rmem_bytes") == sizes["r"]
    assert value("sk_rcvbuf") == sizes["rb"]
    assert value("sk_wmem_alloc") == sizes["t"]
    assert value("sb_hiwat") == sizes["tb"]
    assert value("sk_forward_alloc") == sizes["f"]
    assert value("sk_wmem_bytes") == sizes["w"]
    name = value("ca_name").split(b"\0")[0].decode()
    assert f" {name} " in text


@pytest.mark.parametrize("kind", ["btf", "raw"])
def test_the_last_record_says_what_ss_says(tmp_path: Path, kind: str) -> None:
    options = (*EVERY, "--buffer-size", "16")
    with ExitStack() as stack:
        narrow = Bottleneck(rate_mbit=100, queue_bytes=50_000, loss_percent=4.0)
        lab = stack.enter_context(Lab(narrow))
        run = stack.enter_context(
            capturing(tmp_path / "a.pm", *options, *within(lab), kinds=f"{kind},fexit,kprobe,iter")
        )
        said = []
        lossy = stack.enter_context(connected(lab))
        calm = stack.enter_context(connected(lab, "fd77::2"))
        for _ in range(3):
            calm.exchange(20_000)
        rounds = 0
        while rounds < 40 or not tcp_info(lossy.client)["bytes_retrans"]:
            lossy.exchange(20_000)
            rounds += 1
        for pair in (lossy, calm):
            pair.exchange(1)
            said.append((pair.client_port, pair.server_port, at_rest(lab, pair)))
        outcome = run.stop()
    outcome.check_complete()
    for here, there, (client, server) in said:
        assert "cwnd:" in client
        for text, lport, rport in ((client, here, there), (server, there, here)):
            check_against_ss(outcome.records.where(lport=lport, rport=rport), text)
    (_, _, (text, _)), _ = said
    assert number(text, r"bytes_retrans:(\d+)") > 0


# Every column, against what the kernel tells the application itself

SO_MEMINFO, SO_NETNS_COOKIE, SO_MARK, TCP_WINDOW_CLAMP = 55, 71, 36, 10
MARK = 0x5EED
INITIAL_SEGMENTS = 10


def memory_of(end: socket.socket) -> dict[str, int]:
    raw = end.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 4 * len(SK_MEMINFO))
    return dict(zip(SK_MEMINFO, struct.unpack(f"={len(SK_MEMINFO)}I", raw), strict=True))


def packed(end: tuple[Any, ...]) -> bytes:
    mapped = end[0] if ":" in end[0] else f"::ffff:{end[0]}"
    return socket.inet_pton(socket.AF_INET6, mapped).rstrip(b"\0")


def told_of(end: socket.socket) -> dict[str, Any]:
    """By column, what the kernel tells the owner of this connection, at rest."""
    info, memory = tcp_info(end), memory_of(end)
    congestion = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    cookie = end.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
    renamed = {
        "mss": "snd_mss",
        "snd_cwnd_segs": "snd_cwnd",
        "srtt_us": "rtt",
        "rttvar_us": "rttvar",
        "rto_us": "rto",
        "min_rtt_us": "min_rtt",
        "rcv_rtt_us": "rcv_rtt",
        "packets_out": "unacked",
        "sacked_out": "sacked",
        "lost_out": "lost",
        "retrans_out": "retrans",
        "probes_out": "probes",
        "busy_us": "busy_time",
        "rwnd_limited_us": "rwnd_limited",
        "sndbuf_limited_us": "sndbuf_limited",
    }
    same = (
        "state ca_state retransmits backoff snd_ssthresh advmss reordering rcv_mss rcv_ssthresh "
        "rcv_space total_retrans pacing_rate bytes_acked bytes_received bytes_sent bytes_retrans "
        "segs_out segs_in data_segs_in data_segs_out notsent_bytes delivered delivered_ce "
        "dsack_dups reord_seen rcv_ooopack snd_wnd"
    )
    return {
        **{name: info[name] for name in same.split()},
        **{column: info[name] for column, name in renamed.items()},
        "snd_cwnd": info["snd_cwnd"] * info["snd_mss"],
        "snd_sb_cc": 0,
        "rcv_sb_cc": 0,
        "snd_wscale": info["scales"] & 15,
        "rcv_wscale": info["scales"] >> 4,
        "sb_hiwat": memory["tb"],
        "sk_rcvbuf": memory["rb"],
        "sk_rmem_bytes": memory["r"],
        "sk_wmem_bytes": memory["w"],
        "sk_wmem_alloc": memory["t"],
        "sk_forward_alloc": memory["f"],
        "sk_mark": end.getsockopt(socket.SOL_SOCKET, SO_MARK),
        "window_clamp": end.getsockopt(socket.IPPROTO_TCP, TCP_WINDOW_CLAMP),
        "netns": struct.unpack("=Q", cookie)[0],
        "lport": end.getsockname()[1],
        "rport": end.getpeername()[1],
        "laddr": packed(end.getsockname()),
        "raddr": packed(end.getpeername()),
        "family": int(end.family),
        "ca_name": congestion.rstrip(b"\0"),
        "pid": os.getpid(),
        "comm": Path("/proc/self/comm").read_bytes().strip(),
        # A connection that never lost anything.
        **dict.fromkeys(("undo_marker", "prior_cwnd", "lost", "pending", "ecn_flags"), 0),
        **dict.fromkeys(("seg_seq", "seg_ack", "seg_len", "seg_flags"), 0),
    }


def test_every_column_says_what_the_application_is_told(tmp_path: Path, lab: Lab) -> None:
    options = (*EVERY, *within(lab))
    with capturing(tmp_path / "a.pm", *options) as run, connected(lab, "fd77::2") as pair:
        pair.client.setsockopt(socket.SOL_SOCKET, SO_MARK, MARK)
        for _ in range(20):
            pair.exchange(5000)
        at_rest(lab, pair)
        told = {end: told_of(end) for end in (pair.client, pair.server)}
        outcome = run.stop()
        limits = lab.a.command(["cat", "/proc/sys/net/ipv4/tcp_wmem"]).split()
    memory = Path("/proc/sys/net/ipv4/tcp_mem").read_text().split()
    outcome.check_complete()
    records = outcome.records
    ends = {}
    for end, values in told.items():
        of_end = records.where(conn_id=records.where(lport=values["lport"]).last("conn_id"))
        last = ends[end] = {name: of_end.last(name) for name in records.columns}
        different = {
            name: (last[name], value) for name, value in values.items() if last[name] != value
        }
        assert not different
        # What no application is told follows from what the other columns say.
        by_kprobe = "kprobe" in outcome.capture.settings["locations"]["RECEIVE_CALL"]
        assert last["callvalue"] == (1 if by_kprobe else 2**32 - errno.EAGAIN)  # 1: asked for
        assert last["snd_max"] == last["snd_nxt"] == last["snd_una"] == last["write_seq"]
        assert last["snd_fack"] == last["snd_una"]
        assert last["copied_seq"] == last["rcv_nxt"]
        assert last["sb_target_hiwat"] == int(limits[2])
        assert last["max_window"] >= last["snd_wnd"] > 0
        assert last["conn_id"] > 0
        assert last["sk_addr"] >> 63
        assert last["m_clused"] < int(memory[2])
        assert 0 < last["hiwat_fair_share"] < 2**32
        assert last["prior_ssthresh"] in (0, last["snd_ssthresh"])
        # A buffer starts with what the network asks for when the window is the first one.
        first = of_end.at("SEND_CALL")
        segments = max(INITIAL_SEGMENTS, first["snd_cwnd_segs"][0])
        assert first["sb_hiwat"][0] * segments == first["sb_net_target"][0] * INITIAL_SEGMENTS
    client, server = ends[pair.client], ends[pair.server]
    for here, there in ((client, server), (server, client)):
        assert here["snd_nxt"] == there["rcv_nxt"]
        assert here["rcv_wnd"] == there["snd_wnd"]
        assert (here["laddr"], here["lport"]) == (there["raddr"], there["rport"])
    assert client["sk_mark"] == MARK
    assert client["conn_id"] != server["conn_id"]
    unlike = set(records.columns) - set(told[pair.client])
    assert unlike | set(outcome.capture.settings["absent_columns"]) == {
        *("seq_no", "seq", "time", "time_ns", "serial", "cpu", "location", "callvalue"),
        *("snd_max", "snd_fack", "sb_target_hiwat", "sb_net_target", "hiwat_fair_share"),
        *("m_clused", "conn_id", "sk_addr", "snd_una", "snd_nxt", "rcv_nxt", "write_seq"),
        *("copied_seq", "rcv_wnd", "app_limited", "snd_up", "prior_ssthresh", "high_seq"),
        *("tlp_high_seq", "prr_delivered", "prr_out", "max_window"),
        "cgroup",  # test_filters_live.py
        "uid",  # test_whose.py
        *("mptcp_token", "mptcp_sent", "mptcp_received", "mptcp_retrans"),  # test_mptcp_live.py
        "protocols",  # test_mptcp_live.py
        # test_sender_columns_live.py:
        *("max_packets_out", "rate_delivered", "rate_interval_us", "sk_backlog_bytes"),
        *("sk_tsq_flags", "is_cwnd_limited", "rate_app_limited", "sk_pacing_status", "sk_err"),
        *("chrono_type", "sk_nospace", "first_tx_us", "next_tx_us"),
        *("received_ce", "total_rto_time", "plb_rehash"),
        *("snd_cwnd_clamp", "tcp_tx_delay", "undo_retrans"),
        *("total_rto", "total_rto_recoveries", "timeout_rehash"),
        *("gso_segs", "compressed_ack", "scaling_ratio"),
        *("accecn_fail_mode", "saw_accecn_opt", "is_sack_reneg"),
        *("tcp_usec_ts", "syn_data", "syn_data_acked"),
        *("fastopen_client_fail", "delivered_ce_bytes", "received_ce_bytes"),
        *("sk_txhash", "sk_napi_id", "ack_pending"),
        "sk_rx_queue_mapping",
        *BBR,
    }
