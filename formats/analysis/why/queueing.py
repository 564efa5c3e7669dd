# SPDX-License-Identifier: Apache-2.0
"""Why round trips are long: queues on the path or in this host, ACKs that come late."""

from __future__ import annotations

from tcpkmon.formats.analysis.why.assemble import BLOAT_RTT_US
from tcpkmon.formats.analysis.why.connections import Connection
from tcpkmon.formats.analysis.why.peers import is_local
from tcpkmon.formats.analysis.why.words import human_time

_LOW_SHARE = 0.1
_MOST, _LATE = 0.5, 0.3


def reads_slowly(one: Connection, limited_us: float) -> bool:
    """Whether in much of this time the receiver's window was closed, all or by half: its program
    had not read that."""
    return one.snd_wnd_low_us > _LOW_SHARE * limited_us


def late(one: Connection) -> float:
    """The share of the time in which ACKs came late."""
    return one.late_ack_us / 1e6 / one.duration_s if one.duration_s else 0.0


def queue_stands(one: Connection) -> bool:
    """Whether most round trips are long by a queue, which more data in flight only lengthens."""
    return (
        one.min_rtt_us is not None
        and one.srtt_p50_us is not None
        and one.srtt_p50_us > max(2 * one.min_rtt_us, BLOAT_RTT_US)
    )


def bloat(one: Connection) -> str:
    """A sentence on round trips that are much longer than the path's, or ""."""
    if one.min_rtt_us is None or one.srtt_p95_us is None or not one.sends:
        return ""
    if one.srtt_p95_us <= 2 * one.min_rtt_us or one.srtt_p95_us <= BLOAT_RTT_US:
        return ""
    times = f"{human_time(one.srtt_p95_us)} (95 %), the path alone {human_time(one.min_rtt_us)}: "
    text = f"round trips take {times}"
    # Only a sender that fills the path has a queue of its own there.
    others = ("app", "closing", "pacing", "rwnd")
    waits = sum(one.share(name) for name in others) > _MOST or late(one) > _LATE
    limited_us = one.share("rwnd") * sum(one.limit_ns.values()) / 1000
    if waits or reads_slowly(one, max(limited_us, 1.0)):
        if is_local(one):
            return f"{_MEAN} {times}ACKs that the receiver delays, as there is no path to queue on"
        return f"{_MEAN} {times}ACKs that the receiver delays, or queues"
    if is_local(one):
        return text + "the receiver delays ACKs, or a CPU is busy; there is no path to queue on"
    queue = human_time(one.srtt_p95_us - one.min_rtt_us)
    if one.share("tsq") > _MOST:
        return f"{text}{queue} in this host's queue; a shorter queue there, or one that drops " \
               "early, helps"
    return (
        f"{text}{queue} in queues, here (tc -s qdisc) or on the path (a shorter one, or one that "
        "drops early, helps), or the path's own delay varies, as on Wi-Fi, mobile networks and "
        "where a route changes"
    )


_MEAN = "the mean of round trips (srtt; one ACK that is delayed by 40 ms adds 5 ms) is"
