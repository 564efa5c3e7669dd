# SPDX-License-Identifier: Apache-2.0
"""tcpkmon try --live without a kernel: the settings it takes, and how the halves are judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tcpkmon.formats.analysis.trial import (
    Decision,
    Halves,
    halve,
    judge,
    parse_variant,
    values_of,
    with_last_data,
)
from tcpkmon.formats.analysis.why import Connection
from tcpkmon.formats.base.errors import UsageError


def test_settings_are_read() -> None:
    found = parse_variant("net.ipv4.tcp_notsent_lowat=16384, initcwnd=30")
    assert str(found) == "tcp_notsent_lowat=16384,initcwnd=30"
    first, second = found.where_to_write
    assert first == "on this host: sysctl -w net.ipv4.tcp_notsent_lowat=16384"
    assert second.endswith("initcwnd 30")


@pytest.mark.parametrize(
    "text", ["tcp_rmem=65536", "initcwn=1", "initcwnd=", "initcwnd=-1", "initcwnd=0",
             "initcwnd=2,initcwnd=3", "tcp_congestion_control=a b;c", "rto_min_us=0",
             "so_rcvbuf=x"]
)  # fmt: skip
def test_bad_settings_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_variant(text)


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
    outcome = judge(found, parse_variant("initcwnd=2"))
    assert outcome.main.a is not None and outcome.main.a.n == 1 and outcome.counts == (2, 1)
    assert outcome.judgement.endswith("are too few to tell: --for")


def test_the_last_data_counts_and_the_wait_for_the_peers_end_does_not() -> None:
    """It closes at 3 ms, its FIN is acknowledged at 43, and the peer's comes at 90."""
    one = Connection(1, bytes_acked=1000, end_reason="closed", end_ns=90_000_000,
                     limit_ns={"cwnd": 3_000_000, "closing": 87_000_000})  # fmt: skip
    whole = with_last_data(one, 43_000_000)
    assert values_of(whole, False)["duration_us"] == 43_000
    assert values_of(with_last_data(one, None), False)["duration_us"] == 3_000
    assert with_last_data(one, 2_000_000).limit_ns["closing"] == 87_000_000


def test_a_live_trial_is_judged_by_durations() -> None:
    sides: list[list[Connection]] = [
        [Connection(number, bytes_acked=1000, bytes_sent=1000, end_reason="closed",
                    end_ns=10**9, limit_ns={"cwnd": (ms + number % 7) * 10**6})
         for number in range(40)] for ms in (100, 50)
    ]  # fmt: skip
    variant = parse_variant("initcwnd=30,rto_min_us=5000")
    better = judge(Halves(sides[0], sides[1], 0, 0), variant)
    assert better.is_proven and "proven here: duration -4" in better.judgement
    assert better.lines()[-1].endswith("rto_min 5000us")
    worse = judge(Halves(sides[1], sides[0], 0, 0), variant)
    assert not worse.is_proven and worse.judgement.startswith("it is worse")
    same = judge(Halves(sides[0], sides[0], 0, 0), variant)
    assert same.judgement.startswith("it changes nothing that 40 connections without it and 40")
    assert "to write:" not in "".join(same.lines())


def test_a_receivers_setting_is_judged_by_receivers() -> None:
    assert parse_variant("so_rcvbuf=65536,delack_max_us=9000").of_receiver
    assert not parse_variant("so_rcvbuf=65536,so_sndbuf=9000").of_receiver
    reads = Connection(1, bytes_received=10**6, end_ns=2 * 10**9, end_reason="closed")
    found = judge(Halves([reads] * 2, [reads] * 3, 0, 0), parse_variant("so_rcvbuf=9"))
    goodput = found.compared["goodput_mean"].a
    assert goodput is not None and goodput.median == 500_000 and goodput.n == 2
