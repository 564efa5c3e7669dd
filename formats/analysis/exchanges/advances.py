# SPDX-License-Identifier: Apache-2.0
"""When each stream came so far, and within which bounds.

What a call wrote or read is recorded at the call's end, what a segment brings when it arrives. An
ACK tells too: the change of the smoothed round-trip time is an eighth of this ACK's own, so the
byte that it acknowledges first was sent that long before. Bytes of further segments that it
acknowledges may have been written at any time until then, less the path's round trip.
"""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.arrays import Array, is_one_of
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.why import Table
from tcpkmon.formats.base.sequence import ahead_of
from tcpkmon.formats.base.tcp import ARRIVED, Location

_SAMPLE_NS = 16_000
"""The mean is known in us: its change to 2 us, the round trip to eight times that."""
_NO_RTT = (1 << 32) - 1


class Advances:
    """at: positions by name, see streams. has_calls, at_entry: see calls_of()."""

    def __init__(self, block: Block, at: Table, has_calls: bool, at_entry: bool) -> None:
        self._block, self._at = block, at
        self._has_calls, self._at_entry = has_calls, at_entry
        self._before = block.before(block.times_ns)
        self._time = np.maximum(block.times_ns, self._before)
        self._gap = self._time - self._before
        self._lost_before = block.before(block.lost)
        self._whole = block.lost == self._lost_before
        self._location = block["location"]
        self._came_from = block.before(self._location)

    def columns(self) -> Table:
        """The columns of Events, and `moved`: whether a stream advanced."""
        block, at = self._block, self._at
        found: Table = {}
        moved = np.zeros(len(block), np.bool_)
        for name in ("written", "arrived", "read", "sent"):
            top = at[f"top_{name}"]
            last = block.before(top, 0)
            moved |= top > last
            found[name] = top
            self._last = last
            time, width = getattr(self, f"_{name}")(found)
            found[f"time_{name}"] = np.clip(time, self._before - self._early(), self._time)
            found[f"width_{name}"] = width
        acked = self._acked()
        least = block["min_rtt_us"].astype(np.int64)
        rtt = np.where((least > 0) & (least < _NO_RTT), least, block["srtt_us"])
        late = np.where(self._may_be_late, self._round_trip() - rtt, 0)
        return found | {
            "place": block.of_row, "time": self._time, "lost": block.lost, "again": at["again"],
            "lost_before": self._lost_before, "rtt": rtt * 1000, "known": at["top_known"],
            "acked": np.minimum(acked, at["top_written"]), "brings": at["brings"],
            "late_written": np.maximum(late, 0) * 1000,
            "unread": at["top_read"] < at["top_known"], "moved": moved,
        }  # fmt: skip

    def _acked(self) -> Array:
        """How far the written stream is acknowledged, by each row's segment too.

        Without the column seg_ack that is what the next row has. A call can be recorded while a
        segment is under way on another CPU, before it counts; so captures of calls need the column.
        """
        block, at = self._block, self._at
        if "seg_ack" not in block.rows:
            found = block.after(at["acked"])
            found[block.lasts] = at["sent"][block.lasts]
            return found
        ahead = ahead_of(block["seg_ack"], block["snd_una"])
        is_segment = is_one_of(self._location, ARRIVED)
        told: Array = at["acked"] + np.where(is_segment, np.maximum(ahead, 0), 0)
        return np.minimum(told, at["sent"])

    def _early(self) -> Array:
        """How long before a connection's first row its data can be: a SYN's, a round trip."""
        block = self._block
        return np.where(block.is_first, block["srtt_us"].astype(np.int64) * 1000, 0)

    def _written(self, _: Table) -> tuple[Array, Array]:
        block = self._block
        has_room = block["sk_wmem_bytes"].astype(np.int64) < block["sb_hiwat"].astype(np.int64)
        called = self._has_calls & self._whole
        time, width = self._time, np.where(called & has_room, 0, self._gap)
        if self._at_entry:
            entered = called & (self._came_from == Location.SEND_CALL)
            time, width = np.where(entered, self._before, time), np.where(entered, 0, width)
            is_call = np.zeros(len(block), np.bool_)
        else:
            is_call = called & (self._location == Location.SEND_CALL)
            width = np.where(is_call, 0, width)
        trip = self._round_trip() * 1000
        acks = block.after(self._at["acked"]) > self._at["acked"]
        tells = is_one_of(self._location, ARRIVED) & acks & self._whole & ~is_call & (trip > 0)
        tells &= (self._at["acked"] == self._last)
        tells |= block.is_first  # data of a SYN
        # One segment was written at once, as far as its sender let it go at once.
        several = block["packets_out"] != 1 if "packets_out" in block.rows else True
        self._may_be_late = tells & (not self._has_calls) & ~block.is_first & several
        width = np.where(tells & (width > 0), np.minimum(_SAMPLE_NS, self._gap), width)
        time = np.where(tells, self._time - trip, time)
        return np.where(block.is_first, self._time - self._early(), time), width

    def _round_trip(self) -> Array:
        """What the ACK of each row measured [us]."""
        mean = self._block["srtt_us"].astype(np.int64)
        then = self._block.after(mean)
        return np.where(mean > 0, mean + 8 * (then - mean), then)

    def _arrived(self, _: Table) -> tuple[Array, Array]:
        came = is_one_of(self._came_from, (*ARRIVED, Location.STATE_CHANGE)) & self._whole
        brings = self._at["brings"]
        time = np.where(brings, self._time, self._before)
        width = np.where(brings | came, 0, self._gap)
        begins = self._block.is_first & ~brings
        return np.where(begins, self._time - self._early(), time), width

    def _read(self, _: Table) -> tuple[Array, Array]:
        called = self._has_calls & self._whole & (not self._at_entry)
        return np.where(called, self._time, self._before), np.where(called, 0, self._gap)

    def _sent(self, found: Table) -> tuple[Array, Array]:
        """With what was written; else an ACK, or the window that it opened, let it go."""
        block = self._block
        wrote = found["written"] > block.before(found["written"], 0)
        is_call = self._has_calls & (self._location == Location.SEND_CALL)
        time = np.where(is_call, self._time, self._before)
        width = np.where(self._has_calls & self._whole, 0, self._gap)
        return (np.where(wrote, found["time_written"], time),
                np.where(wrote, found["width_written"], width))  # fmt: skip
