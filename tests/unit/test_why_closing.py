# SPDX-License-Identifier: Apache-2.0
"""A buffer that was full, and a connection of which one end closed: from one snapshot to others."""

from __future__ import annotations

from typing import Any

import pytest

from tcpkmon.formats.analysis.why import LIMITS, cut
from tests.unit.test_why import FLYING, MS, SENDING, block_of, sentence, snapshots


def test_a_buffer_is_full_from_when_it_was_until_a_third_is_free() -> None:
    used = [70, 100, 90, 70, 66, 90, 100, 80]
    piece = snapshots(list(range(len(used))), snd_sb_cc=300, snd_una=1000, sb_hiwat=100_000,
                      sk_wmem_bytes=[1000 * one for one in used])  # fmt: skip
    told = ["nagle"] * 7  # less than a segment, for a while
    for full in (0, 1, 2, 5, 6):
        told[full] = "sndbuf"
    assert [LIMITS[one] for one in cut(block_of(piece))[1].limit[1:]] == told


CLOSES = {"location": 4, "callvalue": 4}
LEFT = {**FLYING, "state": 1, **CLOSES}
"""Of a sender that closes, with 100 segments in flight and as many unsent."""


@pytest.mark.parametrize("values, limit", [
    ({}, "cwnd"), ({"snd_ssthresh": 101}, "slow_start"),
    ({"snd_wnd": 100_500}, "rwnd"),
    ({"packets_out": 80, "snd_max": 81_000, "sk_tsq_flags": 1}, "tsq"),
    ({"callvalue": 8}, "cwnd"),                      # the peer closed
    ({"snd_sb_cc": 100_000}, "closing"),             # all was sent
])  # fmt: skip
def test_what_held_at_the_close_holds_on_until_a_round_trip_before_the_end(
    values: dict[str, Any], limit: str
) -> None:
    """1 ms: it closes. 101 ms: all is acknowledged, at a round trip of 10 ms."""
    first = {**SENDING, **LEFT, **values}
    last = {**SENDING, "snd_ssthresh": first["snd_ssthresh"], "state": first["callvalue"],
            "location": 4, "callvalue": 5, "snd_una": 201_001, "snd_max": 201_001, "snd_sb_cc": 0,
            "srtt_us": 10_000, "sk_tsq_flags": 0, "seg_seq": 0}  # fmt: skip
    many = {name: [first.get(name, 0), first.get(name, 0), value] for name, value in last.items()}
    del many["seg_seq"]
    rows = cut(block_of(snapshots([0, 1, 101], **many)))[0]
    told = [(LIMITS[one["limit"]], (one["end_ns"] - one["start_ns"]) // MS) for one in rows]
    if limit == "closing":
        assert told == [("app", 1), ("closing", 100)]
        assert rows["certain_ns"].sum() == 101 * MS
        return
    assert told == [(limit, 91), ("idle" if first["callvalue"] == 8 else "closing", 10)]
    assert rows["bytes_acked"].sum() == 200_001
    assert rows["certain_ns"].sum() == 1 * MS and not rows["lost_records"].any()


@pytest.mark.parametrize("rate, limit", [(1_333_000, "pacing"), (9_000_000, "cwnd")])
def test_pacing_that_gave_more_than_was_sent_did_not_hold_on(rate: int, limit: str) -> None:
    """120 kB leave in the 90 ms after the close; the socket was paced when it closed."""
    first = {**SENDING, **LEFT, "packets_out": 80, "snd_max": 81_000, "sk_pacing_status": 1,
             "pacing_rate": rate}  # fmt: skip
    last = {**first, "callvalue": 5, "state": 4, "snd_una": 201_001, "snd_max": 201_001,
            "snd_sb_cc": 0, "srtt_us": 10_000, "packets_out": 0}  # fmt: skip
    many = {name: [first[name], first[name], value] for name, value in last.items()
            if name in first and name != "seg_seq"}  # fmt: skip
    times = [0, 1, 101]
    many |= {"first_tx_us": [0, 0, 91_000], "next_tx_us": [1000, 2000, 91_000],
             "busy_us": [0, 0, 0]}  # fmt: skip
    rows = cut(block_of(snapshots(times, **many)))[0]
    told = [(LIMITS[one["limit"]], (one["end_ns"] - one["start_ns"]) // MS) for one in rows]
    assert told[-1] == ("closing", 10) and told[-2][0] == limit and told[-2][1] >= 90


def test_slow_start_that_was_over_at_the_end_is_a_part_of_cwnd() -> None:
    values = {**SENDING, **LEFT}
    many = {name: [value] * 3 for name, value in values.items()}
    many |= {"state": [1, 1, 4], "callvalue": [4, 4, 5], "snd_una": [1000, 1000, 201_001],
             "snd_max": [101_000, 101_000, 201_001], "snd_sb_cc": [200_000, 200_000, 0],
             "snd_ssthresh": [101, 101, 60]}  # fmt: skip
    rows = cut(block_of(snapshots([0, 1, 101], **many)))[0]
    assert [LIMITS[one] for one in rows["limit"]] == ["slow_start", "cwnd", "closing"]


def test_the_verdict_says_why_it_is_not_certain() -> None:
    _, texts = sentence(certain_ns=400 * MS, limit_ns={"cwnd": 8_000 * MS})
    assert "segments were not recorded after one end closed" in texts[-1]
