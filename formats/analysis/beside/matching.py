# SPDX-License-Identifier: Apache-2.0
"""Finds the record of each packet: by its ends, sequence numbers, flags and time.

    in    packet -> [backlog of the socket] -> record       the first one after the packet
    out   record -> [queue of the device]   -> packet       the last one before the packet

A record can be of several packets: the kernel joins segments that wait (in), and devices cut them
(out). Where a segment has no record of its own, the state is that at its time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.arrays import Array, runs
from tcpkmon.formats.analysis.beside.window import Window, keys_of
from tcpkmon.formats.base.tcp import ARRIVED, Location
from tcpkmon.formats.packets.headers import Segments

NONE, RECORD, PART, TIME = range(4)
KINDS = ("none", "record", "part", "time")
"""How a packet was found: no connection has its ends; a record of the same segment; one of several
segments of which it is one; only the connection and the time."""
REACH_NS = 1_000_000_000
"""A packet and its record are at most so far apart."""
SLACK_NS = 1_000_000
"""And at most so far in the wrong order: their clocks are read apart, and time is slewed."""
_FIN, _SYN, _RST, _ACK = 1, 2, 4, 16
_MARKS = _FIN | _SYN | _RST
_KEY = np.dtype(
    [("pair", "<i8"), ("seq", "<u4"), ("ack", "<u4"), ("length", "<u4"), ("marks", "u1")]
)
_MOST_TRIED = 128
"""Records near a packet that are tried for one of which it is a part."""


@dataclass
class Matches:
    """Of n packets on one side, which they leave or reach. kind: (n,) of KINDS. before, after: (n,)
    rows of the window, -1: none."""

    kind: NDArray[np.int8]
    before: Array
    after: Array

    def first(self, count: int) -> Matches:
        """Of the first packets."""
        return Matches(self.kind[:count], self.before[:count], self.after[:count])


@dataclass
class _Segments:
    """Segments on one side: of records that can be packets, or of packets. at: (m,) their rows, or
    numbers. pair: their ends, see Window. ack: 0 of one that never says what arrived."""

    at: Array
    pair: Array
    seq: Array
    ack: Array
    length: Array
    flags: Array
    times_ns: Array

    def take(self, at: Array) -> _Segments:
        """Those at these places."""
        return _Segments(*(getattr(self, one.name)[at] for one in fields(self)))

    def by_time(self) -> _Segments:
        """In the order of their times."""
        return self.take(np.argsort(self.times_ns, kind="stable"))

    def keys(self) -> list[bytes]:
        """The same of each segment that is the same."""
        made = np.zeros(len(self.at), _KEY)
        for name in ("pair", "seq", "ack", "length"):
            made[name] = getattr(self, name)
        made["marks"] = self.flags & _MARKS
        return keys_of(made.view(np.uint8).reshape(len(made), _KEY.itemsize))


def match(
    window: Window, segments: Segments, times_ns: Array, pairs: Array, is_out: bool,
    has_transmit: bool,
) -> Matches:  # fmt: skip
    """pairs: (n,) the ends of each packet, see Window.find(); -1: it is of no connection."""
    count = len(times_ns)
    found = Matches(np.zeros(count, np.int8), np.full(count, -1), np.full(count, -1))
    rows = window.rows
    mine = np.flatnonzero(pairs >= 0)
    if rows is None or not len(mine):
        return found
    following = _following(rows["conn_id"])
    side = _side_of(window, is_out, has_transmit, following)
    acks = _acks(segments.flags, segments.ack)
    packets = _Segments(mine, pairs[mine], segments.seq[mine], acks[mine], segments.length[mine],
                        segments.flags[mine], times_ns[mine]).by_time()  # fmt: skip
    has_ack = is_out or "seg_ack" in rows.columns
    _same(side.take(~window.used[side.at]).by_time(), packets, is_out, found)
    _parts(window, side, _left(packets, found), is_out, has_ack, found)
    known = np.flatnonzero(found.before >= 0)
    found.after[known] = following[found.before[known]]
    _by_time(window, _left(packets, found), following, found)
    return found


def _left(packets: _Segments, found: Matches) -> _Segments:
    """Those for which nothing was found."""
    return packets.take(found.kind[packets.at] == NONE)


def _acks(flags: Array, ack: Array) -> Array:
    """A segment that never says what arrived has none."""
    return np.where(flags & _ACK > 0, ack, 0)


def _side_of(window: Window, is_out: bool, has_transmit: bool, following: Array) -> _Segments:
    rows = window.rows
    assert rows is not None
    wanted = ((Location.TRANSMIT if has_transmit else Location.RETRANSMIT),) if is_out else ARRIVED
    at = np.flatnonzero(np.isin(rows["location"], wanted))
    if is_out:
        ack = rows["rcv_nxt"]
    elif "seg_ack" in rows.columns:
        ack = rows["seg_ack"]
    else:  # what the next record says that it acknowledged
        ack = rows["snd_una"][np.where(following >= 0, following, np.arange(len(rows)))]
    flags = rows["seg_flags"][at].astype(np.int64)
    return _Segments(at, window.pairs[at], rows["seg_seq"][at].astype(np.int64),
                     _acks(flags, ack[at].astype(np.int64)),
                     rows["seg_len"][at].astype(np.int64), flags, rows.real_ns[at])  # fmt: skip


def _same(records: _Segments, packets: _Segments, is_out: bool, found: Matches) -> None:
    """Packets that are the segment of a record, one of each: those of the same segment in order.

    What comes later, the record (in) or the packet (out), is taken from the end, and takes the
    latest that is left: what is left over was lost on the way from one to the other.
    """
    ends = [(one.keys(), one.times_ns.tolist()) for one in (records, packets)]
    taken = np.array(_take(*(ends if is_out else ends[::-1])), np.int64).reshape(-1, 2)
    place, packet = taken.T if is_out else taken.T[::-1]
    found.kind[packets.at[packet]] = RECORD
    found.before[packets.at[packet]] = records.at[place]


def _take(
    first: tuple[list[bytes], list[int]], then: tuple[list[bytes], list[int]]
) -> list[tuple[int, int]]:
    """Pairs of what came first and of what came then, each keys and times in their order."""
    by_key: dict[bytes, list[int]] = {}
    wanted = set(then[0])
    for at, key in enumerate(first[0]):
        if key in wanted:
            by_key.setdefault(key, []).append(at)
    found = []
    for at in range(len(then[0]) - 1, -1, -1):
        left, time = by_key.get(then[0][at]), then[1][at]
        while left:
            late = time - first[1][left[-1]]
            if late <= REACH_NS:
                one = left.pop()
                if late >= -SLACK_NS:
                    found.append((one, at))
                    break
            else:
                break
    return found


def _parts(
    window: Window, side: _Segments, left: _Segments, is_out: bool, has_ack: bool, found: Matches
) -> None:
    """Packets that are a part of the segment of a record, the last ones first: of two with the same
    bytes, the other one was lost. A record that is of one packet has no parts, but ACKs that the
    kernel joined with its own."""
    order = np.lexsort((side.times_ns, side.pair))
    whole = np.zeros(len(window), np.bool_)
    whole[found.before[found.kind == RECORD]] = True
    whole |= window.used
    is_whole = whole[side.at]
    pair, times = side.pair[order], side.times_ns[order]
    bounds = [np.searchsorted(pair, left.pair, end).tolist() for end in ("left", "right")]
    taken: set[tuple[int, int, int]] = set()
    for at in range(len(left.at) - 1, -1, -1):
        low, high = (bound[at] for bound in bounds)
        if low == high:
            continue
        packet, time, seq, length = (
            int(one[at]) for one in (left.at, left.times_ns, left.seq, left.length)
        )
        before, after = (REACH_NS, SLACK_NS) if is_out else (SLACK_NS, REACH_NS)
        first = low + int(np.searchsorted(times[low:high], time - before))
        last = low + int(np.searchsorted(times[low:high], time + after, "right"))
        if is_out:
            near = order[max(first, last - _MOST_TRIED) : last][::-1]
        else:
            near = order[first : min(last, first + _MOST_TRIED)]
        offset = (seq - side.seq[near]) & 0xFFFFFFFF
        flags, marks = side.flags[near], int(left.flags[at]) & _MARKS
        fits = (offset + length <= side.length[near]) & (marks & ~flags == 0)
        fits &= (flags ^ marks) & (_SYN | _RST) == 0
        joins = (side.length[near] == 0) & has_ack & (not is_out)
        fits &= ~is_whole[near] | joins
        if has_ack:
            ahead = (side.ack[near] - int(left.ack[at])) & 0xFFFFFFFF
            fits &= (ahead == 0) if is_out else (ahead < 1 << 31)
        for place in near[fits].tolist():
            key = (place, seq, length)
            if length and key in taken:
                continue
            taken.add(key)
            found.kind[packet], found.before[packet] = PART, side.at[place]
            break


def _following(ids: Array) -> Array:
    """(n,) the next row of the same connection, -1: none."""
    order = np.argsort(ids, kind="stable")
    found = np.full(len(ids), -1)
    same = ids[order[1:]] == ids[order[:-1]]
    found[order[:-1][same]] = order[1:][same]
    return found


def _by_time(window: Window, left: _Segments, following: Array, found: Matches) -> None:
    """Packets without a record of their own: the connection's rows around their time."""
    rows = window.rows
    assert rows is not None
    if not len(left.at):
        return
    order = np.lexsort((rows.real_ns, window.pairs))
    pair, times = window.pairs[order], rows.real_ns[order]
    left = left.take(np.argsort(left.pair, kind="stable"))
    firsts, lasts = runs(left.pair)
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        packets, times_ns = left.at[first : last + 1], left.times_ns[first : last + 1]
        low, high = np.searchsorted(pair, left.pair[first] + np.array([0, 1]))
        at = np.searchsorted(times[low:high], times_ns, "right") + low
        has_before, has_after = at > low, at < high
        before = np.where(has_before, order[np.maximum(at - 1, 0)], -1)
        # Another connection may have had these ends before.
        before[has_before & (rows["location"][before] == Location.DESTROY)] = -1
        later = order[np.minimum(at, len(order) - 1)]
        near = has_after & (rows.real_ns[later] - times_ns <= REACH_NS)
        after = np.where(before >= 0, following[before], np.where(near, later, -1))
        found.before[packets], found.after[packets] = before, after
        found.kind[packets[(before >= 0) | (after >= 0)]] = TIME
