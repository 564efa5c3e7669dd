# SPDX-License-Identifier: Apache-2.0
"""The time-sequence graph's data: edges, segments and states of one connection, sequence unwrapped.

    sent       snd_una  <= SACK edge <= snd_max, and the edges of the two windows above them
    received   copied_seq <= rcv_nxt, and the edge of the window that is offered

Each sequence number is placed by its distance from the record's own snd_una (rcv_nxt), and that
one by its distance from the record before: so 2^32 may be passed any number of times.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.base.sequence import NO_NUMBER, ahead_of, has_numbers, unwrap
from tcpkmon.formats.base.thinning import bins_of, starts_of
from tcpkmon.formats.pmgraph.arrays import Array, Columns
from tcpkmon.formats.pmgraph.downsample import Curve

NEEDED = (
    "conn_id", "location", "callvalue", "lport", "rport", "state", "snd_una", "snd_max", "mss",
)  # fmt: skip
"""What a capture must have."""
WANTED = (
    "snd_fack", "snd_wnd", "snd_cwnd_segs", "packets_out", "sacked_out", "lost_out", "retrans_out",
    "snd_sb_cc", "rcv_sb_cc", "srtt_us", "min_rtt_us", "rcv_nxt", "rcv_wnd", "seg_seq", "seg_len",
    "ca_state",
)  # fmt: skip
"""What it draws more of where the capture has it."""
MARKED = ("RTO", "LOSS_PROBE", "ZERO_WINDOW_PROBE", "CWND_UNDO", "RESET_SENT", "RESET_RECEIVED")
_NO_RTT = (1 << 32) - 1
_TIMES_OF_BINS = 8


@dataclass
class Bars:
    """Segments: (n,) times, begins and ends. Those of one pixel column become one if they are too
    many; merged: whether that happened."""

    limits: tuple[float, float]
    bins: int
    pieces: list[tuple[Array, Array, Array]] = field(default_factory=list)
    held: int = 0
    merged: bool = False

    def add(self, times: Array, begins: Array, ends: Array) -> None:
        """Some more."""
        inside = (times >= self.limits[0]) & (times <= self.limits[1])
        self.pieces.append((times[inside], begins[inside], ends[inside]))
        self.held += int(inside.sum())
        if self.held > self.bins * _TIMES_OF_BINS:
            self._merge()

    def all(self) -> tuple[Array, Array, Array]:
        """Those to draw, by time."""
        if not self.pieces:
            return (np.empty(0),) * 3
        times, begins, ends = (np.concatenate(part) for part in zip(*self.pieces, strict=True))
        order = np.argsort(times, kind="stable")
        return times[order], begins[order], ends[order]

    def _merge(self) -> None:
        times, begins, ends = self.all()
        starts = starts_of(bins_of(times, *self.limits, self.bins))
        self.pieces = [(times[starts], np.minimum.reduceat(begins, starts),
                        np.maximum.reduceat(ends, starts))]  # fmt: skip
        self.held, self.merged = len(starts), True


@dataclass
class Sequence:
    """One connection. curves: by name; bars: `sent`, `again` and `received`. events: of MARKED,
    times in s. limits: the seconds that are drawn. records: how many are in them. has_transmit:
    whether each segment that is sent is a bar; else one is what was sent between two records."""

    curves: dict[str, Curve]
    bars: dict[str, Bars]
    events: dict[str, list[Array]]
    limits: tuple[float, float]
    records: int = 0
    thinned: bool = False
    has_transmit: bool = False


class Reading:
    """Reads one connection; chunk by chunk, in memory that depends on the bins."""

    def __init__(self, source: Source, limits: tuple[float, float], bins: int,
                 zoom: tuple[float, float] | None) -> None:  # fmt: skip
        self._codes, self._bins, self._zoom = source.location_codes(), bins, zoom
        self._last = {name: np.array([NO_NUMBER]) for name in ("snd_una", "rcv_nxt")}
        self._base: dict[str, int] = {}
        self._sent_to: int | None = None
        self._again = 0
        told = source.locations()
        self.found = Sequence({}, {}, {}, limits,
                              has_transmit=told is not None and "TRANSMIT" in told)  # fmt: skip
        for name in ("sent", "again", "received"):
            self.found.bars[name] = Bars(self.found.limits, bins)

    def add(self, columns: Columns, times: Array) -> None:
        """Records in the order of the file; all columns have their length."""
        rows = np.flatnonzero(has_numbers(columns))
        if not len(rows):
            return
        if len(rows) < len(times):
            columns = {name: columns[name][rows] for name in (*NEEDED, *WANTED) if name in columns}
            times = times[rows]
        begin, end = self.found.limits
        self.found.records += int(((times >= begin) & (times <= end)).sum())
        self._add_sent(columns, times)
        if "rcv_nxt" in columns:
            self._add_received(columns, times)
        self._add_companions(columns, times)
        for name in MARKED:
            at = times[self._is(columns, name)]
            self.found.events.setdefault(name, []).append(at[(at >= begin) & (at <= end)])

    def finish(self) -> Sequence:
        """What was read."""
        found = self.found
        found.thinned = found.records > 4 * self._bins or any(
            one.merged for one in found.bars.values())
        return found

    def _is(self, columns: Columns, name: str) -> Array:
        found: Array = columns["location"] == self._codes.get(name, -1)
        return found

    def _unwrapped(self, name: str, numbers: Array) -> Array:
        """(n,) numbers of this column, at least one, as bytes since its first one."""
        found = unwrap(numbers, self._last[name])
        self._last[name] = found[-1:]
        return found - self._base.setdefault(name, int(found[0]))

    def _put(self, name: str, times: Array, values: Array) -> None:
        curve = self.found.curves.get(name)
        if curve is None:
            curve = self.found.curves[name] = Curve(self.found.limits, self._bins, self._zoom)
        curve.add(times, values)

    def _add_sent(self, columns: Columns, times: Array) -> None:
        una32 = columns["snd_una"]
        una = self._unwrapped("snd_una", una32)
        sent = una + ahead_of(columns["snd_max"], una32)
        self._put("acked", times, una)
        self._put("sent", times, sent)
        mss = columns["mss"].astype(np.int64)
        if "snd_fack" in columns:
            sacked = una + np.maximum(ahead_of(columns["snd_fack"], una32), 0)
            self._put("sacked", times, sacked)
        if "snd_wnd" in columns:
            self._put("window", times, una + columns["snd_wnd"])
        if "snd_cwnd_segs" in columns:
            self._put("cwnd", times, una + columns["snd_cwnd_segs"].astype(np.int64) * mss)
        if self._sent_to is None:
            self._sent_to = int(sent[0])
        highest = np.maximum.accumulate(np.maximum(sent, self._sent_to))
        before = np.r_[self._sent_to, highest[:-1]]
        self._sent_to = int(highest[-1])
        if self.found.has_transmit and "seg_seq" in columns and "seg_len" in columns:
            rows = np.flatnonzero(self._is(columns, "TRANSMIT") & (columns["seg_len"] > 0))
            begins = una[rows] + ahead_of(columns["seg_seq"][rows], una32[rows])
            rows, begins = rows[begins >= sent[rows]], begins[begins >= sent[rows]]
            self.found.bars["sent"].add(times[rows], begins, begins + columns["seg_len"][rows])
        else:
            grew = np.flatnonzero(highest > before)
            self.found.bars["sent"].add(times[grew], before[grew], highest[grew])
        again = np.zeros(len(times), np.int64)
        if "seg_seq" in columns and "seg_len" in columns:
            rows = np.flatnonzero(self._is(columns, "RETRANSMIT"))
            begins = una[rows] + ahead_of(columns["seg_seq"][rows], una32[rows])
            again[rows] = columns["seg_len"][rows]
            self.found.bars["again"].add(times[rows], begins, begins + again[rows])
        total = self._again + np.cumsum(again)
        self._again = int(total[-1])
        self._put("all_sent", times, highest + total)

    def _add_received(self, columns: Columns, times: Array) -> None:
        nxt32 = columns["rcv_nxt"]
        nxt = self._unwrapped("rcv_nxt", nxt32)
        self._put("rcv_nxt", times, nxt)
        if "rcv_wnd" in columns:
            self._put("rcv_window", times, nxt + columns["rcv_wnd"])
        if "rcv_sb_cc" in columns:
            self._put("read", times, nxt - columns["rcv_sb_cc"])
        if "seg_seq" in columns and "seg_len" in columns:
            has_data = self._is(columns, "SEGMENT_RECEIVED") & (columns["seg_len"] > 0)
            rows = np.flatnonzero(has_data)
            begins = nxt[rows] + ahead_of(columns["seg_seq"][rows], nxt32[rows])
            self.found.bars["received"].add(times[rows], begins, begins + columns["seg_len"][rows])

    def _add_companions(self, columns: Columns, times: Array) -> None:
        mss = columns["mss"].astype(np.int64)
        wide = {name: columns[name].astype(np.int64) for name in WANTED if name in columns}
        if {"packets_out", "sacked_out", "lost_out", "retrans_out"} <= wide.keys():
            flight = (wide["packets_out"] - wide["sacked_out"] - wide["lost_out"]
                      + wide["retrans_out"])  # fmt: skip
            self._put("flight", times, flight * mss)
            self._put("sacked_bytes", times, wide["sacked_out"] * mss)
            self._put("lost_bytes", times, wide["lost_out"] * mss)
        if "snd_cwnd_segs" in wide:
            self._put("cwnd_bytes", times, wide["snd_cwnd_segs"] * mss)
        for name in ("snd_wnd", "snd_sb_cc", "rcv_sb_cc", "ca_state"):
            if name in wide:
                self._put(name, times, wide[name])
        if "srtt_us" in wide:
            known = wide["srtt_us"] > 0
            self._put("srtt", times[known], wide["srtt_us"][known] / 1e6)
            if "min_rtt_us" in wide:
                known &= wide["min_rtt_us"] != _NO_RTT
                least = wide["min_rtt_us"][known] / 1e6
                self._put("min_rtt", times[known], least)
                queued = np.maximum(wide["srtt_us"][known] / 1e6 - least, 0)
                self._put("queueing", times[known], queued)
