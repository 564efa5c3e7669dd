# SPDX-License-Identifier: Apache-2.0
"""Adds up what is told of each connection: sums, counts, extremes, first and last values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.why import above, arrivals
from tcpkmon.formats.analysis.why.counts import Counts, Rates
from tcpkmon.formats.analysis.why.grouping import Grouped, Kept, Places
from tcpkmon.formats.analysis.why.intervals import Cutter, Steps, advance
from tcpkmon.formats.analysis.why.limits import LIMITS, NUMBER
from tcpkmon.formats.analysis.why.losses import LossRates
from tcpkmon.formats.analysis.why.receiving import RECEIVING
from tcpkmon.formats.analysis.why.settling import is_settled
from tcpkmon.formats.base.sequence import state_after
from tcpkmon.formats.base.tcp import ARRIVED, CaState, Location, State

NONE_32 = (1 << 32) - 1
NO_RATE = 1 << 62
_EVENTS = {
    "rto_count": Location.RTO, "loss_probes": Location.LOSS_PROBE,
    "zero_window_probes": Location.ZERO_WINDOW_PROBE, "undo_count": Location.CWND_UNDO,
    "reo_timeouts": Location.REO_TIMEOUT, "rcvq_full": Location.RCVQ_FULL,
}  # fmt: skip
"""Locations that are counted."""
_SEEN = {
    "rst_sent": Location.RESET_SENT, "rst_received": Location.RESET_RECEIVED,
    "destroyed": Location.DESTROY,
}  # fmt: skip
"""And those of which it counts that they were there."""
_OPENING = (State.SYN_SENT, State.SYN_RECV)
_LARGEST = {
    "cwnd_max": "snd_cwnd_segs", "ssthresh_max": "snd_ssthresh", "snd_wnd_max": "snd_wnd",
    "rcv_wnd_max": "rcv_wnd", "rcvbuf": "sk_rcvbuf", "sndbuf": "sb_hiwat",
    "reader_behind_max": "rcv_sb_cc", "mss": "mss", "srtt_max_us": "srtt_us",
    "reordering_max": "reordering", "snd_wscale": "snd_wscale", "rcv_wscale": "rcv_wscale",
}  # fmt: skip
_SMALLEST = {
    "cwnd_min": "snd_cwnd_segs", "ssthresh_min": "snd_ssthresh", "snd_wnd_min": "snd_wnd",
    "rcv_wnd_min": "rcv_wnd", "srtt_min_us": "srtt_us", "min_rtt_us": "min_rtt_us",
}  # fmt: skip
"""Of values that are not 0; NONE_32 where there is none."""
GROWTHS = (
    "bytes_retrans", "total_retrans", "dsack_dups", "delivered", "delivered_ce", "rcv_ooopack",
    "segs_in", "segs_out", "data_segs_in", "data_segs_out", "busy_us", "rwnd_limited_us",
    "sndbuf_limited_us", "lost", "reord_seen",
)  # fmt: skip
"""The kernel's counters: their growth from the first snapshot to the last."""
_LATEST = ("lport", "rport", "pid", "netns", "cgroup", "family", "snd_una", "snd_max", "comm",
           "ca_name", "laddr", "raddr")  # fmt: skip
"""Of these the last value that is not 0 or empty."""
_LATE_NS = 10_000_000
_BY_ACK = [NUMBER[name] for name in ("cwnd", "slow_start", "nagle")]
"""What was in flight was sent at the beginning of such a time."""
FIN_LOCAL, FIN_REMOTE, ACTIVE, PASSIVE = 1, 2, 1, 2


class Fold(Kept):
    """Reads pieces of snapshots, then intervals; `values` has (count,) arrays by name."""

    def __init__(self) -> None:
        super().__init__(Places())
        self.cutter = Cutter(self.places)
        self.names: set[str] = set()
        """The columns that the capture has."""
        self.srtt, self.queue, self.rates = Counts(), Counts(), Rates(self.places)
        self.loss_rates = LossRates(self.places)

    def add(self, piece: Any) -> Array:
        """The next snapshots. Returns the intervals that ended in them."""
        if not len(piece):
            return self.cutter.add(piece)
        grouped = Grouped(piece, self.places)
        self.names.update(piece.columns)
        self._add_bounds(grouped, piece)
        self._add_latest(grouped)
        above.add(self.of, grouped)
        low = self._add_extremes(grouped)
        self._add_events(grouped)
        self._add_silence(grouped)
        self.loss_rates.add(grouped)
        rows, steps = self.cutter.add_grouped(grouped)
        self._add_steps(grouped, steps, low)
        self._add_times(rows)
        return rows

    def finish(self) -> Array:
        """The intervals that were open at the end."""
        rows = self.cutter.finish()
        self.cutter = Cutter(self.places)  # what it kept of each connection is not needed any more
        self._add_times(rows)
        self.grow()
        return rows

    def _add_bounds(self, piece: Grouped, raw: Any) -> None:
        places, firsts, lasts = piece.places, piece.firsts, piece.lasts
        seen = self.of("records")[places] > 0
        new = places[~seen]
        at = firsts[~seen]
        self.of("conn_id", np.uint64)[new] = piece["conn_id"][at]
        self.of("start_ns")[new] = piece.times[at]
        changes = piece["location"][at] == Location.STATE_CHANGE
        old, to = piece["state"][at], piece["callvalue"][at]
        begins = changes & (np.isin(to, _OPENING) | (
            (to == State.ESTABLISHED) & (old == State.SYN_RECV)))  # fmt: skip
        self.of("lost_before")[new] = np.where(begins, 0, piece.lost[at])
        self.of("lost_until")[places] = piece.lost[lasts]
        ends = self.of("end_ns")
        ends[places] = np.maximum(ends[places], piece.times[lasts])
        self.values["records"][places] += lasts - firsts + 1
        # A connection that was accepted: what came with the SYN, and what was sent before its ACK.
        opens = at[changes & (to == State.ESTABLISHED) & (old == State.SYN_RECV)]
        place = piece.of_row[opens]
        self.of("bytes_received")[place] += piece["seg_len"][opens]
        self.of("bytes_sent")[place] += advance(piece["snd_max"][opens], piece["snd_una"][opens])
        arrivals.add_last(self.of, piece)
        if raw.seq is not None:
            seq = raw.seq if piece.order is None else raw.seq[piece.order]
            self.of("first_seq")[new] = seq[at]
            self.of("last_seq")[places] = seq[lasts]
        for name in GROWTHS:
            if name in piece.columns:
                values = piece[name]
                self.of(f"{name}.first", np.uint64)[new] = values[at]
                self.of(f"{name}.last", np.uint64)[places] = values[lasts]

    def _add_latest(self, piece: Grouped) -> None:
        has_own = state_after(piece.columns) != State.SYN_SENT
        for name in _LATEST:
            if name not in piece.columns:
                continue
            mine, values = self.of(name, piece[name].dtype), piece[name]
            if name in ("snd_una", "snd_max"):  # 0 may be one
                at = np.flatnonzero(has_own | (values != 0))
                mine[piece.of_row[at]] = values[at]
                continue
            lasts = values[piece.lasts]
            is_told = _is_known if name in ("laddr", "raddr") else _is_told
            told = is_told(lasts)
            if told.all():
                mine[piece.places] = lasts
            else:
                at = np.flatnonzero(is_told(values))
                mine[piece.of_row[at]] = values[at]  # of several the last one stays

    def _add_extremes(self, piece: Grouped) -> Array:
        """Returns (n,) whether the peer's window is below half of its largest so far."""
        places = piece.places
        low = self._add_fall(piece)
        for name, column in _LARGEST.items():
            if column in piece.columns:
                self._raise(name, piece, piece[column])
        for name, column in _SMALLEST.items():
            values = piece[column]
            if not values.all():
                values = np.where(values == 0, np.uint32(NONE_32), values)
            found = np.minimum.reduceat(values, piece.firsts)
            mine = self.of(name, np.int64, NONE_32)
            mine[places] = np.minimum(mine[places], found)
        srtt = np.where(is_settled(piece, self), piece["srtt_us"], 0)
        told = np.flatnonzero(srtt)
        if len(told) == len(srtt):
            self.srtt.add(piece.of_row, srtt)
        else:
            self.srtt.add(piece.of_row[told], srtt[told])
        self._add_queue(piece, srtt)
        shut = (piece["snd_wnd"] == 0) & ~np.isin(piece["state"], _OPENING)
        was_open = piece.before(piece["snd_wnd"] > 0, self.of("window_open", np.bool_))
        self._count("zero_window_count", piece.of_row[shut & was_open])
        return low

    def _add_queue(self, piece: Grouped, srtt: Array) -> None:
        """What round trips take beside the path. Of each record: a difference of percentiles has
        the error of both, which can be more than it."""
        least = piece["min_rtt_us"]
        at = np.flatnonzero((srtt > 0) & (least > 0) & (least != NONE_32))
        place = piece.of_row[at]
        more = srtt[at].astype(np.int64) - least[at]
        some = more > 0
        np.add.at(self.of("queue_none"), place[~some], 1)
        place, more = place[some], more[some]
        self.queue.add(place, more)
        np.minimum.at(self.of("queue_min_us", np.int64, NONE_32), place, more)
        np.maximum.at(self.of("queue_max_us"), place, more)

    def _add_fall(self, piece: Grouped) -> Array:
        """By how much the peer's window is below its largest so far: data that was not read."""
        window, largest = piece["snd_wnd"].astype(np.int64), self.of("snd_wnd_max")[piece.places]
        rank = np.cumsum(piece.is_first, dtype=np.int64) << 32
        # The largest of a connection only: those of the next one have a larger rank.
        highest = np.maximum.accumulate(rank + window) - rank
        highest = np.maximum(highest, piece.spread(largest))
        self._raise("snd_wnd_fall", piece, highest - window)
        low: Array = 2 * window < highest
        return low

    def _raise(self, name: str, piece: Grouped, values: Array) -> None:
        """To the largest one of each connection, if it was lower."""
        mine, most = self.of(name), np.maximum.reduceat(values, piece.firsts)
        mine[piece.places] = np.maximum(mine[piece.places], most)

    def _count(self, name: str, places: Array) -> None:
        np.add.at(self.of(name), places, 1)

    def _add_events(self, piece: Grouped) -> None:
        at = np.flatnonzero(piece["location"] != Location.SEGMENT_RECEIVED)
        place, location = piece.of_row[at], piece["location"][at].astype(np.int64)
        callvalue, state = piece["callvalue"][at].astype(np.int64), piece["state"][at]
        for name, number in _EVENTS.items():
            self._count(name, place[location == number])
        again = location == Location.RETRANSMIT
        ca_state = piece["ca_state"][at]
        opening = np.isin(state, _OPENING)
        causes = {
            "syn_retrans": opening, "retrans_rto": ~opening & (ca_state == CaState.LOSS),
            "retrans_fast": ~opening & (ca_state == CaState.RECOVERY),
            "retrans_tlp": ~opening & (ca_state < CaState.RECOVERY),
        }  # fmt: skip
        sizes = np.where(again, piece["seg_len"][at].astype(np.int64), 0)
        # A record can be of several segments, which the kernel sent at once.
        segments = np.maximum(-(-sizes // np.maximum(piece["mss"][at].astype(np.int64), 1)), 1)
        for name, mask in {"segments_retransmitted": True, **causes}.items():
            chosen = again & mask
            np.add.at(self.of(name), place[chosen], segments[chosen])
        np.add.at(self.of("retrans_len"), place, sizes)
        recovers = (location == Location.CONG_STATE) & (callvalue == CaState.RECOVERY)
        self._count("recoveries", place[recovers])
        for name, number in _SEEN.items():
            self.of(name, np.bool_)[place[location == number]] = True
        failed = (location == Location.SOCKET_ERROR) & (callvalue != 0)
        self.of("errno")[place[failed]] = callvalue[failed]
        changes = np.flatnonzero(location == Location.STATE_CHANGE)
        if len(changes):
            self._add_changes(piece, at[changes], place[changes], state[changes],
                              callvalue[changes])  # fmt: skip

    def _add_changes(self, piece: Grouped, at: Array, place: Array, old: Array, new: Array) -> None:
        """Changes of state: who opened and who closed, and where the data ended."""
        calls = new == State.SYN_SENT
        told = calls | ((new == State.ESTABLISHED) & (old != State.SYN_SENT))
        self.of("role", np.int8)[place[told]] = np.where(calls[told], ACTIVE, PASSIVE)
        opened = new == State.ESTABLISHED
        self.of("established_ns")[place[opened]] = piece.times[at[opened]]
        closes = (old == State.ESTABLISHED) & np.isin(new, (State.FIN_WAIT1, State.CLOSE_WAIT))
        by = np.where(new[closes] == State.FIN_WAIT1, FIN_LOCAL, FIN_REMOTE)
        self.of("closed_by", np.int8)[place[closes]] = by
        # Before the FIN is queued: the end of what the application wrote. MPTCP sets a state twice.
        ends = np.isin(new, (State.FIN_WAIT1, State.LAST_ACK)) & (new != old)
        data_end = piece["snd_una"][at] + piece["snd_sb_cc"][at].astype(np.uint32)
        self.of("data_end")[place[ends]] = data_end[ends]
        self.of("has_data_end", np.bool_)[place[ends]] = True
        waits = new == State.FIN_WAIT2
        self.of("fin_wait_rcv")[place[waits]] = piece["rcv_nxt"][at[waits]]
        ended = (old == State.FIN_WAIT2) & (new == State.CLOSE)
        ended[ended] = piece["rcv_nxt"][at[ended]] != self.values["fin_wait_rcv"][place[ended]]
        came = ended | np.isin(new, (State.CLOSE_WAIT, State.CLOSING))
        self.of("fin_received", np.bool_)[place[came]] = True

    def _add_silence(self, piece: Grouped) -> None:
        """Timeouts of the same data one after the other, and when the last segment arrived."""
        arrived = np.flatnonzero(np.isin(piece["location"], ARRIVED))
        heard = self.of("heard_ns")
        heard[piece.of_row[arrived]] = piece.times[arrived]
        arrivals.add_quiet(self.of, piece, arrived[piece["seg_len"][arrived] > 0])
        is_rto = (piece["location"] == Location.RETRANSMIT) & (piece["ca_state"] == CaState.LOSS)
        again = np.flatnonzero(is_rto)
        self.of("rto_bytes")[piece.of_row[again]] = piece["seg_len"][again]
        una, run, since = self.of("rto_una"), self.of("rto_run"), self.of("rto_since_ns")
        for at in np.flatnonzero(piece["location"] == _EVENTS["rto_count"]).tolist():
            place, now = piece.of_row[at], int(piece["snd_una"][at])
            if una[place] != now or not run[place]:
                una[place], run[place], since[place] = now, 0, piece.times[at]
            run[place] += 1

    def _add_steps(self, piece: Grouped, steps: Steps, low: Array) -> None:
        moved = np.flatnonzero((steps.acked > 0) | (steps.received > 0))
        places = piece.of_row[moved]
        since = steps.end_ns[moved] - self.values["start_ns"][places]
        self.rates.add(places, since, steps.acked[moved], steps.received[moved])
        self._add_late(piece, steps)
        self._raise("acked_most", piece, steps.acked)
        at = np.flatnonzero(steps.limit == NUMBER["pacing"])
        rates = np.minimum(piece["pacing_rate"][at], np.uint64(NO_RATE)).astype(np.int64)
        np.minimum.at(self.of("pacing_rate_min", fill=NO_RATE), piece.of_row[at], rates)
        np.maximum.at(self.of("pacing_rate_max"), piece.of_row[at], rates)
        shut = np.where(low & (steps.lost == 0), steps.end_ns - steps.start_ns, 0)
        self.of("low_ns")[piece.places] += np.add.reduceat(shut, piece.firsts)
        if steps.receiving is not None:
            spans = steps.end_ns - steps.start_ns
            for end, mine in (("ns", spans), ("certain_ns", np.where(steps.lost, 0, spans))):
                for number, name in enumerate(RECEIVING):
                    held = np.where(steps.receiving == number, mine, 0)
                    self.of(f"{name}.{end}")[piece.places] += np.add.reduceat(held, piece.firsts)

    def _add_late(self, piece: Grouped, steps: Steps) -> None:
        """Times that a full window waited for an ACK, much longer than the path takes."""
        late = self.of("late_ack_ns")
        at = np.flatnonzero((steps.end_ns - steps.start_ns > _LATE_NS) & (steps.lost == 0))
        by_ack = piece["location"][at] == Location.SEGMENT_RECEIVED
        at = at[np.isin(steps.limit[at], _BY_ACK) & by_ack]
        spans = steps.end_ns[at] - steps.start_ns[at]
        least = piece["min_rtt_us"][at].astype(np.int64) * 1000
        mean = piece["srtt_us"][at].astype(np.int64) * 1000
        is_late = (spans > 2 * least + _LATE_NS) & (2 * spans > mean)
        np.add.at(late, piece.of_row[at[is_late]], spans[is_late])

    def _add_times(self, rows: Array) -> None:
        """Intervals of connections whose snapshots were added."""
        place, spans = rows["place"].astype(np.int64), rows["end_ns"] - rows["start_ns"]
        for name, times in (("limit_ns", spans), ("certain_ns", rows["certain_ns"])):
            held = self.of(name, (np.int64, len(LIMITS)))
            np.add.at(held, (place, rows["limit"]), times)
        for name in ("bytes_sent", "bytes_acked", "bytes_received", "lost_records"):
            np.add.at(self.of(name), place, rows[name])


def _is_told(values: Array) -> NDArray[np.bool_]:
    """(n,) whether a value is neither 0 nor empty."""
    return np.asarray(values != np.zeros(1, values.dtype))


def _is_known(addresses: Array) -> NDArray[np.bool_]:
    """(n,) whether an address is neither :: nor 0.0.0.0, v4-mapped."""
    words = np.ascontiguousarray(addresses).view(np.uint32).reshape(len(addresses), -1)
    return np.asarray((words[:, [0, 1, 3]] != 0).any(axis=1))


def fold(pieces: Iterable[Any], each: Any = None) -> Fold:
    """All pieces of a capture in one pass. each: called with the intervals of each piece."""
    found = Fold()
    for piece in pieces:
        rows = found.add(piece)
        if each is not None:
            each(rows)
    rows = found.finish()
    if each is not None:
        each(rows)
    return found
