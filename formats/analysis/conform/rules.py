# SPDX-License-Identifier: Apache-2.0
"""What a rule is: a sentence of an RFC, and the test of it on records of a connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.sequence import ahead_of
from tcpkmon.formats.base.tcp import CaState, Location, State

Array = NDArray[np.int64]
Mask = NDArray[np.bool_]

RENO, CUBIC = 1, 2
"""The column `ca`, made of ca_name: 0 for another algorithm."""


@dataclass(frozen=True)
class Step:
    """n records of connections, and for each the record before it, in columns of int64.

    was: the record before. entry: that of the last reduction of the window that was not undone;
    first: the first one after the handshake. All of one connection; where there is none, has_...
    is false, and the values are any. after_rto: the record directly before is that of the
    retransmission timer; was_after_rto: so it is of `was`. time_ns, before_ns: of now and was.
    """

    now: Mapping[str, Array]
    was: Mapping[str, Array]
    entry: Mapping[str, Array]
    first: Mapping[str, Array]
    after_rto: Mask
    was_after_rto: Mask
    time_ns: Array
    before_ns: Array

    @property
    def established(self) -> Mask:
        """Both records are of an established connection."""
        now, was = self.now["state"], self.was["state"]
        both: Mask = (now == State.ESTABLISHED) & (was == State.ESTABLISHED)
        return both

    @property
    def open(self) -> Mask:
        """Besides, no loss or reordering is under way."""
        calm: Mask = (self.now["ca_state"] == CaState.OPEN) & (self.was["ca_state"] == CaState.OPEN)
        same: Mask = self.established & calm & (self.now["mss"] == self.was["mss"])
        return same

    @property
    def sent(self) -> Array:
        """Bytes sent for the first time in between."""
        return ahead_of(self.now["snd_max"], self.was["snd_max"])

    @property
    def loss_based(self) -> Mask:
        """The algorithm is reno or cubic."""
        return self.now["ca"] > 0

    def into(self, *states: int) -> Mask:
        """Records of a change into one of these congestion states, where no reduction is under
        way."""
        calm: Mask = self.now["ca_state"] <= CaState.DISORDER
        into: Mask = calm & (self.now["location"] == Location.CONG_STATE)
        return into & np.isin(self.now["callvalue"], states)


@dataclass(frozen=True)
class Rule:
    """judge: of a step, where the rule applies and where it is broken. deviations: what Linux does
    otherwise, and where its source says so; the rule allows that.

    needs: the columns that it looks at, beside ALWAYS. across: it needs was, entry or first, and
    no record lost since. locations: those that must be recorded. undo: reductions that are undone
    must be seen. shows: columns that a break shows.
    """

    name: str
    rfc: str
    quote: str
    judge: Callable[[Step], tuple[Mask, Mask]]
    deviations: str = ""
    needs: tuple[str, ...] = ()
    across: str = "was"
    locations: tuple[str, ...] = ("SEGMENT_RECEIVED", "CONG_STATE", "STATE_CHANGE")
    undo: bool = False
    shows: tuple[str, ...] = ()


# RFC 9293, Transmission Control Protocol: sequence numbers and the peer's window.

def _window(step: Step) -> tuple[Mask, Mask]:
    """The window at the time of sending is that of one of the two records: one segment, at most,
    was processed in between."""
    una = step.was["snd_una"]
    edge = np.maximum(step.was["snd_wnd"], ahead_of(step.now["snd_una"], una) + step.now["snd_wnd"])
    return step.established & (step.sent > 0), ahead_of(step.now["snd_max"], una) > edge


def _order(step: Step) -> tuple[Mask, Mask]:
    now, was = step.now, step.was
    back = ahead_of(now["snd_una"], was["snd_una"]) < 0
    back |= ahead_of(now["rcv_nxt"], was["rcv_nxt"]) < 0
    return step.established, back | (step.sent < 0) | (ahead_of(now["snd_max"], now["snd_una"]) < 0)


def _acked(step: Step) -> tuple[Mask, Mask]:
    moved = ahead_of(step.now["snd_una"], step.was["snd_una"]) > 0
    return step.established & moved, ahead_of(step.now["snd_una"], step.was["snd_max"]) > 0


def _retransmit(step: Step) -> tuple[Mask, Mask]:
    now = step.now
    known = ahead_of(now["seg_seq"], now["snd_una"]) < 0
    unsent = ahead_of(now["seg_seq"], now["snd_max"]) >= 0
    again = (now["location"] == Location.RETRANSMIT) & (now["state"] == State.ESTABLISHED)
    return again, known | unsent


RFC9293 = (
    Rule(
        "window", "RFC 9293, 3.8.6",
        "The sending TCP endpoint packages the data to be transmitted into segments that fit the "
        "current window",
        _window,
        "The zero window probe carries a byte that the peer has acknowledged, in place of new data "
        "(comment in tcp_xmit_probe_skb()). A peer that takes its window back leaves what was sent "
        "beyond it.",
        shows=("snd_una", "snd_max", "snd_wnd"),
    ),
    Rule(
        "order", "RFC 9293, 3.4",
        "SND.UNA = oldest unacknowledged sequence number; SND.NXT = next sequence number to be "
        "sent",
        _order,
        "TCP_REPAIR sets the numbers of a socket that is restored (tcp_repair_options_est()): a "
        "connection that is restored is not judged, as it begins established.",
        shows=("snd_una", "snd_max", "rcv_nxt"),
    ),
    Rule(
        "acked", "RFC 9293, 3.10.7.4",
        "If the ACK acks something not yet sent (SEG.ACK > SND.NXT), then send an ACK, drop the "
        "segment, and return.",
        _acked,
        "Linux answers with a challenge ACK, of which it sends so many a second alone (tcp_ack(), "
        "RFC 5961).",
        shows=("snd_una", "snd_max"),
    ),
    Rule(
        "retransmit", "RFC 9293, 3.4",
        "A segment on the retransmission queue is fully acknowledged if the sum of its sequence "
        "number and length is less than or equal to the acknowledgment value in the incoming "
        "segment.",
        _retransmit,
        "What is acknowledged in part is cut to the rest first (tcp_trim_head() in "
        "__tcp_retransmit_skb()).",
        needs=("seg_seq",), across="", locations=("RETRANSMIT",),
        shows=("seg_seq", "snd_una", "snd_max"),
    ),
)  # fmt: skip


# RFC 5681, TCP Congestion Control; with it RFC 9438, CUBIC, and RFC 7661, the window's use.

_SLACK_US = 250_000
"""Data that waits for more (MSG_MORE, TCP_CORK) waits no longer; the kernel judges when the data
are written."""


def _cwnd(step: Step) -> tuple[Mask, Mask]:
    """A record of a change of the state has the window that is made for it already."""
    sent = (step.sent > 0) & (step.now["location"] != Location.CONG_STATE)
    most = np.maximum(step.now["snd_cwnd_segs"], step.was["snd_cwnd_segs"])
    return step.open & sent, step.now["packets_out"] > most + 1


def _grown(step: Step) -> Array:
    return step.now["snd_cwnd_segs"] - step.was["snd_cwnd_segs"]


def _one_ack(step: Step) -> Mask:
    """One segment was processed in between, and the window grew by reno's or cubic's rules."""
    one: Mask = (step.was["location"] == Location.SEGMENT_RECEIVED) & (_grown(step) > 0)
    return step.open & step.loss_based & one


def _growth(step: Step) -> tuple[Mask, Mask]:
    return _one_ack(step), _grown(step) > ahead_of(step.now["delivered"], step.was["delivered"]) + 1


def _validation(step: Step) -> tuple[Mask, Mask]:
    was = step.was
    starts = was["snd_cwnd_segs"] < was["snd_ssthresh"]
    used = was["snd_cwnd_segs"] < 2 * was["max_packets_out"]
    return _one_ack(step), ~((was["is_cwnd_limited"] > 0) | (starts & used))


def _too_high(step: Step, window: Array, algorithm: int) -> Mask:
    share = window * 717 // 1024 if algorithm == CUBIC else window // 2
    return step.now["snd_ssthresh"] > np.maximum(share, 2)


def _ssthresh(step: Step) -> tuple[Mask, Mask]:
    applies = step.into(CaState.CWR, CaState.RECOVERY) & (step.now["ca"] == RENO)
    return applies, _too_high(step, step.now["snd_cwnd_segs"], RENO)


def _beta(step: Step) -> tuple[Mask, Mask]:
    applies = step.into(CaState.CWR, CaState.RECOVERY) & (step.now["ca"] == CUBIC)
    return applies, _too_high(step, step.now["snd_cwnd_segs"], CUBIC)


def _by_timer(step: Step) -> Mask:
    """The retransmission timer began a loss; a smaller MTU does too, which is another matter."""
    same: Mask = step.into(CaState.LOSS) & step.after_rto & (step.now["mss"] == step.was["mss"])
    return same


def _rto_ssthresh(step: Step) -> tuple[Mask, Mask]:
    before, ca = step.now["prior_cwnd"], step.now["ca"]
    broken = np.where(ca == CUBIC, _too_high(step, before, CUBIC), _too_high(step, before, RENO))
    return _by_timer(step) & (ca > 0), broken


def _loss_window(step: Step) -> tuple[Mask, Mask]:
    """Judged where the loss begins, and when the timer sends the first segment again."""
    now, was = step.now, step.was
    begins = (now["location"] == Location.CONG_STATE) & (now["callvalue"] == CaState.LOSS)
    begins &= step.after_rto
    begun = (was["location"] == Location.CONG_STATE) & (was["callvalue"] == CaState.LOSS)
    begun &= step.was_after_rto
    begins |= begun & (now["location"] == Location.RETRANSMIT)
    flight = now["packets_out"] - now["sacked_out"] - now["lost_out"] + now["retrans_out"]
    return begins & (now["mss"] == was["mss"]), now["snd_cwnd_segs"] > flight + 1


def _restart(step: Step) -> tuple[Mask, Mask]:
    """was: the ACK of all that was written; it adds what it acknowledges to the window at most."""
    now, was = step.now, step.was
    done = (was["location"] == Location.SEGMENT_RECEIVED) & (was["seg_ack"] == was["snd_max"])
    done &= was["snd_sb_cc"] == ahead_of(was["snd_max"], was["snd_una"])
    idle_us = ahead_of(now["first_tx_us"], step.before_ns // 1000 & 0xFFFFFFFF)
    rto_us = np.maximum(now["rto_us"], was["rto_us"])
    waited = (idle_us > 2 * rto_us + _SLACK_US) & (step.time_ns - step.before_ns < 1 << 40)
    applies = step.open & step.loss_based & done & waited & (step.sent > 0)
    before = was["snd_cwnd_segs"] + was["packets_out"] + 1
    restart = np.maximum(step.first["snd_cwnd_segs"], before // 2)
    return applies, now["snd_cwnd_segs"] > restart


_EQUATION = "no more than the value given in equation (4): ssthresh = max (FlightSize / 2, 2*SMSS)"
_BY_CWND = ("Linux takes half the window and not half of what is in flight (comment at "
            "tcp_reno_ssthresh()), which is more where the application limits")  # fmt: skip
_OF_CUBIC = ("Linux takes the window and not the flight size, and 717/1024 for 0.7 "
             "(bictcp_recalc_ssthresh()); RFC 9438, 4.6 allows the window")  # fmt: skip

RFC5681 = (
    Rule(
        "cwnd", "RFC 5681, 2",
        "At any given time, a TCP MUST NOT send data with a sequence number higher than the sum of "
        "the highest acknowledged sequence number and the minimum of cwnd and rwnd.",
        _cwnd,
        "A loss probe of new data is one segment more (RFC 8985, 7.3; tcp_send_loss_probe()). "
        "Windows are in segments.",
        shows=("packets_out", "snd_cwnd_segs"),
    ),
    Rule(
        "growth", "RFC 5681, 3.1",
        "During slow start, a TCP increments cwnd by at most SMSS bytes for each ACK received that "
        "cumulatively acknowledges new data.",
        _growth,
        "An ACK of N segments counts as N, and so do those that a SACK names (comment at "
        "tcp_slow_start()); one more from what was acknowledged before (tcp_cong_avoid_ai()).",
        needs=("delivered", "ca_name"), shows=("snd_cwnd_segs", "delivered"),
    ),
    Rule(
        "validation", "RFC 7661, 4",
        "If in slow start, ensure cwnd grows to twice what was ACKed. (comment in "
        "tcp_is_cwnd_limited())",
        _validation,
        "Linux does not have RFC 7661's pipeACK: a window that the sender does not use does not "
        "grow, but in slow start up to twice of what was in flight.",
        needs=("is_cwnd_limited", "max_packets_out", "ca_name"),
        shows=("snd_cwnd_segs", "snd_ssthresh", "max_packets_out", "is_cwnd_limited"),
    ),
    Rule(
        "ssthresh", "RFC 5681, 3.2",
        f"When the third duplicate ACK is received, a TCP MUST set ssthresh to {_EQUATION}",
        _ssthresh, f"{_BY_CWND}.",
        needs=("ca_name",), across="", locations=("CONG_STATE",),
        shows=("snd_cwnd_segs", "snd_ssthresh"),
    ),
    Rule(
        "beta", "RFC 9438, 4.6",
        "CUBIC updates W_max and reduces cwnd and ssthresh immediately, as described below. "
        "ssthresh = flight_size * beta_cubic",
        _beta, f"{_OF_CUBIC}; the module's parameter `beta` changes it.",
        needs=("ca_name",), across="", locations=("CONG_STATE",),
        shows=("snd_cwnd_segs", "snd_ssthresh"),
    ),
    Rule(
        "rto_ssthresh", "RFC 5681, 3.1",
        "When a TCP sender detects segment loss using the retransmission timer and the given "
        "segment has not yet been resent by way of the retransmission timer, the value of ssthresh "
        f"MUST be set to {_EQUATION}",
        _rto_ssthresh, f"{_BY_CWND}; cubic takes 0.7 of it.",
        needs=("prior_cwnd", "ca_name"), locations=("CONG_STATE", "RTO"),
        shows=("prior_cwnd", "snd_ssthresh"),
    ),
    Rule(
        "loss_window", "RFC 5681, 3.1",
        "Furthermore, upon a timeout (as specified in [RFC2988]) cwnd MUST be set to no more than "
        "the loss window, LW, which equals 1 full-sized segment (regardless of the value of IW).",
        _loss_window,
        "One more than what is in flight: segments that were sent a moment ago are not lost yet "
        "(comment in tcp_timeout_mark_lost()).",
        locations=("CONG_STATE", "RTO"),
        shows=("snd_cwnd_segs", "packets_out", "sacked_out", "lost_out", "retrans_out"),
    ),
    Rule(
        "restart", "RFC 5681, 4.1",
        "Therefore, a TCP SHOULD set cwnd to no more than RW before beginning transmission if the "
        "TCP has not sent data in an interval exceeding the retransmission timeout.",
        _restart,
        "Linux halves the window for each timeout that passed, down to the initial window (RFC "
        "2861; tcp_cwnd_restart()). net.ipv4.tcp_slow_start_after_idle=0 breaks the rule.",
        needs=("seg_ack", "rto_us", "ca_name", "first_tx_us", "snd_sb_cc"), across="first",
        shows=("snd_cwnd_segs", "rto_us"),
    ),
)  # fmt: skip


# The retransmission timer (RFC 6298), loss probes (RFC 8985), recovery (RFC 6937, RFC 3168).

_SECOND_US = 1_000_000
"""The least that an administrator may set the largest timeout to (tcp_rto_max_ms)."""
_PROBE = 5  # ICSK_TIME_LOSS_PROBE


def _rto(step: Step) -> tuple[Mask, Mask]:
    now = step.now
    least = np.minimum(now["srtt_us"], _SECOND_US)
    return (now["state"] == State.ESTABLISHED) & (now["srtt_us"] > 0), now["rto_us"] < least


def _backoff(step: Step) -> tuple[Mask, Mask]:
    """was: the segment that the timer sent again, which has the timeout before it backs off."""
    now, was = step.now, step.was
    again = (was["location"] == Location.RETRANSMIT) & (was["ca_state"] == CaState.LOSS)
    backed = again & (now["backoff"] == was["backoff"] + 1)
    longer = np.minimum(2 * was["rto_us"], _SECOND_US)
    broken = (now["rto_us"] < longer) | (now["rto_us"] > 2 * was["rto_us"])
    return step.established & backed, broken


def _sample(step: Step) -> tuple[Mask, Mask]:
    now, was = step.now, step.was
    nothing = (now["snd_una"] == was["snd_una"]) & (now["delivered"] == was["delivered"])
    one = was["location"] == Location.SEGMENT_RECEIVED
    return step.established & one & nothing, now["srtt_us"] != was["srtt_us"]


def _probe(step: Step) -> tuple[Mask, Mask]:
    now = step.now
    probes = (now["location"] == Location.RETRANSMIT) & (now["pending"] == _PROBE)
    probes &= (now["state"] == State.ESTABLISHED) & (now["ca_state"] == CaState.OPEN)
    return probes, now["tlp_high_seq"] != 0


def _once(step: Step) -> tuple[Mask, Mask]:
    """Besides its states, reno's threshold tells: only a timeout may lower it once more."""
    now, was = step.now, step.was
    reacts = step.into(CaState.CWR, CaState.RECOVERY)
    lowered = (now["snd_ssthresh"] < was["snd_ssthresh"]) & (now["ca"] == RENO)
    lowered &= (now["ca_state"] <= CaState.RECOVERY) & (was["ca_state"] <= CaState.RECOVERY)
    lowered &= (now["location"] != Location.CONG_STATE) & (now["mss"] == was["mss"])
    again = ahead_of(now["snd_una"], step.entry["snd_max"]) < 0
    return step.established & (reacts | (lowered & again)), again


def _end(step: Step) -> tuple[Mask, Mask]:
    now = step.now
    ends = (now["location"] == Location.CONG_STATE) & (now["ca_state"] == CaState.CWR)
    ends &= now["callvalue"] == CaState.OPEN
    return ends & step.loss_based, now["snd_cwnd_segs"] > now["snd_ssthresh"]


def _recovery(step: Step) -> tuple[Mask, Mask]:
    now, entry = step.now, step.entry
    reduced = np.isin(now["ca_state"], (CaState.CWR, CaState.RECOVERY))
    reduced &= step.established & step.loss_based
    sent = entry["packets_out"] - entry["sacked_out"]
    most = np.maximum(entry["snd_cwnd_segs"], np.maximum(entry["snd_ssthresh"], sent) + 1)
    return reduced & (now["mss"] == entry["mss"]), now["snd_cwnd_segs"] > most


RECOVERY = (
    Rule(
        "rto", "RFC 6298, 2.2",
        "When the first RTT measurement R is made, the host MUST set SRTT <- R, RTTVAR <- R/2, RTO "
        "<- SRTT + max (G, K*RTTVAR)",
        _rto,
        "The least timeout is 200 ms and not 1 s (TCP_RTO_MIN; a route's rto_min, tcp_rto_min_us), "
        "as the least of the variation: RTO is never below the round-trip time (__tcp_set_rto()).",
        needs=("rto_us", "srtt_us"), across="", locations=(), shows=("rto_us", "srtt_us"),
    ),
    Rule(
        "backoff", "RFC 6298, 5.5",
        'The host MUST set RTO <- RTO * 2 ("back off the timer").',
        _backoff,
        "Thin streams do not back off (tcp_thin_linear_timeouts, comment in "
        "tcp_retransmit_timer()), nor after an ICMP message that explains the loss (RFC 6069, "
        "tcp_ld_RTO_revert()): those are not judged.",
        needs=("rto_us", "backoff"),
        locations=("SEGMENT_RECEIVED", "RETRANSMIT"), shows=("rto_us", "backoff"),
    ),
    Rule(
        "sample", "RFC 6298, 3",
        "RTT samples MUST NOT be made using segments that were retransmitted (and thus for which "
        "it is ambiguous whether the reply was for the first instance of the packet or a later "
        "instance).",
        _sample,
        "Judged is what is sure from outside: without a segment that is newly acknowledged there "
        "is no sample. A SACK gives samples too (tcp_sacktag_one()), and a time stamp "
        "(tcp_ack_update_rtt()).",
        needs=("delivered", "srtt_us"), shows=("srtt_us", "snd_una", "delivered"),
    ),
    Rule(
        "probe", "RFC 8985, 7.3",
        "When the PTO timer expires, the sender MUST check whether both of the following "
        "conditions are met before sending a loss probe: 1. First, there is no other previous loss "
        "probe still in flight.",
        _probe,
        "None (comment in tcp_send_loss_probe(): at most one outstanding TLP).",
        needs=("pending", "tlp_high_seq"), across="", locations=("RETRANSMIT",),
        shows=("tlp_high_seq", "snd_una", "snd_max"),
    ),
    Rule(
        "once", "RFC 3168, 6.1.2",
        "TCP should not react to congestion indications more than once every window of data (or "
        "more loosely, more than once every round-trip time).",
        _once,
        "A reduction that turns out to be needless is undone, and another one may follow in the "
        "same window (comment in tcp_fastretrans_alert(): Undo reverts the recovery state). So it "
        "may after a loss probe: to what that mended, only the next window's first ACK reacts "
        "(comment in tcp_process_tlp_ack(): ACK advances: there was a loss).",
        needs=("ca_name",), across="entry", locations=("CONG_STATE",), undo=True,
        shows=("snd_una", "snd_max", "snd_cwnd_segs", "snd_ssthresh"),
    ),
    Rule(
        "reduced", "RFC 6937, abstract",
        "PRR minimizes excess window adjustments, and the actual window size at the end of "
        "recovery will be as close as possible to the ssthresh, as determined by the congestion "
        "control algorithm.",
        _end,
        "At its end the window is set to ssthresh (comment in tcp_end_cwnd_reduction()). Judged "
        "for CWR: after a recovery the ACK that ended it adds to the window before the next "
        "record.",
        needs=("ca_name",), across="", locations=("CONG_STATE",),
        shows=("snd_cwnd_segs", "snd_ssthresh"),
    ),
    Rule(
        "recovery", "RFC 6937, abstract",
        "PRR minimizes excess window adjustments",
        _recovery,
        "At least one segment is sent (comment in tcp_cwnd_reduction(): force a fast retransmit), "
        "and the window of a sender that did not use it may be below what is in flight.",
        needs=("ca_name",), across="entry", locations=("CONG_STATE",), undo=True,
        shows=("snd_cwnd_segs", "snd_ssthresh", "packets_out"),
    ),
)  # fmt: skip
