# SPDX-License-Identifier: Apache-2.0
"""What is told of each connection of a block: sums, counts, extremes, first and last values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array, is_one_of
from tcpkmon.formats.analysis.blocks import Block
from tcpkmon.formats.analysis.why import above, arrivals
from tcpkmon.formats.analysis.why.counts import percentiles, rates
from tcpkmon.formats.analysis.why.intervals import Steps, advance, cut_alive, until_closed
from tcpkmon.formats.analysis.why.limits import LIMITS, NUMBER
from tcpkmon.formats.analysis.why.losses import loss_rate_spread
from tcpkmon.formats.analysis.why.receiving import RECEIVING
from tcpkmon.formats.analysis.why.settling import is_settled
from tcpkmon.formats.base.sequence import ahead_of, state_after
from tcpkmon.formats.base.tcp import ARRIVED, CaState, Location, State

Values = dict[str, Array]
"""By name, (m,): of each connection of a block."""
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
FIN_LOCAL, FIN_REMOTE, GIVEN_UP, ACTIVE, PASSIVE = 1, 2, 3, 1, 2
_SENDS_OR_TAKES = (
    State.FIN_WAIT1, State.FIN_WAIT2, State.CLOSE_WAIT, State.LAST_ACK, State.CLOSING,
)  # fmt: skip
"""States after one end closed, in which data may still be sent or arrive."""


def fold(block: Block) -> tuple[Values, Array]:
    """The values of each connection, and the intervals of all, as cut() gives them."""
    block = until_closed(block)
    rows, steps = cut_alive(block)
    low, fall = _fall(block)
    values: Values = {"snd_wnd_fall": fall}
    _add_times(values, rows, len(block.groups))
    _add_bounds(values, block)
    _add_latest(values, block)
    above.add(values, block)
    _add_extremes(values, block)
    _add_events(values, block)
    _add_silence(values, block)
    values["loss_rate_spread"] = loss_rate_spread(block)
    _add_steps(values, block, steps, low)
    _add_rest(values, block)
    return values, rows


def _add_times(values: Values, rows: Array, count: int) -> None:
    place, spans = rows["place"].astype(np.int64), rows["end_ns"] - rows["start_ns"]
    for name, times in (("limit_ns", spans), ("certain_ns", rows["certain_ns"])):
        values[name] = np.zeros((count, len(LIMITS)), np.int64)
        np.add.at(values[name], (place, rows["limit"]), times)
    for name in ("bytes_sent", "bytes_acked", "bytes_received", "lost_records"):
        values[name] = np.zeros(count, np.int64)
        np.add.at(values[name], place, rows[name])


def _add_bounds(values: Values, block: Block) -> None:
    firsts, lasts = block.groups, block.lasts
    changes = block["location"][firsts] == Location.STATE_CHANGE
    old, to = block["state"][firsts], block["callvalue"][firsts]
    accepted = changes & (to == State.ESTABLISHED) & (old == State.SYN_RECV)
    begins = (changes & is_one_of(to, _OPENING)) | accepted
    values |= {
        "conn_id": block["conn_id"][firsts], "start_ns": block.times_ns[firsts],
        "end_ns": block.times_ns[lasts], "records": lasts - firsts + 1,
        "lost_before": np.where(begins, 0, block.lost[firsts]), "lost_until": block.lost[lasts],
        "seen": block.at[firsts], "arriving": arrivals.arriving(block),
    }  # fmt: skip
    # A connection that was accepted: what came with the SYN, and what was sent before its ACK.
    opens = firsts[accepted]
    values["bytes_received"][accepted] += block["seg_len"][opens]
    values["bytes_sent"][accepted] += advance(block["snd_max"][opens], block["snd_una"][opens])
    if block.seq is not None:
        values |= {"first_seq": block.seq[firsts], "last_seq": block.seq[lasts]}
    for name in GROWTHS:
        if name in block.rows:
            first, last = (block[name][rows].astype(np.uint64) for rows in (firsts, lasts))
            values[name] = np.maximum((last - first).astype(np.int64), 0)


def _add_latest(values: Values, block: Block) -> None:
    has_own = state_after(block.rows) != State.SYN_SENT
    for name in _LATEST:
        if name not in block.rows:
            continue
        column = block[name]
        values[name] = column[block.lasts]
        if name in ("snd_una", "snd_max"):  # 0 may be one
            told = has_own | (column != 0)
        else:
            is_told = _is_known if name in ("laddr", "raddr") else _is_told
            if is_told(values[name]).all():
                continue
            told = is_told(column)
        at = block.last(told)[block.lasts]
        values[name] = np.where(at >= 0, column[at], np.zeros(1, column.dtype))


def _add_extremes(values: Values, block: Block) -> None:
    for name, column in _LARGEST.items():
        if column in block.rows:
            values[name] = np.maximum.reduceat(block[column], block.groups)
    for name, column in _SMALLEST.items():
        some = block[column]
        if not some.all():
            some = np.where(some == 0, np.uint32(NONE_32), some)
        values[name] = np.minimum.reduceat(some, block.groups).astype(np.int64)
    srtt, least = block["srtt_us"].astype(np.int64), block["min_rtt_us"].astype(np.int64)
    known = is_settled(block) & (srtt > 0)
    for name, shares, wanted, micros in (
        ("srtt", (50, 95, 99), known, srtt),
        # What round trips take beside the path, of each record.
        ("queue", (95,), known & (least > 0) & (least != NONE_32), np.maximum(srtt - least, 0)),
    ):
        at: Array | slice = slice(None) if wanted.all() else np.flatnonzero(wanted)
        found = percentiles(block.of_row[at], micros[at], len(block.groups), shares)
        values |= {f"{name}_p{share}_us": one for share, one in zip(shares, found, strict=True)}
    shut = (block["snd_wnd"] == 0) & ~is_one_of(block["state"], _OPENING)
    values["zero_window_count"] = _count(block, shut & block.before(block["snd_wnd"] > 0, False))


def _fall(block: Block) -> tuple[Array, Array]:
    """(n,) whether the peer's window is below half of its largest so far; (m,) by how much it was
    below that at most: data that was not read."""
    window = block["snd_wnd"].astype(np.int64)
    rank = block.of_row << 32
    # The largest of a connection only: those of the next one have a larger rank.
    highest = np.maximum.accumulate(rank + window) - rank
    return 2 * window < highest, np.maximum.reduceat(highest - window, block.groups)


def _count(block: Block, mask: Array) -> Array:
    """(m,) of how many of its rows it holds."""
    return np.bincount(block.of_row[np.flatnonzero(mask)], minlength=len(block.groups))


def _add_events(values: Values, block: Block) -> None:
    count = len(block.groups)
    at = np.flatnonzero(block["location"] != Location.SEGMENT_RECEIVED)
    place, location = block.of_row[at], block["location"][at].astype(np.int64)
    callvalue, state = block["callvalue"][at].astype(np.int64), block["state"][at]
    for name, number in _EVENTS.items():
        values[name] = np.bincount(place[location == number], minlength=count)
    again = location == Location.RETRANSMIT
    ca_state = block["ca_state"][at]
    opening = is_one_of(state, _OPENING)
    causes = {
        "syn_retrans": opening, "retrans_rto": ~opening & (ca_state == CaState.LOSS),
        "retrans_fast": ~opening & (ca_state == CaState.RECOVERY),
        "retrans_tlp": ~opening & (ca_state < CaState.RECOVERY),
    }  # fmt: skip
    sizes = np.where(again, block["seg_len"][at].astype(np.int64), 0)
    # A record can be of several segments, which the kernel sent at once.
    segments = np.maximum(-(-sizes // np.maximum(block["mss"][at].astype(np.int64), 1)), 1)
    for name, mask in {"segments_retransmitted": True, **causes}.items():
        values[name] = _sum(place, np.where(again & mask, segments, 0), count)
    values["retrans_len"] = _sum(place, sizes, count)
    recovers = (location == Location.CONG_STATE) & (callvalue == CaState.RECOVERY)
    values["recoveries"] = np.bincount(place[recovers], minlength=count)
    for name, number in _SEEN.items():
        values[name] = np.bincount(place[location == number], minlength=count) > 0
    failed = location == Location.SOCKET_ERROR
    # The kernel reports what an ICMP message said while the program was in connect() without a
    # number: only a request for SO_ERROR gets that.
    denied = failed & (callvalue == 0) & (state == State.SYN_SENT)
    values["denied"] = np.bincount(place[denied], minlength=count) > 0
    failed &= callvalue != 0
    values["errno"] = np.zeros(count, np.int64)
    values["errno"][place[failed]] = callvalue[failed]
    changes = np.flatnonzero(location == Location.STATE_CHANGE)
    _add_changes(values, block, at[changes], state[changes], callvalue[changes])


def _sum(place: Array, numbers: Array, count: int) -> NDArray[np.int64]:
    found = np.zeros(count, np.int64)
    np.add.at(found, place, numbers)
    return found


def _add_changes(values: Values, block: Block, at: Array, old: Array, new: Array) -> None:
    """Changes of state: who opened and who closed, and where the data ended."""
    place = block.of_row[at]

    def last_of(chosen: Array, told: Any, kind: Any = np.int64) -> Array:
        """(m,) what the last of these changes tells; 0 without one."""
        found = np.zeros(len(block.groups), kind)
        found[place[chosen]] = told
        return found

    calls = new == State.SYN_SENT
    told = calls | ((new == State.ESTABLISHED) & (old != State.SYN_SENT))
    opened = new == State.ESTABLISHED
    closes = (old == State.ESTABLISHED) & is_one_of(new, (State.FIN_WAIT1, State.CLOSE_WAIT))
    closes |= (old == State.SYN_SENT) & (new == State.CLOSE)
    by = np.where(new[closes] == State.FIN_WAIT1, FIN_LOCAL, FIN_REMOTE)
    by[new[closes] == State.CLOSE] = GIVEN_UP
    # Before the FIN is queued: the end of what the application wrote. MPTCP sets a state twice.
    ends = is_one_of(new, (State.FIN_WAIT1, State.LAST_ACK)) & (new != old)
    data_end = block["snd_una"][at] + block["snd_sb_cc"][at].astype(np.uint32)
    waits = new == State.FIN_WAIT2
    waited = np.where(waits, np.arange(len(at)), -1)
    since = np.maximum.accumulate(waited) if len(at) else waited
    has_waited = (since >= 0) & (place[since] == place)
    expected = np.where(has_waited, block["rcv_nxt"][at][since], 0)
    came = (old == State.FIN_WAIT2) & (new == State.CLOSE) & (block["rcv_nxt"][at] != expected)
    came |= is_one_of(new, (State.CLOSE_WAIT, State.CLOSING))
    values |= {
        "role": last_of(told, np.where(calls[told], ACTIVE, PASSIVE), np.int8),
        "established_ns": last_of(opened, block.times_ns[at[opened]]),
        "closed_by": last_of(closes, by, np.int8),
        "data_end": last_of(ends, data_end[ends]), "has_data_end": last_of(ends, True, np.bool_),
        "fin_received": last_of(came, True, np.bool_),
    }  # fmt: skip


def _add_silence(values: Values, block: Block) -> None:
    """Timeouts of the same data one after the other, and when the last segment arrived."""
    arrived = is_one_of(block["location"], ARRIVED)
    values["heard_ns"] = _last_of(block, arrived, block.times_ns)
    opens = _last_of(block, is_one_of(block["state"], _OPENING), block.times_ns)
    values["opened_ns"] = np.where(opens > 0, opens, block.times_ns[block.groups])
    has_data = np.flatnonzero(arrived & (block["seg_len"] > 0))
    values |= arrivals.quiet(block, values["opened_ns"], has_data)
    is_rto = (block["location"] == Location.RETRANSMIT) & (block["ca_state"] == CaState.LOSS)
    values["rto_bytes"] = _last_of(block, is_rto, block["seg_len"].astype(np.int64))
    at = np.flatnonzero(block["location"] == _EVENTS["rto_count"])
    place, una = block.of_row[at], block["snd_una"][at]
    begins = np.append(True, (place[1:] != place[:-1]) | (una[1:] != una[:-1]))[: len(at)]
    number = np.arange(len(at))
    since = np.maximum.accumulate(np.where(begins, number, 0))
    for name, told in (("rto_una", una), ("rto_run", number - since + 1),
                       ("rto_since_ns", block.times_ns[at[since]])):  # fmt: skip
        values[name] = np.zeros(len(block.groups), np.int64)
        values[name][place] = told


def _last_of(block: Block, mask: Array, column: Array) -> Array:
    """(m,) the value of the last row in which it holds; 0 without one."""
    found = np.zeros(len(block.groups), column.dtype)
    at = np.flatnonzero(mask)
    found[block.of_row[at]] = column[at]
    return found


def _add_steps(values: Values, block: Block, steps: Steps, low: Array) -> None:
    moved = np.flatnonzero((steps.acked > 0) | (steps.received > 0))
    spans = steps.end_ns - steps.start_ns
    values |= rates(block, moved, steps)
    values["late_ack_ns"] = _late(block, steps)
    values["acked_most"] = np.maximum.reduceat(steps.acked, block.groups)
    at = np.flatnonzero(steps.limit == NUMBER["pacing"])
    paced = np.minimum(block["pacing_rate"][at], np.uint64(NO_RATE)).astype(np.int64)
    values["pacing_rate_min"] = np.full(len(block.groups), NO_RATE)
    values["pacing_rate_max"] = np.zeros(len(block.groups), np.int64)
    np.minimum.at(values["pacing_rate_min"], block.of_row[at], paced)
    np.maximum.at(values["pacing_rate_max"], block.of_row[at], paced)
    values["low_ns"] = np.add.reduceat(np.where(low & (steps.lost == 0), spans, 0), block.groups)
    if steps.receiving is not None:
        for end, mine in (("ns", spans), ("certain_ns", np.where(steps.lost, 0, spans))):
            for number, name in enumerate(RECEIVING):
                held = np.where(steps.receiving == number, mine, 0)
                values[f"{name}.{end}"] = np.add.reduceat(held, block.groups)


def _add_rest(values: Values, block: Block) -> None:
    """Of the end: what was written and not sent, and whether more may have been."""
    last = state_after(block.rows)[block.lasts]
    has_data = ~is_one_of(block["state"], (State.SYN_SENT, State.CLOSE))
    live = block.last(has_data)[block.lasts]
    written = block["snd_una"][live] + block["snd_sb_cc"][live].astype(np.uint32)
    written = np.where(values["has_data_end"], values["data_end"].astype(np.uint32), written)
    left = np.maximum(ahead_of(written, block["snd_max"][live]), 0)
    is_over = ~is_one_of(last, (State.ESTABLISHED, State.CLOSE_WAIT, *_OPENING))
    values["bytes_unsent"] = np.where((live >= 0) & is_over, left, 0)
    values["may_go_on"] = is_one_of(last, _SENDS_OR_TAKES)


def _late(block: Block, steps: Steps) -> Array:
    """(m,) times that a full window waited for an ACK, much longer than the path takes."""
    at = np.flatnonzero((steps.end_ns - steps.start_ns > _LATE_NS) & (steps.lost == 0))
    by_ack = block["location"][at] == Location.SEGMENT_RECEIVED
    at = at[is_one_of(steps.limit[at], _BY_ACK) & by_ack]
    spans = steps.end_ns[at] - steps.start_ns[at]
    least = block["min_rtt_us"][at].astype(np.int64) * 1000
    mean = block["srtt_us"][at].astype(np.int64) * 1000
    is_late = (spans > 2 * least + _LATE_NS) & (2 * spans > mean)
    return _sum(block.of_row[at[is_late]], spans[is_late], len(block.groups))


def _is_told(values: Array) -> NDArray[np.bool_]:
    """(n,) whether a value is neither 0 nor empty."""
    return np.asarray(values != np.zeros(1, values.dtype))


def _is_known(addresses: Array) -> NDArray[np.bool_]:
    """(n,) whether an address is neither :: nor 0.0.0.0, v4-mapped."""
    words = np.ascontiguousarray(addresses).view(np.uint32).reshape(len(addresses), -1)
    return np.asarray((words[:, [0, 1, 3]] != 0).any(axis=1))
