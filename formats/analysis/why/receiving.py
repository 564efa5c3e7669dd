# SPDX-License-Identifier: Apache-2.0
"""What a receiver sees: its reader is behind, its window is too small, or a segment is missing.

A sender fills the receiver's window once in a round trip. So a window that is small for the path
shows as that many bytes in one round trip; the kernel's measurement of it is rcv_rtt_us.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array, Mask, shifted
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.why.snapshots import OF_RECEIVERS
from tcpkmon.formats.base.sequence import NO_NUMBER, ahead_of, unwrap
from tcpkmon.formats.base.tcp import Location

RECEIVING = ("rx_app", "rx_autotune", "rx_reorder")
"""The names by number. Beside the limits of what a connection sends: both directions may wait."""
RTT, NEEDS = OF_RECEIVERS
NOTHING = -1
_FULL = 0.6
"""Of the window, that arrives in a round trip: more is a window that limits. Autotuning, where it
keeps up, makes the window twice what arrives."""
MOST_UNSCALED = 65_535
"""The largest window without a scale [bytes]."""
_TICK_NS = 1_000_000
"""The kernel measures it by timestamps in milliseconds, and keeps the smaller ones."""
_LOWEST = -(1 << 43)
_ROUND_TRIPS = 4
"""What arrives is a mean of so many: it comes in bursts."""


def waits_of(block: Block, known: Mask) -> NDArray[np.int8]:
    """(n,) the number in RECEIVING of what the receiver waited for in the time before each
    snapshot, or NOTHING. known: (n,) of has_numbers()."""
    window = block["rcv_wnd"].astype(np.int64)
    unread = block["rcv_sb_cc"].astype(np.int64)
    is_segment = block["location"] == Location.SEGMENT_RECEIVED
    # rcv_nxt that counts on; NO_NUMBER until the peer's first number is known.
    received = unwrap(block["rcv_nxt"], None, block.groups, known)
    ahead = (ahead_of(block["seg_seq"], block["rcv_nxt"]) > 0) & known
    length = np.where(is_segment & ~ahead, block["seg_len"], 0).astype(np.int64)
    now: dict[str, Array] = {
        "time": block.times_ns, "received": received, "unread": unread + length,
        "room": window - length,
    }  # fmt: skip
    before = {name: block.before(values) for name, values in now.items()}
    nothing = before["received"] == NO_NUMBER
    before["received"][nothing] = received[nothing]
    missing = _missing(block, is_segment & ahead, received, before["received"])
    # Without the receiver's own measurement: that of the handshake, and of what it sent.
    measured = block.rows.get(RTT, block["srtt_us"]).astype(np.int64) * 1000
    rtt = np.where(measured > 0, measured + _TICK_NS // 2, 0)
    span = now["time"] - before["time"]
    was_full = (before["unread"] >= np.maximum(before["room"], 1))
    was_full &= span > 2 * rtt + _TICK_NS
    behind = (unread >= np.maximum(window, 1)) | was_full
    moved = (received != before["received"]) & (rtt > 0) & (RTT in block.rows)
    small = np.zeros(len(block), np.bool_)
    at = np.flatnonzero(moved)
    arrived = _arrived(block, received, before, _ROUND_TRIPS * rtt, at) / _ROUND_TRIPS
    told = window[at]
    if "rcv_wscale" in block.rows:  # the kernel counts with more than it can tell
        told = np.minimum(told, MOST_UNSCALED << block["rcv_wscale"][at].astype(np.int64))
    small[at] = arrived >= _FULL * told
    found: NDArray[np.int8] = np.select(
        [missing, behind, small], [np.int8(2), np.int8(0), np.int8(1)], np.int8(NOTHING)
    ).astype(np.int8)
    return found


def _missing(block: Block, is_ahead: Array, received: Array, before: Array) -> Mask:
    """(n,) whether data waited behind a segment that was missing, in the time before each row.

    So it is while something has arrived that is beyond the next byte which is expected.
    is_ahead: of segments behind a hole. received: of these snapshots. before: of those before
    them.
    """
    if not is_ahead.any():
        return np.zeros(len(block), np.bool_)
    expected = np.maximum(received, 0)
    end = (block["seg_seq"] + block["seg_len"]).astype(np.uint32)
    reached = np.where(is_ahead, expected + ahead_of(end, block["rcv_nxt"]), _LOWEST)
    so_far = np.maximum(before[block.groups], 0)
    until = shifted(reached, block.groups, so_far)  # by the rows before each one
    rank = np.cumsum(block.is_first, dtype=np.int64) << 44  # no connection's has the next one
    until = np.maximum.accumulate(rank + np.maximum(until, _LOWEST)) - rank
    return np.asarray(until > expected)


def _arrived(
    block: Block, received: Array, before: dict[str, Array], span: Array, at: Array
) -> Array:
    """(m,) bytes that arrived in the time `span` [ns] before these rows."""
    width = (1 << 62) // (len(block.groups) + 1)
    since = np.clip(block.times_ns - block.times_ns.min(), 0, width - 1)
    of_row = block.spread(np.arange(len(block.groups)))
    keys = np.maximum.accumulate(of_row * width + since)
    wanted = of_row[at] * width + np.maximum(since[at] - span[at], 0)
    first = block.groups[of_row[at]]
    low = np.searchsorted(keys, wanted, "right") - 1
    inside = low >= first
    low = np.maximum(low, first)
    then = np.where(inside, block.times_ns[low], before["time"][low])
    began = np.where(inside, received[low], before["received"][low])
    moved = np.maximum(received[at] - began, 0).astype(np.float64)
    found: Array = moved * span[at] / np.maximum(block.times_ns[at] - then, span[at])
    return found
