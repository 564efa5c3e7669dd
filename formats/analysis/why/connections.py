# SPDX-License-Identifier: Apache-2.0
"""The table `connections`: a row for each connection, with how long each limit held."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.analysis.why.intervals import Cutter
from formats.analysis.why.limits import FAMILY, LIMITS
from formats.analysis.why.snapshots import Snapshots
from formats.base.text import address_of, text_of

Array = NDArray[Any]
NO_RTT = (1 << 32) - 1
RETRANSMIT, RTO, LOSS_PROBE = 2, 14, 15
RESET_SENT, RESET_RECEIVED, STATE_CHANGE, EXISTING, DESTROY = 7, 8, 4, 226, 11
_OCTAVES, _PARTS = 32, 8
"""Round-trip times are counted in classes: eight to a power of two, so within 6 %."""


@dataclass
class Connection:
    """One connection, as this host saw it. Times in ns of CLOCK_MONOTONIC, else as named.

    limit_ns: how long each limit held, by name. certain_ns: the part without a lost record. Round-
    trip times are None where none was measured. role: active, passive or existing.
    """

    conn_id: int
    laddr: str = ""
    lport: int = 0
    raddr: str = ""
    rport: int = 0
    pid: int = 0
    comm: str = ""
    ca_name: str = ""
    role: str = "existing"
    end_reason: str = "open"
    start_ns: int = 0
    end_ns: int = 0
    handshake_ns: int | None = None
    records: int = 0
    lost_records: int = 0
    bytes_sent: int = 0
    bytes_acked: int = 0
    bytes_received: int = 0
    segments_retransmitted: int = 0
    rto_count: int = 0
    loss_probes: int = 0
    mss: int = 0
    min_rtt_us: int | None = None
    srtt_p50_us: float | None = None
    srtt_p95_us: float | None = None
    srtt_max_us: int | None = None
    cwnd_max: int = 0
    snd_wnd_min: int = 0
    snd_wnd_max: int = 0
    rcvbuf: int = 0
    sndbuf: int = 0
    reader_behind_max: int = 0
    zero_windows: int = 0
    limit_ns: dict[str, int] = field(default_factory=dict)
    certain_ns: int = 0

    @property
    def duration_s(self) -> float:
        """From its first to its last snapshot."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def goodput(self) -> float:
        """Bytes a second that the peer acknowledged, or that arrived: the larger direction."""
        most = max(self.bytes_acked, self.bytes_received)
        return most / self.duration_s if self.duration_s else 0.0

    @property
    def sends(self) -> bool:
        """Whether it is more of a sender than of a receiver."""
        return self.bytes_acked >= self.bytes_received

    def share(self, limit: str) -> float:
        """Of the time, 0 to 1; of a family (app, rwnd, cwnd) with its parts."""
        total = sum(self.limit_ns.values())
        if not total:
            return 0.0
        return sum(
            ns for name, ns in self.limit_ns.items() if limit in (name, FAMILY.get(name))
        ) / total  # fmt: skip


class Tally:
    """Adds up the connections of a capture; use tally()."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self.rows: list[Connection] = []
        self._limits = np.zeros((0, len(LIMITS)), np.int64)
        self._certain = np.zeros(0, np.int64)
        self._rtts = np.zeros((0, _OCTAVES * _PARTS), np.int32)

    def add_snapshots(self, piece: Snapshots) -> None:
        """The next snapshots, in time order."""
        if not len(piece):
            return
        ids, which, firsts, lasts = _group(piece["conn_id"])
        places = self._find(ids, piece, firsts)
        self._add_times(piece, places, firsts, lasts)
        self._count(piece, places, which)
        self._add_rtts(piece, places, which)
        self._add_extremes(piece, places, which)

    def add_intervals(self, rows: Array) -> None:
        """Intervals of connections whose snapshots were added."""
        if not len(rows):
            return
        ids, which = np.unique(rows["conn_id"], return_inverse=True)
        places = np.array([self._places[one] for one in ids.tolist()], np.int64)[which]
        spans = rows["end_ns"] - rows["start_ns"]
        np.add.at(self._limits, (places, rows["limit"]), spans)
        certain = rows["lost_records"] == 0
        np.add.at(self._certain, places[certain], spans[certain])
        for name in ("bytes_sent", "bytes_acked", "bytes_received", "lost_records"):
            sums = np.bincount(which, rows[name], len(ids))
            for one, value in zip(ids.tolist(), sums.tolist(), strict=True):
                row = self.rows[self._places[one]]
                setattr(row, name, getattr(row, name) + int(value))

    def finish(self) -> list[Connection]:
        """The connections, in the order in which they were first seen."""
        for place, row in enumerate(self.rows):
            row.limit_ns = {
                name: int(ns) for name, ns in zip(LIMITS, self._limits[place], strict=True) if ns
            }
            row.certain_ns = int(self._certain[place])
            row.srtt_p50_us = _percentile(self._rtts[place], 0.50)
            row.srtt_p95_us = _percentile(self._rtts[place], 0.95)
        return self.rows

    def _find(self, ids: Array, piece: Snapshots, firsts: Array) -> Array:
        """The places of connections; new ones get one."""
        new = [
            (at, one) for at, one in zip(firsts.tolist(), ids.tolist(), strict=True)
            if one not in self._places
        ]  # fmt: skip
        for at, one in sorted(new):
            self._places[one] = len(self.rows)
            self.rows.append(_begin(one, piece, at))
        grow = len(self.rows) - len(self._certain)
        if grow:
            grow = max(grow, len(self._certain))
            self._limits = np.vstack([self._limits, np.zeros((grow, len(LIMITS)), np.int64)])
            self._certain = np.concatenate([self._certain, np.zeros(grow, np.int64)])
            self._rtts = np.vstack([self._rtts, np.zeros((grow, self._rtts.shape[1]), np.int32)])
        return np.array([self._places[one] for one in ids.tolist()], np.int64)

    def _add_times(self, piece: Snapshots, places: Array, firsts: Array, lasts: Array) -> None:
        states, locations = piece["state"], piece["location"]
        for place, last in zip(places.tolist(), lasts.tolist(), strict=True):
            row = self.rows[place]
            row.end_ns = int(piece.times_ns[last])
            _name_owner(row, piece, last)
            if locations[last] == DESTROY and row.end_reason == "open":
                row.end_reason = "closed"
        changes = np.flatnonzero((locations == STATE_CHANGE) & (piece["callvalue"] == 1))
        for at in changes.tolist():
            row = self.rows[self._places[int(piece["conn_id"][at])]]
            row.role = "active" if states[at] == 2 else "passive"
            row.handshake_ns = int(piece.times_ns[at]) - row.start_ns

    def _count(self, piece: Snapshots, places: Array, which: Array) -> None:
        locations = piece["location"]
        counts: tuple[tuple[str, Array], ...] = (
            ("records", np.ones(len(piece), np.bool_)),
            ("segments_retransmitted", locations == RETRANSMIT),
            ("rto_count", locations == RTO),
            ("loss_probes", locations == LOSS_PROBE),
        )
        for name, mask in counts:
            self._add(name, places, np.bincount(which[mask], minlength=len(places)))
        for location, reason in ((RESET_SENT, "reset_sent"), (RESET_RECEIVED, "reset_received")):
            for at in np.unique(which[locations == location]).tolist():
                self.rows[places[at]].end_reason = reason

    def _add(self, name: str, places: Array, values: Array) -> None:
        for at in np.flatnonzero(values).tolist():
            row = self.rows[places[at]]
            setattr(row, name, getattr(row, name) + int(values[at]))

    def _add_rtts(self, piece: Snapshots, places: Array, which: Array) -> None:
        srtt = piece["srtt_us"].astype(np.float64)
        told = srtt > 0
        index = np.minimum(np.log2(np.maximum(srtt, 1)) * _PARTS, self._rtts.shape[1] - 1)
        np.add.at(self._rtts, (places[which[told]], index[told].astype(np.int64)), 1)

    def _add_extremes(self, piece: Snapshots, places: Array, which: Array) -> None:
        def extreme(column: Array, fold: Any, start: int) -> Array:
            found = np.full(len(places), start, np.int64)
            fold.at(found, which, column.astype(np.int64))
            return found

        largest = {
            "cwnd_max": "snd_cwnd_segs", "snd_wnd_max": "snd_wnd", "rcvbuf": "sk_rcvbuf",
            "sndbuf": "sb_hiwat", "reader_behind_max": "rcv_sb_cc", "mss": "mss",
        }  # fmt: skip
        for name, column in largest.items():
            self._fold(name, places, extreme(piece[column], np.maximum, 0), max)
        windows = np.where(piece["snd_wnd"] > 0, piece["snd_wnd"], NO_RTT)
        self._fold("snd_wnd_min", places, extreme(windows, np.minimum, NO_RTT), _least)
        rtts = extreme(piece["min_rtt_us"], np.minimum, NO_RTT)
        most = extreme(piece["srtt_us"], np.maximum, 0)
        zero = np.bincount(which[piece["snd_wnd"] == 0], minlength=len(places))
        for place, least, high, shut in zip(
            places.tolist(), rtts.tolist(), most.tolist(), zero.tolist(), strict=True
        ):
            row = self.rows[place]
            if least != NO_RTT:
                row.min_rtt_us = min(row.min_rtt_us or NO_RTT, least)
            if high:
                row.srtt_max_us = max(row.srtt_max_us or 0, high)
            row.zero_windows += shut

    def _fold(
        self, name: str, places: Array, values: Array, fold: Callable[[int, int], int]
    ) -> None:
        for place, value in zip(places.tolist(), values.tolist(), strict=True):
            row = self.rows[place]
            setattr(row, name, fold(getattr(row, name), value))


def tally(pieces: Iterable[Snapshots], each: Callable[[Array], None] | None = None) -> (
    list[Connection]
):  # fmt: skip
    """The connections of a capture, in one pass. each: called with the intervals of each piece."""
    tally, cutter = Tally(), Cutter()
    for piece in pieces:
        tally.add_snapshots(piece)
        rows = cutter.add(piece)
        tally.add_intervals(rows)
        if each is not None:
            each(rows)
    rows = cutter.finish()
    tally.add_intervals(rows)
    if each is not None:
        each(rows)
    return tally.finish()


def _group(ids: Array) -> tuple[Array, Array, Array, Array]:
    """Distinct ids, the place of each record's among them, their first and last records."""
    distinct, firsts, which = np.unique(ids, return_index=True, return_inverse=True)
    lasts = np.zeros(len(distinct), np.int64)
    lasts[which] = np.arange(len(ids))
    return distinct, which, firsts, lasts


def _begin(one: int, piece: Snapshots, at: int) -> Connection:
    row = Connection(
        one,
        laddr=address_of(_raw(piece["laddr"], at)),
        lport=int(piece["lport"][at]),
        raddr=address_of(_raw(piece["raddr"], at)),
        rport=int(piece["rport"][at]),
        start_ns=int(piece.times_ns[at]),
    )
    return row


def _raw(column: Array, at: int) -> bytes:
    return column[at : at + 1].tobytes()


def _name_owner(row: Connection, piece: Snapshots, at: int) -> None:
    """What a later snapshot knows better: ports, the owner, the algorithm."""
    row.lport = int(piece["lport"][at]) or row.lport
    row.rport = int(piece["rport"][at]) or row.rport
    if "pid" in piece.columns and (pid := int(piece["pid"][at])):
        row.pid = pid
    for name in ("comm", "ca_name"):
        if name in piece.columns and (text := text_of(_raw(piece[name], at))):
            setattr(row, name, text)
    if piece["raddr"][at : at + 1].tobytes().strip(b"\0"):
        row.laddr, row.raddr = (address_of(_raw(piece[name], at)) for name in ("laddr", "raddr"))


def _least(before: int, now: int) -> int:
    return min(before or now, now) if now != NO_RTT else before


def _percentile(counts: Array, share: float) -> float | None:
    """The middle of the class in which that share of the counts is reached."""
    total = int(counts.sum())
    if not total:
        return None
    at = int(np.searchsorted(np.cumsum(counts), share * total))
    return float(2 ** ((at + 0.5) / _PARTS))
