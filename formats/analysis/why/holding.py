# SPDX-License-Identifier: Apache-2.0
"""Times that need more than the snapshot at their end: a loss probe under way, data held back.

    snapshots     ACK ......... LOSS_PROBE . RETRANSMIT ...... ACK     ACK ........... ACK
    the sender    the last segment is missing | the probe flies |      both with 700 bytes unsent
    limit                 rto_wait                recovery             and room for them: nagle
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.analysis.why.grouping import Grouped, grown
from formats.analysis.why.limits import ARRIVED, NUMBER, unsent
from formats.analysis.why.quiet import BY_ACK

Array = NDArray[Any]
_LOSS_PROBE = 15
_HELD_NS = 1_000_000
"""A writer that goes on does so sooner."""
_LATE_ACK_NS = 50_000_000
"""A receiver delays an ACK by less."""
_NOT_PROBED = np.array([NUMBER[name] for name in ("opening", "rto_wait", "zero_window")], np.int8)


class Probing:
    """Finds the steps between a loss probe and its ACK, in pieces one after the other."""

    def __init__(self) -> None:
        self._una = np.zeros(0, np.uint32)
        self._probed = np.zeros(0, np.bool_)

    def add(
        self, piece: Grouped, limit: Array, before: Mapping[str, Array], count: int
    ) -> NDArray[np.int64]:
        """(k,) the rows whose step is in such a time. limit: (n,) as found so far.

        before: what the snapshots before had, with `waiting`. count: of the connections so far.
        """
        self._una, self._probed = grown(self._una, count), grown(self._probed, count)
        is_probe = piece["location"] == _LOSS_PROBE
        if not is_probe.any() and not self._probed[piece.places].any():
            return np.zeros(0, np.int64)
        una = piece["snd_una"].astype(np.uint32, copy=False)
        numbers = np.arange(len(piece))
        last = np.maximum.accumulate(np.where(is_probe, numbers, -1))
        here = last >= np.repeat(piece.firsts, piece.lasts - piece.firsts + 1)
        then = np.where(here, una[last], self._una[piece.of_row])
        # Its ACK is recorded before it counts: the one after that shows that more is acknowledged.
        flies = (here | self._probed[piece.of_row]) & (then == una)
        is_waiting = (piece["packets_out"] > 0) & ~is_probe
        # After a close, its ACK may be recorded by what it changed: then it counts already.
        flew = np.empty_like(flies)
        flew[1:] = flies[:-1]
        flew[piece.firsts] = self._probed[piece.places]
        ends = flew & ~flies & (una == piece["snd_max"]) & (before["waiting"] <= 1)
        ends &= ~np.isin(piece["location"], ARRIVED)
        self._una[piece.places], self._probed[piece.places] = then[piece.lasts], flies[piece.lasts]
        found: NDArray[np.int64] = np.flatnonzero(
            ((flies & is_waiting) | ends) & ~np.isin(limit, _NOT_PROBED)
        )
        return found


def held_back(piece: Grouped, limit: Array, before: Mapping[str, Array]) -> NDArray[np.int64]:
    """(k,) the rows in whose step less than a segment was there and did not leave.

    before: what the snapshots before had, with `snd_max`, `written` and `time`. Nagle's algorithm
    and a cork hold back so, with any number of segments in flight: it is there at both ends; or it
    was there when all before it was acknowledged, and its own ACK is far later than a round trip.
    """
    span = piece.times - before["time"]
    rows = np.flatnonzero((limit == NUMBER["app"]) & (span > _HELD_NS))
    written = (piece["snd_una"][rows] + piece["snd_sb_cc"][rows]).astype(np.uint32)
    columns = {name: piece[name][rows] for name in ("snd_max", "snd_una", "snd_sb_cc")}
    stays = rows[(unsent(columns) > 0) & (written == before["written"][rows])]
    rows = np.flatnonzero((span > _LATE_ACK_NS) & (piece["snd_una"] == before["snd_max"]))
    piece_of = (before["written"][rows] - before["snd_max"][rows]).astype(np.uint32)
    srtt = piece["srtt_us"][rows].astype(np.int64) * 1000
    leaves = rows[
        (piece_of > 0)
        & (piece_of < piece["mss"][rows])
        & (span[rows] > 2 * srtt + _LATE_ACK_NS)
        & ~before["unnumbered"][rows]
        & np.isin(limit[rows], BY_ACK)
        & np.isin(piece["location"][rows], ARRIVED)
    ]
    return np.concatenate([stays, leaves])
