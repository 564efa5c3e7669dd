# SPDX-License-Identifier: Apache-2.0
"""What needs more than one snapshot: a loss probe under way, data held back, a full send buffer.

    snapshots     ACK ......... LOSS_PROBE . RETRANSMIT ...... ACK     ACK ........... ACK
    the sender    the last segment is missing | the probe flies |      both with 700 bytes unsent
    limit                 rto_wait                recovery             and room for them: nagle

    used / limit of the buffer    0.5   1.0   0.9   0.7   0.6   0.8
    full                          no    yes   yes   yes   no    no

A writer that found the buffer full sleeps until a third of it is free. One that is filled to two
thirds only, and was not full since, holds back nobody.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array, Mask, is_one_of
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.why.clocks import FIRST_TX, NEXT_TX, age_ns
from tcpkmon.formats.analysis.why.limits import NUMBER, has_room, is_full, unsent
from tcpkmon.formats.analysis.why.parting import Cuts
from tcpkmon.formats.analysis.why.quiet import BY_ACK
from tcpkmon.formats.base.tcp import ARRIVED, Location

_HELD_NS = 1_000_000
"""A writer that goes on does so sooner."""
_LATE_ACK_NS = 50_000_000
"""A receiver delays an ACK by less."""
_NOT_PROBED = np.array([NUMBER[name] for name in ("opening", "rto_wait", "zero_window")], np.int8)


def was_full(block: Block) -> Mask:
    """(n,) whether the send buffer was full since a third of it was last free."""
    fills = is_full(block.rows)
    return block.held(fills | has_room(block.rows), fills)


def probed(
    block: Block, limit: Array, before: Mapping[str, Array]
) -> NDArray[np.int64]:
    """(k,) the rows whose step is between a loss probe and its ACK. limit: (n,) as found so far.

    before: what the snapshots before had, with `waiting`.
    """
    is_probe = block["location"] == Location.LOSS_PROBE
    if not is_probe.any():
        return np.zeros(0, np.int64)
    una = block["snd_una"].astype(np.uint32, copy=False)
    # Its ACK is recorded before it counts: the one after that shows that more is acknowledged.
    flies = (block.last(is_probe) >= 0) & (block.held(is_probe, una) == una)
    is_waiting = (block["packets_out"] > 0) & ~is_probe
    # After a close, its ACK may be recorded by what it changed: then it counts already.
    ends = block.before(flies, False) & ~flies & (una == block["snd_max"])
    ends &= (before["waiting"] <= 1) & ~is_one_of(block["location"], ARRIVED)
    return np.flatnonzero(
        ((flies & is_waiting) | ends) & ~is_one_of(limit, _NOT_PROBED)
    )


def held_back(
    block: Block, limit: Array, before: Mapping[str, Array], told: Array
) -> tuple[NDArray[np.int64], Cuts]:
    """The rows in whose steps less than a segment was there and did not leave, and where that
    begins.

    before: what the snapshots before had, with `snd_max`, `written` and `time`. told: (k,) the rows
    of which clocks told the beginning: of these the rest alone is meant.
    Nagle's algorithm and a cork hold back so, with any number of segments in flight: it is there at
    both ends; or its writer writes nothing more until it is acknowledged; or it was there when all
    before it was acknowledged, and its own ACK is far later than a round trip.
    """
    span = block.times_ns - before["time"]
    is_told = np.zeros(len(block), np.bool_)
    is_told[told] = True
    rows = np.flatnonzero(limit == NUMBER["app"])
    columns = {name: block[name][rows] for name in ("snd_max", "snd_una", "snd_sb_cc")}
    rows = rows[unsent(columns) > 0]
    written = _written(block)
    since = np.maximum(_sent_at(block, rows), before["time"][rows])
    stays = written[rows] == before["written"][rows]
    stays &= ~is_told[rows]
    if NEXT_TX in block.rows:
        stays |= _ends_a_message(block, written, before, rows)
    # Where a write is acknowledged within microseconds, its last piece is held back for less.
    stays &= block.times_ns[rows] - since > _HELD_NS
    rows, since = rows[stays], since[stays]
    start = before["time"][rows]
    if FIRST_TX in block.rows:
        # What clocks told ends when the first segment leaves.
        first = block.times_ns[rows] - age_ns(block, FIRST_TX, rows)
        start = np.where(is_told[rows], np.maximum(first, start), start)
    late = since - start > _HELD_NS
    begins = Cuts.make(rows[late], since[late], NUMBER["app"], sent=1.0,
                       acked=np.where(is_told[rows[late]], 0.0, 1.0))  # fmt: skip
    leaves = np.flatnonzero((span > _LATE_ACK_NS) & (block["snd_una"] == before["snd_max"]))
    piece_of = (before["written"][leaves] - before["snd_max"][leaves]).astype(np.uint32)
    srtt = block["srtt_us"][leaves].astype(np.int64) * 1000
    leaves = leaves[
        (piece_of > 0)
        & (piece_of < block["mss"][leaves])
        & (span[leaves] > 2 * srtt + _LATE_ACK_NS)
        & ~before["unnumbered"][leaves]
        & ~is_told[leaves]
        & is_one_of(limit[leaves], BY_ACK)
        & is_one_of(block["location"][leaves], ARRIVED)
    ]
    return np.union1d(rows, leaves), begins


def _written(block: Block) -> Array:
    """(n,) up to where the application wrote."""
    return (block["snd_una"] + block["snd_sb_cc"]).astype(np.uint32)


def _sent_at(block: Block, rows: Array) -> Array:
    """(k,) when the last segment before these snapshots was sent; without that clock long ago."""
    if NEXT_TX not in block.rows:
        return np.zeros(len(rows), np.int64)
    now = block.times_ns[rows]
    return np.asarray(np.minimum(now - age_ns(block, NEXT_TX, rows), now))


def _ends_a_message(
    block: Block, written: Array, before: Mapping[str, Array], rows: Array
) -> NDArray[np.bool_]:
    """(k,) whether all that was written at these snapshots is acknowledged before more is: its
    writer waits for the other end. Not where that is behind the end of the block."""
    writes = np.flatnonzero(block.is_first | (written != before["written"]))
    after = np.searchsorted(writes, rows, "right")
    last = block.lasts[np.searchsorted(block.lasts, rows)]
    following = np.append(writes, len(block))[after]
    at = np.minimum(following, last)
    found: NDArray[np.bool_] = (block["snd_una"][at] - written[rows]).astype(np.uint32).view(
        np.int32) >= 0  # fmt: skip
    return found
