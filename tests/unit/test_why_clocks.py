# SPDX-License-Identifier: Apache-2.0
"""What TCP's own clocks tell of the time between two snapshots: writing, sending, pacing."""

from __future__ import annotations

from typing import Any

import pytest

from tcpkmon.formats.analysis.why import LIMITS, cut
from tests.unit.test_why import MS, SENDING, block_of, snapshots

FREE = {"snd_una": 1000, "snd_sb_cc": 0, "snd_max": 1000}
"""All that was written is acknowledged."""
PACED = {"sk_pacing_status": 1, "pacing_rate": 1_000_000}


def told(times_ms: list[int], *rows: dict[str, Any]) -> list[tuple[str, float]]:
    """The limits and their lengths [ms]. Clocks of a row: ms before it; below 0: after it."""
    names = dict.fromkeys(name for row in rows for name in row)
    many = {name: [row.get(name, SENDING.get(name, 0)) for row in rows] for name in names}
    for name in ("first_tx_us", "next_tx_us"):
        ages = [row.get(name, 0) for row in rows]
        many[name] = [(1000 * (t - age)) % 2**32
                      for t, age in zip(times_ms, ages, strict=True)]  # fmt: skip
    many.setdefault("busy_us", [0] * len(rows))
    many.setdefault("sk_pacing_status", [0] * len(rows))
    found = cut(block_of(snapshots(times_ms, **many)))[0]
    return [(LIMITS[one["limit"]], (one["end_ns"] - one["start_ns"]) / MS) for one in found]


@pytest.mark.parametrize("busy_ms, held", [(60, True), (24, False)])
def test_a_piece_that_a_cork_keeps_is_not_the_application(busy_ms: int, held: bool) -> None:
    """It was written 60 ms before its ACK, or 24 by jiffies, and sent 20 ms before that."""
    row = {**FREE, "snd_sb_cc": 900, "snd_max": 1900, "packets_out": 1, "first_tx_us": 20,
           "next_tx_us": 20, "busy_us": 1000 * busy_ms}  # fmt: skip
    wanted = [("idle", 40.0), ("nagle", 40.0)] if held else [("idle", 80.0)]
    assert told([0, 100], FREE, row) == [*wanted, ("app", 20.0)]


@pytest.mark.parametrize("paid_ms, held", [(0, True), (0.1, True), (-30, False)])
def test_pacing_does_not_hold_what_a_cork_keeps(paid_ms: float, held: bool) -> None:
    """As haproxy's header with MSG_MORE under bbr: 114 bytes wait for 40 ms, then leave with more.
    Where what was sent before is paid for later only, it may be pacing."""
    first = {**FREE, **PACED, "location": 9, "snd_sb_cc": 114, "next_tx_us": paid_ms}
    row = {**FREE, **PACED, "snd_sb_cc": 2114, "snd_max": 3114, "packets_out": 3,
           "first_tx_us": 1, "next_tx_us": 1}  # fmt: skip
    wanted = [("nagle", 39.0), ("app", 1.0)] if held else [("app", 40.0)]
    assert told([0, 40], first, row) == wanted
    row["busy_us"] = 36_000  # and where no record shows what was written
    wanted = [("idle", 4.0), ("nagle", 35.0)] if held else [("idle", 39.0)]
    assert told([0, 40], {**first, "snd_sb_cc": 0}, row) == [*wanted, ("app", 1.0)]


def test_a_pause_ends_when_the_first_segment_leaves() -> None:
    """The window is full at the end of the step; it was empty for most of it."""
    row = {**FREE, "snd_max": 101_000, "snd_sb_cc": 200_000, "packets_out": 100, "first_tx_us": 30,
           "busy_us": 32_000}  # fmt: skip
    assert told([0, 100], FREE, row) == [("idle", 70.0), ("cwnd", 30.0)]


def test_a_small_piece_that_was_left_waits_until_it_leaves() -> None:
    """900 bytes were there when all before them was acknowledged."""
    first = {**FREE, "snd_sb_cc": 1900, "snd_max": 2000, "packets_out": 1}
    last = {**FREE, "snd_una": 2000, "snd_sb_cc": 900, "snd_max": 2900, "packets_out": 1,
            "first_tx_us": 20, "next_tx_us": 20}  # fmt: skip
    assert told([0, 100], first, last) == [("nagle", 80.0), ("app", 20.0)]


@pytest.mark.parametrize("ahead_ms, limit", [(4, "pacing"), (-1, "cwnd")])
def test_pacing_goes_before_a_window_that_has_room(ahead_ms: int, limit: str) -> None:
    """16 of 20 segments are in flight: TCP would wait until a third of the window is free."""
    row = {**PACED, "snd_una": 1000, "snd_max": 17_000, "snd_sb_cc": 90_000, "packets_out": 16,
           "snd_cwnd_segs": 20, "snd_ssthresh": 10, "next_tx_us": -ahead_ms}  # fmt: skip
    after = {**row, "snd_una": 5000, "snd_max": 21_000}
    assert told([0, 4], row, after) == [(limit, 4.0)]


def test_what_was_paced_before_its_first_ack() -> None:
    """20 kB at 1 MB/s take 20 ms; the first ACK came 50 ms after the first segment left."""
    row = {**FREE, **PACED, "snd_sb_cc": 20_000, "snd_max": 21_000, "packets_out": 20,
           "first_tx_us": 50, "next_tx_us": 30}  # fmt: skip
    assert told([0, 100], {**FREE, **PACED}, row) == [
        ("idle", 50.0), ("pacing", 18.0), ("app", 32.0)
    ]  # fmt: skip


def test_a_tail_that_a_timer_finds_lost_was_lost_when_it_was_sent() -> None:
    """Three segments left at 10 ms, 12 ms and 14 ms. The ACK of the second comes at 40 ms, the
    timer fires at 120 ms."""
    sent = {**FREE, "snd_sb_cc": 3000, "snd_max": 4000, "packets_out": 3, "first_tx_us": 30}
    half = {**sent, "snd_una": 3000, "snd_sb_cc": 1000, "packets_out": 1, "first_tx_us": 30}
    fires = {**half, "location": 15, "first_tx_us": 108}
    assert told([0, 40, 42, 120], FREE, sent, half, fires) == [
        ("idle", 10.0), ("app", 2.0), ("rto_wait", 108.0)
    ]  # fmt: skip


CLOSES = {"state": 1, "location": 4, "callvalue": 4, "snd_max": 101_000, "snd_sb_cc": 200_000,
          "packets_out": 100}  # fmt: skip
DONE = {"state": 4, "location": 4, "callvalue": 5, "snd_una": 201_001, "snd_max": 201_001,
        "snd_sb_cc": 0}  # fmt: skip


@pytest.mark.parametrize("values, wanted", [
    ({}, "cwnd"),
    ({"snd_wnd": 90_000}, "rwnd"),             # the window of 100 segments was no limit then
    ({**PACED, "pacing_rate": 2_500_000}, "pacing"),  # 100 kB in 40 ms
    ({**PACED, "pacing_rate": 9_000_000}, "cwnd"),
])  # fmt: skip
def test_closing_begins_when_the_last_segment_leaves(values: dict[str, Any], wanted: str) -> None:
    rows = [dict(CLOSES), dict(CLOSES), {**DONE, "next_tx_us": 60, **values}]
    first = [("cwnd", 41.0)] if wanted == "cwnd" else [("cwnd", 1.0), (wanted, 40.0)]
    assert told([0, 1, 101], *rows) == [*first, ("closing", 60.0)]


PROBE = {**CLOSES, "state": 4, "location": 15, "callvalue": 0, "first_tx_us": 20}


def test_a_probe_that_finds_nothing_lost_changes_nothing_after_a_close() -> None:
    """It fires at 51 ms. What was sent later is acknowledged, and TCP reduced no window."""
    fires = {**PROBE, "snd_una": 51_000, "snd_max": 151_000, "snd_sb_cc": 150_001}
    rows = [CLOSES, CLOSES, fires, {**fires, "location": 2}, {**DONE, "next_tx_us": 10}]
    assert told([0, 1, 51, 51, 101], *rows) == [("cwnd", 91.0), ("closing", 10.0)]


def test_a_tail_that_is_lost_after_a_close() -> None:
    """The timer fires at 51 ms; what is in flight then was sent 20 ms before. The probe's ACK ends
    the connection."""
    fires = {**PROBE, "snd_una": 200_000, "snd_max": 201_001, "snd_sb_cc": 1001, "packets_out": 1}
    rows = [CLOSES, CLOSES, fires, {**fires, "location": 2}, {**DONE, "next_tx_us": 10}]
    assert told([0, 1, 51, 51, 101], *rows) == [
        ("cwnd", 31.0), ("rto_wait", 20.0), ("recovery", 50.0)
    ]  # fmt: skip


@pytest.mark.parametrize("reduces, limit", [(True, "rto_wait"), (False, "cwnd")])
def test_a_probe_is_a_loss_where_tcp_reduces_its_window(reduces: bool, limit: str) -> None:
    row = {"snd_una": 1000, "snd_max": 101_000, "snd_sb_cc": 200_000, "packets_out": 100}
    after = {**row, "snd_una": 101_001, "snd_max": 201_000}
    rows = [row, {**row, "location": 15, "first_tx_us": 30}, {**row, "location": 2},
            {**after, "location": 5, "callvalue": 2 if reduces else 1}, after]  # fmt: skip
    found = told([0, 50, 50, 70, 80], *rows)
    assert found[0] == (limit, 50.0 if reduces else 80.0)


def test_what_acks_tell_lost_was_lost_when_it_was_sent() -> None:
    """Six segments left at 10 ms, the first one is lost. The other ACKs come from 40 ms on."""
    sent = {**FREE, "snd_sb_cc": 6000, "snd_max": 7000, "packets_out": 6, "first_tx_us": 30}
    tells = {**sent, "location": 5, "callvalue": 3, "sacked_out": 3, "first_tx_us": 32}
    assert told([0, 40, 42], FREE, sent, tells) == [("idle", 10.0), ("recovery", 32.0)]


HEADER = {**FREE, "packets_out": 3, "snd_max": 4096, "snd_sb_cc": 3396, "first_tx_us": 30,
          "next_tx_us": 30}  # fmt: skip
"""The first ACK after a header of 200 bytes and a body of 3196: its last 300 bytes are unsent."""


@pytest.mark.parametrize("more, limit", [(0, "nagle"), (1, "app")])
def test_a_rest_that_waits_behind_three_segments_is_nagles(more: int, limit: str) -> None:
    """Its writer waits for the answer, so the rest was there. A writer that goes on may have
    written it just then."""
    later = {**FREE, "snd_una": 2648, "snd_max": 4396, "snd_sb_cc": 1748 + more, "packets_out": 2,
             "first_tx_us": 60, "next_tx_us": 29}  # fmt: skip
    done = {**FREE, "snd_una": 4396, "snd_max": 4396, "snd_sb_cc": more}
    steps = told([0, 31, 61, 61], FREE, HEADER, later, done)
    assert steps[:2] == [("idle", 1.0), (limit, 30.0)]


def test_a_rest_that_waits_for_less_than_a_millisecond_is_the_writers() -> None:
    """A fast network: the ACK of each write is there before the next one."""
    row = {**HEADER, "first_tx_us": 0.5, "next_tx_us": 0.5}
    done = {**FREE, "snd_una": 4396, "snd_max": 4396, "snd_sb_cc": 0}
    assert ("nagle", 0.5) not in told([0, 31, 32], FREE, row, done)


def test_a_rest_is_held_back_since_the_last_segment_left() -> None:
    """The body was written 20 ms after the header: Nagle's algorithm holds back from then on."""
    row = {**HEADER, "next_tx_us": 10}
    done = {**FREE, "snd_una": 4396, "snd_max": 4396, "snd_sb_cc": 0}
    assert told([0, 31, 61], FREE, row, done)[:3] == [
        ("idle", 1.0), ("app", 20.0), ("nagle", 10.0)
    ]  # fmt: skip


@pytest.mark.parametrize("last, limit", [(900, "nagle"), (1000, "app")])
def test_a_cork_holds_back_until_the_last_segment_leaves(last: int, limit: str) -> None:
    """Written 60 ms before the ACK, a segment leaves 20 ms before, and what is less 5 ms before."""
    row = {**FREE, "snd_sb_cc": 1000 + last, "snd_max": 2000 + last, "packets_out": 2,
           "first_tx_us": 20, "next_tx_us": 5, "busy_us": 60_000}  # fmt: skip
    wanted = [("nagle", 55.0), ("app", 5.0)] if limit == "nagle" else [("nagle", 40.0),
                                                                       ("app", 20.0)]  # fmt: skip
    assert told([0, 100], FREE, row) == [("idle", 40.0), *wanted]
