# SPDX-License-Identifier: Apache-2.0
"""What limits a connection of which one end closed, where its segments were not recorded.

    snapshots   s0: closes, 1 MB unsent, cwnd is full                   s1: all is acknowledged
    told          | cwnd ?                                  | closing ?  |
                                                            a round trip before

tcp_probe reports the segments of established connections alone, and not each kernel lets a program
see others (SEGMENT_CLOSING). Then nothing is recorded between the change of the state and the next
one, a loss or the end, although data is sent and acknowledged. What held at the first of these
snapshots is taken to hold on, until a round trip before all was acknowledged. That is not certain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array, is_one_of
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.why.clocks import FALSE_PROBE, FIRST_TX, NEXT_TX, age_ns
from tcpkmon.formats.analysis.why.limits import (
    LOSS_TIMERS,
    NUMBER,
    Columns,
    is_growing,
    is_paced,
    runs_bbr,
    tighter_window,
    unsent,
)
from tcpkmon.formats.analysis.why.parting import Cuts
from tcpkmon.formats.base.tcp import ARRIVED, CaState, Location, State

_SENDING = (State.FIN_WAIT1, State.CLOSE_WAIT, State.LAST_ACK, State.CLOSING)
"""What is unsent is still sent."""
_TIMERS = (*LOSS_TIMERS, FALSE_PROBE)
_HELD = np.arange(len(NUMBER), dtype=np.int8)
_HELD[NUMBER["rto_wait"]] = NUMBER["recovery"]
"""By the limit that ended at a snapshot, the one that holds after it."""
_GOES_ON = np.array([NUMBER[name] for name in (
    "recovery", "zero_window", "rwnd", "slow_start", "cwnd", "tsq", "pacing", "unknown",
)], np.int8)  # fmt: skip


@dataclass(frozen=True)
class Unseen:
    """rows: (k,) whose steps have segments that were not recorded; ended_by: (k,) their limits.
    cuts: of those of them in which another limit held before."""

    rows: Array
    ended_by: NDArray[np.int8]
    cuts: Cuts


def carry(block: Block, state: Array, limit: Array) -> dict[str, Array]:
    """What the next snapshots need of these: what waits to be sent, the state after each one,
    whether it is of a segment, and the limit that holds on. limit: (n,) of classify()."""
    holds = _HELD[limit]
    at = np.flatnonzero((block["location"] == Location.CONG_STATE) & (state != State.ESTABLISHED))
    there = {name: values[at] for name, values in block.rows.items()}
    lost = there["callvalue"] >= CaState.RECOVERY
    over = np.where(holds[at] == NUMBER["recovery"], tighter_window(there), holds[at])
    holds[at] = np.where(lost, NUMBER["recovery"], over)
    # A timer that finds no loss, and what it sends, change nothing: what held goes on.
    is_probe = is_one_of(block["location"], (*_TIMERS, Location.RETRANSMIT))
    is_probe &= block["ca_state"] < CaState.RECOVERY
    return {
        "waiting": unsent(block.rows), "after": state.astype(np.int64),
        "holds": block.held(~is_probe, holds),
        "segment": is_one_of(block["location"], ARRIVED),
    }  # fmt: skip


def find(
    block: Block, limit: Array, before: Mapping[str, Array], now: Mapping[str, Array],
    sent: Array, acked: Array,
) -> Unseen:  # fmt: skip
    """limit: (n,) of classify(). before, now: of carry(), and `time`. sent, acked: (n,) bytes since
    the snapshot before.

    A segment that is recorded is so before its ACK counts. So where neither of two snapshots is of
    one and data was acknowledged in between, a segment was not recorded.
    """
    rows = np.flatnonzero(
        ~before["segment"] & ~now["segment"] & (acked > 0) & is_one_of(before["after"], _SENDING)
    )
    # A FIN has a number too. Where all was sent at the first one, it only waits for its ACK.
    wrote = (before["after"][rows] == State.CLOSE_WAIT) & (sent[rows] > 1)
    rows = rows[(before["waiting"][rows] > 1) | wrote]
    dropped = (block["packets_out"][rows] == 0) & (block["snd_max"][rows] != block["snd_una"][rows])
    last = {name: values[rows] for name, values in block.rows.items()}
    between = is_one_of(limit[rows], (NUMBER["unknown"], NUMBER["pacing"])) & ~dropped
    between &= now["waiting"][rows] > 0
    span = now["time"][rows] - before["time"][rows]
    nobody_knows = np.full(len(rows), NUMBER["unknown"])
    ended_by = np.where(between, _held(last, nobody_knows, sent[rows], span), limit[rows])
    is_timer = is_one_of(last["location"], _TIMERS)
    at = np.flatnonzero(
        ((now["waiting"][rows] == 0) | dropped | is_timer)
        & (before["waiting"][rows] > 1)
        & is_one_of(before["holds"][rows], _GOES_ON)
    )
    carried = rows[at]
    # When the last segment was sent; without that, a round trip ago. What a timer finds lost was
    # sent after the newest segment that is acknowledged.
    age = block["srtt_us"][carried].astype(np.int64) * 1000
    if block.rows.keys() >= {FIRST_TX, NEXT_TX}:
        by_timer = is_timer[at]
        age = np.where(by_timer, age_ns(block, FIRST_TX, carried), age_ns(block, NEXT_TX, carried))
    start, end = before["time"][carried], now["time"][carried]
    cut = np.clip(end - np.where(dropped[at] & ~is_timer[at], 0, age), start, end)
    there = {name: values[carried] for name, values in block.rows.items()}
    held = _held(there, before["holds"][carried], sent[carried], cut - start)
    # Nothing is sent in the rest. What arrives, does so all the time.
    share = (cut - start) / np.maximum(end - start, 1)
    return Unseen(rows, ended_by, Cuts.make(carried, cut, held, sent=1.0, acked=share))


def _held(there: Columns, holds: Array, sent: Array, span_ns: Array) -> NDArray[np.int8]:
    """(k,) what held in such steps, by what held before them, and by their ends. sent: bytes."""
    cwnd = there["snd_cwnd_segs"].astype(np.int64)
    paced = np.zeros(len(cwnd), np.bool_)
    if "sk_pacing_status" in there:
        rate = there["pacing_rate"].astype(np.float64)
        paced = is_paced(sent, rate * span_ns / 1e9, rate, there["mss"])
        paced &= there["sk_pacing_status"] > 0
        # Pacing that gave more than was sent did not hold on.
        over = (holds == NUMBER["pacing"]) & ~paced & ~runs_bbr(there, slice(None))
        holds = np.where(over, NUMBER["unknown"], holds)
    # Other records than those of segments are made when an ACK has made room already.
    holds = np.where(holds == NUMBER["unknown"], tighter_window(there), holds)
    # Where slow start was over at the end, nobody knows for how long.
    over = ~is_growing(there, cwnd) & (holds == NUMBER["slow_start"])
    held = np.where(over, NUMBER["cwnd"], holds)
    # A congestion window that is larger than the receiver's was no limit.
    by_cwnd = is_one_of(held, (NUMBER["cwnd"], NUMBER["slow_start"]))
    larger = cwnd * there["mss"] > there["snd_wnd"]
    held = np.where(by_cwnd & larger, NUMBER["rwnd"], held)
    held = np.where(paced, NUMBER["pacing"], held)
    return np.asarray(held.astype(np.int8))
