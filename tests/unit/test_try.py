# SPDX-License-Identifier: Apache-2.0
"""tcpkmon try without a lab: the settings it takes, and how a copy is corrected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tcpkmon.formats.analysis.trying import (
    Decision,
    Fitted,
    Halves,
    halve,
    judge,
    look_alike,
    parse_variant,
    values_of,
    what_to_write,
    with_last_data,
)
from tcpkmon.formats.analysis.trying.seen import Burst, _bursts
from tcpkmon.formats.analysis.why import Connection, tally
from tcpkmon.formats.base.errors import UsageError
from tests.unit.test_why import snapshots


def test_settings_are_read() -> None:
    found = parse_variant("net.ipv4.tcp_rmem=4096 131072 6291456,initcwnd=30")
    assert str(found) == "tcp_rmem=6291456,initcwnd=30" and found.main_metric == "duration_us"
    assert parse_variant("tcp_notsent_lowat=16384").main_metric == "latency_whole_us"
    lines = what_to_write(found, {})
    assert "the receiver's host: sysctl -w net.ipv4.tcp_rmem='4096 131072 6291456'" in lines[0]
    assert lines[1].endswith("initcwnd 30")
    (line,) = what_to_write(parse_variant("qdisc=tbf  rate 20mbit burst 16kb"), {})
    assert line.endswith("root tbf rate 20mbit burst 16kb")


@pytest.mark.parametrize(
    "text", ["tcp_rmen=1", "tcp_rmem=", "tcp_rmem=-1", "initcwnd=0", "initcwnd=2,initcwnd=3",
             "tcp_congestion_control=a b;c", "tcp_slow_start_after_idle=2", "qdisc=",
             "qdisc=fq; reboot", "so_sndbuf=65536"]
)  # fmt: skip
def test_bad_settings_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_variant(text)


@pytest.mark.parametrize("text", ["tcp_rmem=65536", "qdisc=fq", "rto_min_us=0", "so_rcvbuf=x"])
def test_bad_live_settings_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_variant(text, live=True)


def test_a_copy_is_corrected_towards_the_capture() -> None:
    wanted = Fitted(20, True, 30, 0, 0, 60_000, True, 40_000)
    got = Fitted(25, True, 31, 0, 0, 200_000, True, 80_000)
    found = wanted.corrected(wanted, got)
    assert (found.rate_mbit, found.rtt_ms, found.window_bytes) == (16, 29, 20_000)
    assert found.queue_bytes == 30_000  # at most by half


def test_likeness_sees_what_is_off() -> None:
    capture = {"duration_us": 1e6, "srtt_p50_us": 40_000.0, "retrans_ratio": 0.0, "share_rwnd": 1.0}
    near = {**capture, "duration_us": 1.05e6}
    assert all(one.is_alike for one in look_alike(capture, [near] * 3))
    far = {**capture, "duration_us": 2e6, "share_rwnd": 0.2, "share_cwnd": 0.8}
    bad = {one.name for one in look_alike(capture, [far] * 3) if not one.is_alike}
    assert bad == {"duration_us", "limits"}


@pytest.mark.parametrize(("seconds", "is_alike"), [((1.4, 2, 3), True), ((1.9, 2, 2.1), False)])
def test_a_copy_that_scatters_is_alike_within_that(seconds: list[float], is_alike: bool) -> None:
    """Losses by chance: each play differs, and the capture is one of them."""
    capture = {"duration_us": 3.5e6}
    duration, _ = look_alike(capture, [{"duration_us": 1e6 * one} for one in seconds])
    assert duration.is_alike == is_alike


@pytest.mark.parametrize(("pause_ms", "count"), [(0, 1), (200, 2)])
def test_what_was_written_is_told_by_the_change_of_state_that_closes(
    pause_ms: int, count: int
) -> None:
    """Opened at 40 ms, first written to 60 ms later; the last record of a segment is before the
    last write, and the FIN has a sequence number."""
    una = [1, 1, 1, 41_001, 81_001, 81_001, 121_001, 150_002]
    ends = [1, 1, 81_001, 81_001, 81_001, 141_001, 150_001, 150_002]
    times = [0, 40, 100, 110, 115, 120 + pause_ms, 170 + pause_ms, 210 + pause_ms]
    queued = [end - acked for end, acked in zip(ends, una, strict=True)]
    whole = snapshots(
        times, location=[4, 4, 1, 1, 1, 1, 4, 4], state=[7, 2, 1, 1, 1, 1, 1, 4], snd_una=una,
        snd_max=ends, snd_sb_cc=queued, packets_out=[-(-one // 1000) for one in queued],
        srtt_us=[0, 10_000, *[10_000] * 6], min_rtt_us=10_000,
    )  # fmt: skip
    found = _bursts(whole, tally(iter([whole]))[0])
    assert sum(burst.nbytes for burst in found) == 150_000
    assert len(found) == count and found[0].pause_s == 0
    if count == 2:
        assert found[0] == Burst(0, 81_000)
        assert found[1].pause_s == pytest.approx(0.21, abs=0.01)  # by the records' distance


def decided(one: Connection, has_it: bool, **other: Any) -> Decision:
    made = Decision(one.laddr, one.lport, one.raddr, one.rport, one.start_ns + 1000, has_it)
    return replace(made, **other)


def test_the_halves_of_a_live_trial_are_told_by_ends_and_time() -> None:
    """Two that followed each other with the same ports, one in another namespace at the same time,
    one that received, and one that is open."""
    ends = {"laddr": "::ffff:10.0.0.1", "lport": 443, "raddr": "10.0.0.2", "bytes_acked": 1000}
    first = Connection(1, rport=1, start_ns=10**9, end_ns=2 * 10**9, end_reason="closed", **ends)
    second = replace(first, conn_id=2, start_ns=3 * 10**9, end_ns=4 * 10**9)
    twins = [replace(first, conn_id=number, rport=3) for number in (3, 4)]
    reads = replace(first, conn_id=5, rport=5, bytes_received=2000)
    still = replace(first, conn_id=6, rport=6, end_reason="open", limit_ns={"cwnd": 5})
    every = [first, second, *twins, reads, still]
    told = [decided(first, True, laddr="10.0.0.1"), decided(second, False), decided(twins[0], True),
            decided(reads, True), decided(still, False), decided(first, True, rport=9)]  # fmt: skip
    found = halve(every, told, of_receiver=False)
    assert ([one.conn_id for one in found.old], [one.conn_id for one in found.new]) == ([2, 6], [1])
    assert (found.unknown, found.other_way, found.open) == (2, 1, 1)
    assert halve(every, told, of_receiver=True).new == [reads]
    assert halve(every, [*told, decided(first, False)], False).new == []  # decided on twice
    outcome = judge(found, parse_variant("initcwnd=2", live=True))
    assert outcome.main.a is not None and outcome.main.a.n == 1 and outcome.counts == (2, 1)
    assert outcome.judgement.endswith("are too few to tell: --for")


def test_the_last_data_counts_and_the_wait_for_the_peers_end_does_not() -> None:
    """It closes at 3 ms, its FIN is acknowledged at 43, and the peer's comes at 90."""
    one = Connection(1, bytes_acked=1000, end_reason="closed", end_ns=90_000_000,
                     limit_ns={"cwnd": 3_000_000, "closing": 87_000_000})  # fmt: skip
    whole = with_last_data(one, 43_000_000)
    assert values_of(whole)["duration_us"] == 43_000
    assert values_of(with_last_data(one, None))["duration_us"] == 3_000
    assert with_last_data(one, 2_000_000).limit_ns["closing"] == 87_000_000


def test_a_live_trial_is_judged_by_durations() -> None:
    sides: list[list[Connection]] = [
        [Connection(number, bytes_acked=1000, bytes_sent=1000, end_reason="closed",
                    end_ns=10**9, limit_ns={"cwnd": (ms + number % 7) * 10**6})
         for number in range(40)] for ms in (100, 50)
    ]  # fmt: skip
    variant = parse_variant("initcwnd=30,rto_min_us=5000", live=True)
    better = judge(Halves(sides[0], sides[1], 0, 0), variant)
    assert better.is_proven and "proven here: duration -4" in better.judgement
    assert better.lines({})[-1].endswith("rto_min 5000us")
    worse = judge(Halves(sides[1], sides[0], 0, 0), variant)
    assert not worse.is_proven and worse.judgement.startswith("it is worse")
    same = judge(Halves(sides[0], sides[0], 0, 0), variant)
    assert same.judgement.startswith("it changes nothing that 40 connections without it and 40")
    assert "to write:" not in "".join(same.lines({}))


def test_a_receivers_setting_is_judged_by_receivers() -> None:
    assert parse_variant("so_rcvbuf=65536,delack_max_us=9000", live=True).of_receiver
    assert not parse_variant("so_rcvbuf=65536,so_sndbuf=9000", live=True).of_receiver
    reads = Connection(1, bytes_received=10**6, end_ns=2 * 10**9, end_reason="closed")
    found = judge(Halves([reads] * 2, [reads] * 3, 0, 0), parse_variant("so_rcvbuf=9", live=True))
    goodput = found.compared["goodput_mean"].a
    assert goodput is not None and goodput.median == 500_000 and goodput.n == 2
