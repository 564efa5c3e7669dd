# SPDX-License-Identifier: Apache-2.0
"""RFC 9293, Transmission Control Protocol: sequence numbers and the peer's window."""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.conform.rule import Mask, Rule, Step
from tcpkmon.formats.base.sequence import ahead_of
from tcpkmon.formats.base.tcp import Location, State


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


RULES = (
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
