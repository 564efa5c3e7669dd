# SPDX-License-Identifier: Apache-2.0
"""Runs of one limit: the time of each connection cut where what limits it changes.

    snapshots of a connection    s0      s1      s2      s3      s4
    steps between them              app     app     cwnd    cwnd
    intervals                    |     app      |     cwnd     |

A step belongs to the snapshot at its end. Memory is that of the connections, and of one piece of
the capture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array, runs
from tcpkmon.formats.analysis.why import clocks, closing
from tcpkmon.formats.analysis.why.grouping import Grouped, Kept, Places, grown
from tcpkmon.formats.analysis.why.holding import held_back, probed, was_full
from tcpkmon.formats.analysis.why.limits import (
    NUMBER,
    classify,
    in_flight,
    is_paced,
    runs_bbr,
    unsent,
)
from tcpkmon.formats.analysis.why.parting import Cuts, part
from tcpkmon.formats.analysis.why.quiet import mostly_quiet
from tcpkmon.formats.analysis.why.receiving import NEEDS, waits_of
from tcpkmon.formats.analysis.why.snapshots import Snapshots
from tcpkmon.formats.base.sequence import ahead_of, has_numbers, state_after
from tcpkmon.formats.base.tcp import Location, State

INTERVAL = np.dtype(
    [
        ("conn_id", "u8"), ("start_ns", "i8"), ("end_ns", "i8"), ("limit", "i1"),
        ("bytes_sent", "i8"), ("bytes_acked", "i8"), ("bytes_received", "i8"), ("records", "i8"),
        ("lost_records", "i8"), ("certain_ns", "i8"), ("cwnd_end", "u4"), ("inflight_end", "i4"),
        ("snd_wnd_end", "u4"), ("notsent_end", "i8"), ("srtt_end_us", "u4"), ("mss", "u4"),
        ("pacing_rate", "u8"), ("paceable", "i8"), ("ca_state", "i1"), ("place", "i4"),
    ]
)  # fmt: skip
"""A row of the table `intervals`. start_ns, end_ns: CLOCK_MONOTONIC. limit: a number of LIMITS.
cwnd_end in segments. lost_records: missing somewhere in the capture in that time; where it is not
0 the interval is not certain. certain_ns: of its steps in which none is missing, and each segment
was recorded. paceable: bytes
that the pacing gives, where that may be the limit. place: see Places."""
_BYTES = np.dtype(f"V{INTERVAL.itemsize}")
_SUMS = ("bytes_sent", "bytes_acked", "bytes_received", "records", "lost_records", "certain_ns",
         "paceable")  # fmt: skip
_NO_STEP = -1


@dataclass(frozen=True)
class Steps:
    """(n,) each: the times between the snapshots of a piece and those before them.

    limit: a number of LIMITS, _NO_STEP for a connection's first snapshot. start_ns, end_ns.
    sent, acked, received: bytes. lost: records that are missing in the capture in that time.
    receiving: a number of RECEIVING or NOTHING; None where the capture lacks what tells it.
    unseen: (k,) the rows of those of which segments were not recorded. limit is that of their ends;
    cuts: of those whose limit changes. paces: (n,) whether pacing lets nothing out at their ends.
    """

    limit: NDArray[np.int8]
    start_ns: Array
    end_ns: Array
    sent: Array
    acked: Array
    received: Array
    lost: Array
    receiving: NDArray[np.int8] | None
    unseen: Array
    cuts: Cuts
    paces: NDArray[np.bool_]


class Cutter:
    """Cuts snapshots, which come piece by piece, into intervals."""

    def __init__(self, places: Places | None = None) -> None:
        self.places = Places() if places is None else places
        self._kept, self._receiving = Kept(self.places), Kept(self.places)
        self._open = np.zeros(0, INTERVAL)

    def add(self, piece: Snapshots) -> Array:
        """The intervals that ended in this piece: a structured array of INTERVAL."""
        return self.add_grouped(Grouped(piece, self.places))[0] if len(piece) else self._open[:0]

    def add_grouped(self, piece: Grouped) -> tuple[Array, Steps]:
        """As add(), and the steps of the piece. The piece has the places of this Cutter."""
        steps = self._steps(piece)
        return _settle(self._join(_runs(piece, steps))), steps

    def finish(self) -> Array:
        """The intervals that were open at the end."""
        rest, self._open = self._open[self._open["records"] > 0], self._open[:0]
        return _settle(rest)

    def _steps(self, piece: Grouped) -> Steps:
        piece = clocks.without_false_probes(piece)
        now = {name: piece.columns[name] for name in ("snd_max", "snd_una", "rcv_nxt")}
        state, unnumbered = state_after(piece.columns), ~has_numbers(piece.columns)
        written = (now["snd_una"] + piece["snd_sb_cc"]).astype(np.uint32, copy=False)
        kept = self._kept
        paces = clocks.paces(piece)
        now |= {
            "time": piece.times, "lost": piece.lost, "unnumbered": unnumbered, "written": written,
            "busy": piece.columns.get("busy_us", unnumbered).astype(np.int64),
        }  # fmt: skip
        limit = classify(piece.columns, was_full(piece, kept), paces)
        now |= closing.carry(piece, state, limit, kept)
        before, no_step = kept.before(piece, now)
        sent, acked, received = (
            advance(now[name], before[name]) for name in ("snd_max", "snd_una", "rcv_nxt")
        )
        for bytes_of in (sent, acked, received):
            bytes_of[before["unnumbered"]] = 0
        opens = piece["location"] == Location.STATE_CHANGE
        opens = np.flatnonzero(opens & (state == State.ESTABLISHED))
        opens = opens[piece["state"][opens] == State.SYN_SENT]
        acked[opens] = piece["seg_len"][opens]
        sent[opens] = acked[opens] + advance(now["snd_max"][opens], now["snd_una"][opens])
        unseen = closing.find(piece, limit, before, now, sent, acked)
        limit[unseen.rows] = unseen.ended_by
        told, quiet = clocks.quiet(piece, limit, before)
        paces[quiet.rows[quiet.limit == NUMBER["pacing"]]] = True
        is_open = np.ones(len(piece), np.bool_)
        is_open[told] = False
        rows = mostly_quiet(piece, limit, before, acked, kept)
        limit[rows[is_open[rows]]] = NUMBER["idle"]
        rows, held = held_back(piece, limit, before, told)
        limit[rows] = NUMBER["nagle"]
        limit[probed(piece, limit, before, kept)] = NUMBER["recovery"]
        limit[clocks.lost_firsts(piece, limit)] = NUMBER["recovery"]
        tails, tail = clocks.lost_tails(piece, limit, before)
        limit[tails] = NUMBER["rto_wait"]
        limit[no_step] = _NO_STEP
        end = np.maximum(now["time"], before["time"])
        receiving = None
        if NEEDS in piece.columns:
            receiving = waits_of(piece, self._receiving, ~unnumbered)
        return Steps(limit, before["time"], end, sent, acked, received,
                     now["lost"] - before["lost"], receiving, unseen.rows,
                     Cuts.join(quiet, held, tail, unseen.cuts), paces)  # fmt: skip

    def _join(self, rows: Array) -> Array:
        """The runs of a piece go on where those before them ended. The last ones stay open."""
        self._open = grown(self._open, len(self.places), 0)
        if not len(rows):
            return rows
        place = rows["place"]
        firsts, lasts = runs(place)
        before = _pick(self._open, place[firsts])
        was_open = before["records"] > 0
        goes_on = was_open & (before["limit"] == rows["limit"][firsts])
        at, old = firsts[goes_on], before[goes_on]
        rows["start_ns"][at] = old["start_ns"]
        for name in _SUMS:
            rows[name][at] += old[name]
        is_last = np.zeros(len(rows), np.bool_)
        is_last[lasts] = True
        self._open.view(_BYTES)[place[is_last]] = rows.view(_BYTES)[is_last]
        ended = _pick(before, was_open & ~goes_on), _pick(rows, ~is_last)
        return np.concatenate([part.view(_BYTES) for part in ended]).view(INTERVAL)


def _pick(rows: Array, at: Array) -> Array:
    """Some rows. As plain bytes: numpy copies those of a structure field by field."""
    return rows.view(_BYTES)[at].view(INTERVAL)


def _runs(piece: Grouped, steps: Steps) -> Array:
    """The runs of one limit in a piece, as rows of INTERVAL."""
    names = ("limit", "start_ns", "end_ns", "sent", "acked", "received", "lost")
    of, parts = part(steps.cuts, {name: getattr(steps, name) for name in names})
    limit = parts["limit"]
    begins = piece.is_first[of]
    begins[1:] &= of[1:] != of[:-1]
    begins[1:] |= limit[1:] != limit[:-1]
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(begins)) - 1
    is_run = limit[starts] != _NO_STEP
    unseen = np.zeros(len(piece), np.bool_)
    unseen[steps.unseen] = True
    spans = np.where((parts["lost"] == 0) & ~unseen[of], parts["end_ns"] - parts["start_ns"], 0)
    paceable = np.zeros(len(spans), np.int64)
    at = np.flatnonzero(limit == NUMBER["pacing"])
    seconds = (parts["end_ns"][at] - parts["start_ns"][at]) / 1e9
    paceable[at] = np.minimum(piece["pacing_rate"][of[at]].astype(np.float64) * seconds, 1 << 60)
    # BBR always paces, in bursts that can be long: nothing else holds back what has room.
    is_sure = at[runs_bbr(piece.columns, of[at]) | steps.paces[of[at]]]
    paceable[is_sure] = parts["sent"][is_sure]
    sums = {
        "bytes_sent": parts["sent"], "bytes_acked": parts["acked"],
        "bytes_received": parts["received"], "lost_records": parts["lost"], "certain_ns": spans,
        "paceable": paceable,
    }  # fmt: skip
    rows = np.zeros(int(is_run.sum()), INTERVAL)
    for name, values in sums.items():
        rows[name] = np.add.reduceat(values, starts)[is_run]
    starts, ends = starts[is_run], ends[is_run]
    last = {name: values[of[ends]] for name, values in piece.columns.items() if name in _AT_END}
    rows["conn_id"], rows["place"] = last["conn_id"], piece.of_row[of[ends]]
    rows["limit"], rows["records"] = limit[starts], ends - starts + 1
    rows["start_ns"], rows["end_ns"] = parts["start_ns"][starts], parts["end_ns"][ends]
    rows["cwnd_end"], rows["snd_wnd_end"] = last["snd_cwnd_segs"], last["snd_wnd"]
    rows["inflight_end"] = np.clip(in_flight(last), -(1 << 31), (1 << 31) - 1)
    rows["notsent_end"], rows["srtt_end_us"] = unsent(last), last["srtt_us"]
    rows["mss"], rows["pacing_rate"] = last["mss"], last["pacing_rate"]
    rows["ca_state"] = np.clip(last["ca_state"], 0, 127)
    return rows


_AT_END = {
    "conn_id", "snd_cwnd_segs", "snd_wnd", "packets_out", "sacked_out", "lost_out", "retrans_out",
    "snd_max", "snd_una", "snd_sb_cc", "srtt_us", "mss", "pacing_rate", "ca_state",
}  # fmt: skip


def cut(pieces: Iterable[Snapshots]) -> Iterator[Array]:
    """All intervals of a capture, as arrays of INTERVAL; those of a connection in time order."""
    cutter = Cutter()
    for piece in pieces:
        yield cutter.add(piece)
    yield cutter.finish()


def advance(now: Array, before: Array) -> Array:
    """(n,) int64 how far 32-bit sequence numbers went forward; steps back are 0."""
    return np.maximum(ahead_of(now, before), 0)


def _settle(rows: Array) -> Array:
    """Whole intervals: those that were taken for paced, and were not, are unknown."""
    # Damaged times can go back: no interval ends before it begins, or is more certain than long.
    rows["end_ns"] = np.maximum(rows["end_ns"], rows["start_ns"])
    rows["certain_ns"] = np.minimum(rows["certain_ns"], rows["end_ns"] - rows["start_ns"])
    guessed = np.flatnonzero(rows["limit"] == NUMBER["pacing"])
    confirmed = is_paced(*(rows[name][guessed] for name in (
        "bytes_sent", "paceable", "pacing_rate", "mss")))  # fmt: skip
    rows["limit"][guessed[~confirmed]] = NUMBER["unknown"]
    return rows
