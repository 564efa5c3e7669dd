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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.analysis.why.grouping import Grouped
from formats.analysis.why.limits import (
    ARRIVED,
    CLOSE_WAIT,
    ESTABLISHED,
    NUMBER,
    RECOVERY,
    is_growing,
    tighter_window,
    unsent,
)

Array = NDArray[Any]
_SENDING = (4, CLOSE_WAIT, 9, 11)
"""FIN_WAIT1, CLOSE_WAIT, LAST_ACK, CLOSING: what is unsent is still sent."""
_CONG_STATE = 5
_HELD = np.arange(len(NUMBER), dtype=np.int8)
_HELD[NUMBER["rto_wait"]] = NUMBER["recovery"]
"""By the limit that ended at a snapshot, the one that holds after it."""
_GOES_ON = np.array([NUMBER[name] for name in (
    "recovery", "zero_window", "rwnd", "slow_start", "cwnd", "tsq", "pacing", "unknown",
)], np.int8)  # fmt: skip
CARRIED = {"waiting": np.int64, "after": np.int64, "segment": np.bool_, "holds": np.int8}


@dataclass(frozen=True)
class Unseen:
    """rows: (k,) whose steps have segments that were not recorded; ended_by: (k,) their limits.
    carried: (m,) those of them in which another limit held until cut_ns, (m,): limit, (m,)."""

    rows: Array
    ended_by: NDArray[np.int8]
    carried: Array
    cut_ns: Array
    limit: NDArray[np.int8]


def carry(piece: Grouped, state: Array, limit: Array) -> dict[str, Array]:
    """What the next snapshots need of these, by the names of CARRIED. state: after each one.

    limit: (n,) of classify().
    """
    holds = _HELD[limit]
    at = np.flatnonzero((piece["location"] == _CONG_STATE) & (state != ESTABLISHED))
    there = {name: values[at] for name, values in piece.columns.items()}
    lost = there["callvalue"] >= RECOVERY
    over = np.where(holds[at] == NUMBER["recovery"], tighter_window(there), holds[at])
    holds[at] = np.where(lost, NUMBER["recovery"], over)
    return {
        "waiting": unsent(piece.columns), "after": state.astype(np.int64), "holds": holds,
        "segment": np.isin(piece["location"], ARRIVED),
    }  # fmt: skip


def find(
    piece: Grouped, limit: Array, before: Mapping[str, Array], now: Mapping[str, Array],
    sent: Array, acked: Array,
) -> Unseen:  # fmt: skip
    """limit: (n,) of classify(). before, now: of carry() and `time`. sent, acked: (n,) bytes since
    the snapshot before.

    A segment that is recorded is so before its ACK counts. So where neither of two snapshots is of
    one and data was acknowledged in between, a segment was not recorded.
    """
    rows = np.flatnonzero(
        ~before["segment"] & ~now["segment"] & (acked > 0) & np.isin(before["after"], _SENDING)
    )
    # A FIN has a number too. Where all was sent at the first one, it only waits for its ACK.
    wrote = (before["after"][rows] == CLOSE_WAIT) & (sent[rows] > 1)
    rows = rows[(before["waiting"][rows] > 1) | wrote]
    dropped = (piece["packets_out"][rows] == 0) & (piece["snd_max"][rows] != piece["snd_una"][rows])
    last = {name: values[rows] for name, values in piece.columns.items()}
    # Other records than those of segments are made when an ACK has made room already.
    between = (limit[rows] == NUMBER["unknown"]) & (now["waiting"][rows] > 0) & ~dropped
    ended_by = np.where(between, tighter_window(last), limit[rows])
    holds = before["holds"][rows]
    at = np.flatnonzero(
        ((now["waiting"][rows] == 0) | dropped)
        & (before["waiting"][rows] > 1)
        & np.isin(holds, _GOES_ON)
    )
    carried = rows[at]
    # Where slow start was over at the end, nobody knows for how long.
    there = {name: values[carried] for name, values in piece.columns.items()}
    over = ~is_growing(there, there["snd_cwnd_segs"]) & (holds[at] == NUMBER["slow_start"])
    held = np.where(over, np.int8(NUMBER["cwnd"]), holds[at])
    round_trip = np.where(dropped[at], 0, piece["srtt_us"][carried].astype(np.int64) * 1000)
    cut = np.maximum(now["time"][carried] - round_trip, before["time"][carried])
    return Unseen(rows, ended_by, carried, cut, held)
