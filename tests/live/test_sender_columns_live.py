# SPDX-License-Identifier: Apache-2.0
"""What a sender knows of itself and of BBR, in the columns: against ss, and where it was made."""

from __future__ import annotations

import re
import socket
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.collector.lab.lab import Bottleneck, Lab
from tcpkmon.collector.lab.link import Link, Way
from tests.live.capturing import Records, capturing, join, listening, within
from tests.live.test_oracle_ss import BBR, EVERY, at_rest, us


def rate(text: str, pattern: str) -> float:
    """A rate of ss, in bit/s; ss may print it in units."""
    found = re.search(pattern + r"([\d.]+)([KMG]?)bps", text)
    assert found, text
    return float(found[1]) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}[found[2]]


@pytest.mark.parametrize("congestion", ["bbr", "reno"])
def test_the_columns_say_what_ss_says(tmp_path: Path, congestion: str) -> None:
    options = [(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())]
    narrow = Bottleneck(rate_mbit=100, queue_bytes=100_000)
    with Lab(narrow) as lab, capturing(tmp_path / "a.pm", *EVERY, *within(lab)) as run:
        with listening(lab.b, "10.77.0.2") as listener:
            pair = join(lab.a, listener, "10.77.0.2", options)
        for _ in range(10):
            pair.exchange(100_000)
        text, _ = at_rest(lab, pair)
        records = run.stop().records.where(lport=pair.client_port)
        pair.close()
    value = records.last
    sent = value("rate_delivered") * value("mss") * 8e6 / value("rate_interval_us")
    assert sent == pytest.approx(rate(text, r"delivery_rate "), rel=0.01)
    assert value("rate_app_limited") == (" app_limited" in text)
    assert value("chrono_type") == 0  # all is acknowledged
    assert value("sk_err") == 0
    assert value("sk_pacing_status") == (1 if congestion == "bbr" else 0)
    if congestion != "bbr":
        assert not any(records[name].any() for name in BBR)
        return
    told = re.search(r"bbr:\((.*?)\)", text)
    assert told
    assert value("bbr_bw") * 8 == pytest.approx(rate(told[1], "bw:"), rel=0.01)
    assert value("bbr_min_rtt_us") == pytest.approx(us(f" {told[1]}", r"\S*mrtt:([\d.]+)"), abs=1)
    for name in ("pacing_gain", "cwnd_gain"):
        gain = re.search(rf"{name}:([\d.]+)", told[1])
        assert gain and value(f"bbr_{name}") / 256 == pytest.approx(float(gain[1]), abs=0.01)
    assert set(np.unique(records["bbr_mode"])) <= {1, 2, 3, 4}


def test_timeouts_and_options_of_a_socket(tmp_path: Path) -> None:
    """Against TCP_INFO, and options that were set."""
    with Lab() as lab, capturing(tmp_path / "a.pm", *EVERY, *within(lab)) as run:
        with listening(lab.b, "10.77.0.2") as listener:
            pair = join(lab.a, listener, "10.77.0.2")
        lab.drop_all(f"tcp sport {pair.client_port}")
        pair.client.sendall(bytes(100))
        time.sleep(1)
        lab.drop_all("")
        pair.server.recv(100)
        pair.exchange()
        at_rest(lab, pair)
        info = pair.client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 248)
        outcome = run.stop()
        records, port = outcome.records, pair.client_port
        pair.close()
    absent = outcome.capture.settings["absent_columns"]
    value = records.where(lport=port).last
    if "total_rto" not in absent:
        told = struct.unpack_from("=IHHI", info, 236)
        names = ("total_rto", "total_rto_recoveries", "total_rto_time")
        assert tuple(value(name) for name in names) == told[1:]
        assert value("timeout_rehash") == told[0] > 0
    assert 0 < value("scaling_ratio") < 256 and value("gso_segs") > 1
    assert value("is_sack_reneg") == value("syn_data") == value("tcp_tx_delay") == 0
    assert value("snd_cwnd_clamp") == 2**32 - 1


def ago(records: Records, clock: str) -> np.ndarray:
    """(n,) how long before each record a clock in us of 32 bits stood there [us]."""
    behind = (records["time_ns"] // 1000 - records[clock].astype(np.uint64)) % 2**32
    return np.asarray(behind.astype(np.uint32).view(np.int32))


def test_clocks_say_when_data_was_sent(tmp_path: Path) -> None:
    """Of each ACK: the segment left when the application wrote it, by the application's clock."""
    sent = []
    link = Link(Way(delay_ms=20), Way(delay_ms=20))
    with Lab(link=link) as lab, capturing(tmp_path / "a.pm", *EVERY, *within(lab)) as run:
        with listening(lab.b, "10.77.0.2") as listener:
            pair = join(lab.a, listener, "10.77.0.2")
        for _ in range(8):
            sent.append(time.monotonic_ns() // 1000)
            pair.client.sendall(bytes(1000))
            pair.server.recv(1000, socket.MSG_WAITALL)
            time.sleep(0.1)
        records = run.stop().records.where(lport=pair.client_port).at("SEGMENT_RECEIVED")
        pair.close()
    assert len(records) == len(sent)
    assert records["rate_app_limited"].all()
    for clock in ("first_tx_us", "next_tx_us"):
        left = records["time_ns"] // 1000 - ago(records, clock)
        assert np.median(np.abs(left - np.array(sent))) < 3000, clock
        assert (ago(records, clock) > 39_000).all(), "a round trip ago"
    # In jiffies: a round trip each.
    grown = np.diff(records["busy_us"].astype(np.int64))
    assert ((grown >= 30_000) & (grown < 80_000)).mean() > 0.5
