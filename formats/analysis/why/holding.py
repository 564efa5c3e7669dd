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

from tcpkmon.formats.analysis.arrays import Array, Mask
from tcpkmon.formats.analysis.why.clocks import FIRST_TX, NEXT_TX, age_ns
from tcpkmon.formats.analysis.why.grouping import Grouped, Kept
from tcpkmon.formats.analysis.why.limits import NUMBER, has_room, is_full, unsent
from tcpkmon.formats.analysis.why.parting import Cuts
from tcpkmon.formats.analysis.why.quiet import BY_ACK
from tcpkmon.formats.base.tcp import ARRIVED, Location

_HELD_NS = 1_000_000
"""A writer that goes on does so sooner."""
_LATE_ACK_NS = 50_000_000
"""A receiver delays an ACK by less."""
_NOT_PROBED = np.array([NUMBER[name] for name in ("opening", "rto_wait", "zero_window")], np.int8)


def was_full(piece: Grouped, kept: Kept) -> Mask:
    """(n,) whether the send buffer was full since a third of it was last free."""
    fills = is_full(piece.columns)
    return piece.held(fills | has_room(piece.columns), fills, kept.of("full", np.bool_))


def probed(
    piece: Grouped, limit: Array, before: Mapping[str, Array], kept: Kept
) -> NDArray[np.int64]:
    """(k,) the rows whose step is between a loss probe and its ACK. limit: (n,) as found so far.

    before: what the snapshots before had, with `waiting`.
    """
    then, flew = kept.of("probe_una", np.uint32), kept.of("probed", np.bool_)
    is_probe = piece["location"] == Location.LOSS_PROBE
    if not is_probe.any() and not flew[piece.places].any():
        return np.zeros(0, np.int64)
    una = piece["snd_una"].astype(np.uint32, copy=False)
    # Its ACK is recorded before it counts: the one after that shows that more is acknowledged.
    flies = (piece.last(is_probe) >= 0) | flew[piece.of_row]
    flies &= piece.held(is_probe, una, then) == una
    is_waiting = (piece["packets_out"] > 0) & ~is_probe
    # After a close, its ACK may be recorded by what it changed: then it counts already.
    ends = piece.before(flies, flew) & ~flies & (una == piece["snd_max"])
    ends &= (before["waiting"] <= 1) & ~np.isin(piece["location"], ARRIVED)
    return np.flatnonzero(
        ((flies & is_waiting) | ends) & ~np.isin(limit, _NOT_PROBED)
    )


def held_back(
    piece: Grouped, limit: Array, before: Mapping[str, Array], told: Array
) -> tuple[NDArray[np.int64], Cuts]:
    """The rows in whose steps less than a segment was there and did not leave, and where that
    begins.

    before: what the snapshots before had, with `snd_max`, `written` and `time`. told: (k,) the rows
    of which clocks told the beginning: of these the rest alone is meant.
    Nagle's algorithm and a cork hold back so, with any number of segments in flight: it is there at
    both ends; or its writer writes nothing more until it is acknowledged; or it was there when all
    before it was acknowledged, and its own ACK is far later than a round trip.
    """
    span = piece.times - before["time"]
    is_told = np.zeros(len(piece), np.bool_)
    is_told[told] = True
    rows = np.flatnonzero(limit == NUMBER["app"])
    columns = {name: piece[name][rows] for name in ("snd_max", "snd_una", "snd_sb_cc")}
    rows = rows[unsent(columns) > 0]
    written = _written(piece)
    since = np.maximum(_sent_at(piece, rows), before["time"][rows])
    stays = written[rows] == before["written"][rows]
    stays &= ~is_told[rows]
    if NEXT_TX in piece.columns:
        stays |= _ends_a_message(piece, written, before, rows)
    # Where a write is acknowledged within microseconds, its last piece is held back for less.
    stays &= piece.times[rows] - since > _HELD_NS
    rows, since = rows[stays], since[stays]
    start = before["time"][rows]
    if FIRST_TX in piece.columns:
        # What clocks told ends when the first segment leaves.
        first = piece.times[rows] - age_ns(piece, FIRST_TX, rows)
        start = np.where(is_told[rows], np.maximum(first, start), start)
    late = since - start > _HELD_NS
    begins = Cuts.make(rows[late], since[late], NUMBER["app"], sent=1.0,
                       acked=np.where(is_told[rows[late]], 0.0, 1.0))  # fmt: skip
    leaves = np.flatnonzero((span > _LATE_ACK_NS) & (piece["snd_una"] == before["snd_max"]))
    piece_of = (before["written"][leaves] - before["snd_max"][leaves]).astype(np.uint32)
    srtt = piece["srtt_us"][leaves].astype(np.int64) * 1000
    leaves = leaves[
        (piece_of > 0)
        & (piece_of < piece["mss"][leaves])
        & (span[leaves] > 2 * srtt + _LATE_ACK_NS)
        & ~before["unnumbered"][leaves]
        & ~is_told[leaves]
        & np.isin(limit[leaves], BY_ACK)
        & np.isin(piece["location"][leaves], ARRIVED)
    ]
    return np.union1d(rows, leaves), begins


def _written(piece: Grouped) -> Array:
    """(n,) up to where the application wrote."""
    return (piece["snd_una"] + piece["snd_sb_cc"]).astype(np.uint32)


def _sent_at(piece: Grouped, rows: Array) -> Array:
    """(k,) when the last segment before these snapshots was sent; without that clock long ago."""
    if NEXT_TX not in piece.columns:
        return np.zeros(len(rows), np.int64)
    return np.minimum(piece.times[rows] - age_ns(piece, NEXT_TX, rows), piece.times[rows])


def _ends_a_message(
    piece: Grouped, written: Array, before: Mapping[str, Array], rows: Array
) -> NDArray[np.bool_]:
    """(k,) whether all that was written at these snapshots is acknowledged before more is: its
    writer waits for the other end. Not where that is behind the end of the piece."""
    writes = np.flatnonzero(piece.is_first | (written != before["written"]))
    after = np.searchsorted(writes, rows, "right")
    last = piece.lasts[np.searchsorted(piece.lasts, rows)]
    following = np.append(writes, len(piece))[after]
    at = np.minimum(following, last)
    found: NDArray[np.bool_] = (piece["snd_una"][at] - written[rows]).astype(np.uint32).view(
        np.int32) >= 0  # fmt: skip
    return found
