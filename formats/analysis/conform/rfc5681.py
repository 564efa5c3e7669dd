# SPDX-License-Identifier: Apache-2.0
"""RFC 5681, TCP Congestion Control; with it RFC 9438, CUBIC, and RFC 7661, the window's use."""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.conform.rule import CUBIC, RENO, Array, Mask, Rule, Step
from tcpkmon.formats.base.sequence import ahead_of
from tcpkmon.formats.base.tcp import CaState, Location

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

RULES = (
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
