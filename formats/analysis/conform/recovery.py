# SPDX-License-Identifier: Apache-2.0
"""The retransmission timer (RFC 6298), loss probes (RFC 8985), recovery (RFC 6937, RFC 3168)."""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.conform.rule import RENO, Mask, Rule, Step
from tcpkmon.formats.base.sequence import ahead_of
from tcpkmon.formats.base.tcp import CaState, Location, State

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


RULES = (
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
