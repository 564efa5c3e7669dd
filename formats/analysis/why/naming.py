# SPDX-License-Identifier: Apache-2.0
"""Causes that have a name, where the evidence is enough: a dead peer, an MTU black hole, a policer.

    timeouts of one segment    no segment arrives       segments arrive, and small ones went through
    in a row, unanswered       the peer is gone         large packets are dropped: an MTU black hole

    bursts of losses, each at the same rate, and round trips as short as the path's: a policer
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.why.connections import Connection
from tcpkmon.formats.analysis.why.remedies import mtu_probing
from tcpkmon.formats.analysis.why.words import human_rate, human_time

_TIMEOUTS = 3
"""Of the same segment: by chance, one of 1,000,000 on a path that loses 1 %."""
_LEAST_RATIO = 0.005
_BURST = 3
"""Segments that are lost at once. Where each is lost by itself, it is the link."""
_RECOVERIES = 3
_STEADY = 0.6
"""The middle of the rates by the largest ones: a policer's bucket lets bursts through."""
_SAME = 0.4
"""The spread of the rates from loss to loss. Of policers 0 to 0.27 was measured, of losses by
chance 0.8 to 1.7."""


def named(one: Connection) -> str:
    """A sentence, or ""."""
    if not one.established:
        return ""  # its SYN: how it ended says it
    if one.rto_unanswered >= _TIMEOUTS:
        return _unanswered(one)
    if one.rto_unanswered == _TIMEOUTS - 1 and one.silent_us >= one.rto_unanswered_us:
        return (
            f"the same segment was sent again {_sent_again(one)} times, and for "
            f"{human_time(one.silent_us)} nothing arrived: the peer may be gone, or the path to it"
        )
    if (
        (one.retrans_ratio or 0) >= _LEAST_RATIO
        and one.recoveries >= _RECOVERIES
        and one.segments_retransmitted >= _BURST * one.recoveries
        and has_no_queue(one)
    ):
        return _in_bursts(one)
    return ""


def _in_bursts(one: Connection) -> str:
    """What drops several packets at once, and lets no queue grow."""
    text = f"losses come in bursts, {{}}{human_rate(one.goodput_p50)}, while round trips stay as " \
           "short as the path's: "
    policer = "Send slower than it (pacing, a shaper, bbr), or ask who runs it for a queue"
    spread = one.loss_rate_spread
    if spread is not None and spread > _SAME:
        return text.format("at rates that differ, in the middle ") + (
            "the path loses several packets at once, whatever the rate; a policer or a full queue "
            "would do so at the same rate each time"
        )
    if not one.goodput_p50 >= _STEADY * one.goodput_p99 > 0:
        return ""
    if spread is None:
        return text.format("at a rate of ") + (
            "a policer that drops what is above its rate, or a path that loses several packets at "
            "once: too few to tell, capture for longer"
        )
    return text.format("each time at the same rate, ") + (
        f"a policer drops what is above its rate. {policer}"
    )


def count_gone(table: Mapping[str, Any]) -> int:
    """Of the table connections, those of which nothing arrived any more after timeouts."""
    gone = (table["rto_unanswered"] >= _TIMEOUTS) & (
        table["silent_us"] >= table["rto_unanswered_us"]
    )
    return int(np.count_nonzero(gone))


def _sent_again(one: Connection) -> int:
    """How often the timeouts sent: the one that ends a connection sends nothing."""
    return one.rto_unanswered - (one.end_reason == "timeout")


def _unanswered(one: Connection) -> str:
    times = f"the same segment was sent again {_sent_again(one)} times and never acknowledged"
    # One ACK that is of a whole segment or more: large ones went through.
    is_large = one.rto_bytes >= one.mss > 0 and one.acked_most < one.mss
    hears = one.silent_us < one.rto_unanswered_us
    if is_large:
        hint = (
            "no segment of that size was ever acknowledged: the path drops large packets and does "
            "not say so (an MTU black hole). Lower the MTU or clamp the MSS, let ICMP through"
            f"{mtu_probing(one)}"
        )
        return f"{times}, {'while segments arrive; ' if hears else ''}{hint}" + (
            "" if hears else ". Or the peer is gone"
        )
    if hears:
        return ""
    return (
        f"{times}, and for {human_time(one.silent_us)} nothing arrived: the peer is gone, or the "
        "path to it is"
    )


def has_no_queue(one: Connection) -> bool:
    """Whether round trips are as short as the path's."""
    if one.min_rtt_us is None or one.queue_p95_us is None:
        return False
    return one.queue_p95_us < max(one.min_rtt_us / 4, 1000)
