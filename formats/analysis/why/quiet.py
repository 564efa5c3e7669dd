# SPDX-License-Identifier: Apache-2.0
"""Times in which the application wrote nothing, although what it wrote then fills a window.

    snapshots           s0 ............................ s1
    the application        all is acknowledged    writes
    TCP                    nothing in flight          | sends | a round trip |

A snapshot tells what bounded the sender until then. Where all that was written by the one before
is acknowledged now, and nothing more, there was nothing to send or to wait for until the
application wrote again: at most a round trip ago, since the ACK of s1 is the first one of that.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array, is_one_of
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.why.limits import DELAYED, LOSS_TIMERS, NUMBER, in_flight
from tcpkmon.formats.base.tcp import Location

_OVERDUE = (Location.RETRANSMIT, Location.ZERO_WINDOW_PROBE)
"""A segment was sent again, or a window probed: no ACK bounds when the application wrote."""
_TIMER_NS = 250_000_000
"""A timer that finds the first loss fires at most so long, and three round trips, after it."""
_UNMEASURED_NS = 50_000_000
"""So much longer than a handshake's, a round trip of data may be: two segments at 0.5 Mbit/s."""
BY_ACK = np.array([NUMBER[name] for name in (
    "sndbuf", "app", "rwnd", "slow_start", "cwnd", "pacing", "unknown")], np.int8)  # fmt: skip
"""An ACK ends these. It cannot end others: a window of 0, or data that has not left this host."""
_FLIGHT = ("packets_out", "sacked_out", "lost_out", "retrans_out")


def mostly_quiet(
    block: Block, limit: Array, before: Mapping[str, Array], acked: Array
) -> NDArray[np.int64]:
    """(k,) the rows whose step is such a time for the most part.

    limit: (n,) of classify(). before: what the snapshots before had, with `written` and `time`.
    acked: (n,) bytes.
    """
    rows = np.flatnonzero(block["snd_una"] == before["written"])
    srtt = block["srtt_us"][rows].astype(np.int64) * 1000
    measured = (block.last(acked > 1) >= 0)[rows]  # a handshake has a number too
    round_trip = srtt + np.where(measured, 0, _UNMEASURED_NS)
    last = {name: block[name][rows] for name in _FLIGHT}
    by_timer = is_one_of(block["location"][rows], LOSS_TIMERS)
    bound = np.where(by_timer, 3 * srtt + _TIMER_NS, round_trip)
    by_ack = is_one_of(limit[rows], BY_ACK) & (in_flight(last) > DELAYED)
    by_ack &= ~is_one_of(block["location"][rows], _OVERDUE)
    return rows[
        (block.times_ns[rows] - before["time"][rows] > 2 * bound)
        & (srtt > 0)
        & ~before["unnumbered"][rows]
        & (by_timer | by_ack)
    ]
