# SPDX-License-Identifier: Apache-2.0
"""What left one end and arrived at the other: bounds for clocks, delays, and what got lost.

A record whose snd_nxt is not above a byte was made before that byte was sent: TRANSMIT is directly
before, any other record some time before. A record whose rcv_nxt is not above an acknowledgement
was made before that was sent. So both hold with any locations, and tighter with TRANSMIT.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.pairing.ends import End
from tcpkmon.formats.base.tcp import ARRIVED, Location


@dataclass(frozen=True)
class Sends:
    """n ranges of bytes that were passed to IP. earliest, latest: times between which it was."""

    low: Array
    high: Array
    earliest: Array
    latest: Array


def causes(sender: End, receiver: End) -> tuple[Array, Array]:
    """Pairs of times: the first (sender's clock) was before the second (receiver's clock)."""
    arrived = _arrivals(receiver)
    ends = np.concatenate([receiver.high[arrived], receiver.received])
    times = np.concatenate([receiver.times[arrived], receiver.times])
    known = ends <= sender.sent.max()
    data = _before(sender.times, sender.sent, ends[known], times[known])
    known = receiver.acked <= sender.received.max()
    acks = _before(sender.times, sender.received, receiver.acked[known], receiver.times[known])
    found = (np.concatenate([data[0], acks[0]]), np.concatenate([data[1], acks[1]]))
    return found


def _before(at: Array, level: Array, wanted: Array, times: Array) -> tuple[Array, Array]:
    """The last `at` at which level was below what is wanted, and the times that want it."""
    place = np.searchsorted(np.maximum.accumulate(level), wanted, "left") - 1
    return at[place[place >= 0]], times[place >= 0]


def sends(end: End) -> Sends:
    """What it sent, in order: by TRANSMIT; else by the steps of snd_nxt, and RETRANSMIT."""
    is_sent = (end.location == Location.TRANSMIT) & (end.high > end.low)
    if is_sent.any():
        at = np.flatnonzero(is_sent)
        return Sends(end.low[at], end.high[at], end.times[at], end.times[at])
    most = np.maximum.accumulate(end.sent)
    at = np.flatnonzero(np.diff(most) > 0) + 1
    again = np.flatnonzero((end.location == Location.RETRANSMIT) & (end.high > end.low))
    low = np.concatenate([most[at - 1], end.low[again]])
    high = np.concatenate([most[at], end.high[again]])
    rows = np.concatenate([at, again])
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    return Sends(low[order], high[order], end.times[np.maximum(rows - 1, 0)], end.times[rows])


def _arrivals(end: End) -> Array:
    return np.flatnonzero(np.isin(end.location, ARRIVED) & (end.high > end.low))


@dataclass(frozen=True)
class Delays:
    """n segments that arrived, and when the last byte of each was sent. copies: how often that was;
    with more than one, earliest and latest are those of all that may have arrived."""

    low: Array
    high: Array
    arrived: Array
    earliest: Array
    latest: Array
    copies: Array


def delays(sender: End, receiver: End) -> Delays:
    """Of the segments that arrived, those of which the sending is known."""
    sent, at = sends(sender), _arrivals(receiver)
    last = receiver.high[at] - 1
    new = np.flatnonzero(sent.high > np.maximum.accumulate(
        np.concatenate([[np.iinfo(np.int64).min], sent.high[:-1]])))  # fmt: skip
    place = np.searchsorted(sent.high[new], last, "right")
    known = place < len(new)
    at, last, first = at[known], last[known], new[place[known]]
    inside = sent.low[first] <= last
    at, last, first = at[inside], last[inside], first[inside]
    earliest, latest = sent.earliest[first].copy(), sent.latest[first].copy()
    copies = np.ones(len(at), np.int64)
    again = np.setdiff1d(np.arange(len(sent.low)), new)
    by_last = np.argsort(last, kind="stable")
    bounds = np.searchsorted(last[by_last], np.stack((sent.low[again], sent.high[again])))
    for begin, end, early, late in zip(*bounds.tolist(), sent.earliest[again],
                                       sent.latest[again], strict=True):  # fmt: skip
        covers = by_last[begin:end]
        copies[covers] += 1
        earliest[covers] = np.minimum(earliest[covers], early)
        latest[covers] = np.maximum(latest[covers], late)
    return Delays(receiver.low[at], receiver.high[at], receiver.times[at], earliest, latest, copies)


@dataclass(frozen=True)
class Missing:
    """n ranges that were sent more often than they arrived, between two times (sender's clock)."""

    low: Array
    high: Array
    sent: Array
    arrived: Array
    first: Array
    last: Array


def missing(sender: End, receiver: End) -> Missing:
    """What was sent and never arrived, as far as the receiver's records go."""
    out, at = sends(sender), _arrivals(receiver)
    top = receiver.received.max()
    edges = np.unique(np.concatenate([out.low, out.high, receiver.low[at], receiver.high[at],
                                      receiver.received[[0]], [top]]))  # fmt: skip
    sent = _cover(edges, out.low, out.high)
    arrived = _cover(edges, receiver.low[at], receiver.high[at])
    arrived = np.maximum(arrived, edges[:-1] < top)
    lost = np.flatnonzero(sent > arrived)
    joined = np.flatnonzero((np.diff(lost) > 1) | (np.diff(sent[lost]) != 0)
                            | (np.diff(arrived[lost]) != 0))  # fmt: skip
    runs = np.split(lost, joined + 1) if len(lost) else []
    low = np.array([edges[run[0]] for run in runs], np.int64)
    high = np.array([edges[run[-1] + 1] for run in runs], np.int64)
    first, last = np.zeros(len(runs), np.int64), np.zeros(len(runs), np.int64)
    by_low = np.argsort(out.low, kind="stable")
    tops = out.high[by_low]
    begins = np.searchsorted(np.maximum.accumulate(tops), low, "right").tolist()
    ends = np.searchsorted(out.low[by_low], high).tolist()
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        covers = by_low[begin:end][tops[begin:end] > low[number]]
        first[number], last[number] = out.earliest[covers].min(), out.latest[covers].max()
    starts = [run[0] for run in runs]
    return Missing(low, high, sent[starts], arrived[starts], first, last)


def _cover(edges: Array, low: Array, high: Array) -> Array:
    """(n-1,) how many ranges cover each step between edges."""
    change = np.zeros(len(edges), np.int64)
    np.add.at(change, np.searchsorted(edges, low), 1)
    np.add.at(change, np.searchsorted(edges, high), -1)
    return np.cumsum(change)[:-1]
