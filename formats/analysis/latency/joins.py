# SPDX-License-Identifier: Apache-2.0
"""Joins the records of all layers byte range by byte range: sorted arrays, no loop over records.

Ranges are cut at all borders of all records. A record covers one or more of them; which record
counts is decided by time:

    IP_SEND       |-----first-----|      |--again--|           resent: the last before it arrived
    DEV_SEND        |-----first after it-----|
    DRIVER_START    |--last before it arrived or was sent again--|
    DEV_RECV          |--last before TCP had it--|
    IP_RECV             |---first---|
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.latency.axis import Axis, lay_out
from tcpkmon.formats.analysis.latency.missing import NEVER
from tcpkmon.formats.analysis.latency.records import Events
from tcpkmon.formats.analysis.latency.stages import RANGES, RETRANSMISSION, TIMES, Stage
from tcpkmon.formats.analysis.latency.survey import Survey
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.limits import MOST_COPIES

_FEW = 1 << 20

Array = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass
class Ranges:
    """n byte ranges. All arrays are (n,), or by name (n,).

    flow, lo, hi: unwrapped sequence numbers. times: CLOCK_MONOTONIC [ns] by name of TIMES, -1:
    none. has_sender, has_receiver: whether that end was recorded. sent_again: how often it was sent
    again. overlapping: two calls wrote or read it, so it is not known which. written, arrived: the
    first byte of its flow of which a SOCK_SEND, or an arrival, is known. over: all of its flow's
    bytes before that were read and acknowledged.
    """

    flow: Array
    lo: Array
    hi: Array
    times: dict[str, Array]
    has_sender: Mask
    has_receiver: Mask
    sent_again: Array
    overlapping: Mask
    written: Array
    arrived: Array
    over: Array

    def __len__(self) -> int:
        return len(self.flow)

    def take(self, at: Mask | Array) -> Ranges:
        """The ranges at these places."""
        times = {name: column[at] for name, column in self.times.items()}
        return Ranges(
            self.flow[at], self.lo[at], self.hi[at], times, self.has_sender[at],
            self.has_receiver[at], self.sent_again[at], self.overlapping[at], self.written[at],
            self.arrived[at], self.over[at],
        )  # fmt: skip


class _Cover:
    """Which records of a stage cover which ranges. keys: range and rank, ascending."""

    def __init__(self, first: Array, last: Array, rank: Array, bits: int, count: int) -> None:
        widths = last - first
        total = int(widths.sum())
        if total > MOST_COPIES * count + _FEW:
            raise DamagedError("records cover the same bytes again and again")
        starts = np.cumsum(widths) - widths
        places = np.repeat(first - starts, widths) + np.arange(total)
        self._bits, self._mask = bits, (1 << bits) - 1
        self._keys = np.sort((places << bits) | np.repeat(rank, widths))
        self._places = np.arange(count) << bits
        self.count = count

    def first(self, since: Array | None = None) -> Array:
        """(count,) the rank of each range's first record, at `since` or later; -1: none."""
        wanted = self._places if since is None else self._places | np.maximum(since, 0)
        return self._found(np.searchsorted(self._keys, wanted, "left"))

    def last(self, until: Array) -> Array:
        """(count,) the rank of each range's last record, at `until` or earlier; -1: none."""
        return self._found(np.searchsorted(self._keys, self._places | until, "right") - 1)

    def _found(self, at: Array) -> Array:
        if not len(self._keys):
            return np.full(self.count, -1, np.int64)
        keys = self._keys[np.clip(at, 0, len(self._keys) - 1)]
        there = (at >= 0) & (at < len(self._keys))
        return np.where(there & (keys & ~self._mask == self._places), keys & self._mask, -1)

    def number(self, chosen: Mask | None = None) -> Array:
        """(count,) how many records cover each range; chosen: by rank, which of them count."""
        keys = self._keys if chosen is None else self._keys[chosen[self._keys & self._mask]]
        return np.bincount(keys >> self._bits, minlength=self.count)


def join(given: Events, survey: Survey) -> Ranges:
    """All ranges of these events, by flow and number. given: (n,) in time order, at least one."""
    return _Join(lay_out(given), given.time, survey).ranges()


class _Join:
    """The arrays of a join; `e` ranges are between the borders."""

    def __init__(self, axis: Axis, times: Array, survey: Survey) -> None:
        self._axis, self._times, self._survey = axis, times, survey
        events = axis.events
        self._end = len(events)  # a rank after all
        self._bits = max(self._end, 1).bit_length()
        # The first and the last rank of the same time; of a rank after all, itself.
        new = np.flatnonzero(np.diff(times)) + 1
        begins, ends = np.append(0, new), np.append(new, self._end)
        self._since = np.append(np.repeat(begins, ends - begins), self._end)
        self._until = np.append(np.repeat(ends - 1, ends - begins), self._end)
        lo, hi = axis.place(events.lo), axis.place(events.hi)
        is_range = np.isin(events.stage, RANGES)
        is_progress = np.isin(events.stage, (Stage.TCP_RECV, Stage.ACK))
        borders = np.sort(
            np.concatenate((lo[is_range], hi[is_range], lo[is_progress], axis.floor, axis.ceil))
        )
        self._borders = borders[np.diff(borders, prepend=borders[0] - 1) != 0]
        # The last border begins a range too, which is not valid; so there is always one.
        self._local = np.searchsorted(axis.floor, self._borders, "right") - 1
        self._e = len(self._borders)
        self._valid = self._find_valid()
        self._begin = np.searchsorted(self._borders, lo)
        self._end_at = np.searchsorted(self._borders, hi)
        self._stages = [np.flatnonzero(events.stage == stage) for stage in Stage]
        self._lo = lo

    def _first(self, stage: Stage) -> Array:
        """(e,) the first byte of the flow of which there is such an event."""
        axis, at = self._axis, self._stages[stage]
        found = np.full(len(axis.flows), NEVER)
        np.minimum.at(found, axis.local[at], axis.events.lo[at])
        return np.asarray(found[self._local])

    def _over(self, has_sender: Mask, has_receiver: Mask) -> Array:
        """(e,) how far the flow was read and acknowledged: no more records of it will come."""
        axis, is_recorded = self._axis, self._survey.is_recorded
        reads = next(filter(is_recorded, (Stage.SOCK_RECV, Stage.TCP_RECV)), Stage.IP_RECV)
        acks = has_sender & (is_recorded(Stage.IP_RECV) | ~has_receiver)
        come = np.full(self._e, NEVER)
        for stage, matters in ((reads, has_receiver), (Stage.ACK, acks)):
            at, mark = self._stages[stage], np.full(len(axis.flows), -1)
            np.maximum.at(mark, axis.local[at], axis.events.hi[at])
            come = np.where(matters, np.minimum(come, mark[self._local]), come)
        return np.where(come == NEVER, -1, come)

    def _arrive(self) -> Stage:
        return Stage.IP_RECV if self._survey.is_recorded(Stage.IP_RECV) else Stage.DEV_RECV

    def _transmit(self) -> Stage:
        ways = (Stage.IP_SEND, Stage.DEV_SEND, Stage.DRIVER_START)
        return next(filter(self._survey.is_recorded, ways), Stage.IP_SEND)

    def _cover(self, stage: Stage) -> _Cover:
        at = self._stages[stage]
        return _Cover(self._begin[at], self._end_at[at], self._axis.rank[at], self._bits, self._e)

    def ranges(self) -> Ranges:
        """Put the times together."""
        axis, end = self._axis, self._end
        flow = axis.flows[self._local]
        has_sender = self._survey.sender[flow] >= 0
        has_receiver = self._survey.receiver[flow] >= 0
        writes, reads = self._cover(Stage.SOCK_SEND), self._cover(Stage.SOCK_RECV)
        ranks: dict[str, Array] = {"write": writes.first(), "read": reads.first()}
        ranks["tcp_send"] = self._tcp_send(ranks["write"])
        ranks["ack"] = self._progress(Stage.ACK)
        arrivals, sends = self._cover(self._arrive()), self._cover(self._transmit())
        ranks["tcp"] = arrivals.first()
        ranks["inorder"] = self._progress(Stage.TCP_RECV)
        by_then = self._progress(Stage.TCP_RECV, Stage.ANCHOR)
        ranks["complete"] = self._complete(ranks["tcp"], by_then)
        ranks["transmit"] = sends.first()
        arrived = self._until[_or(ranks["tcp"], end)]
        ranks["resent"] = np.where(has_receiver, sends.last(arrived), ranks["transmit"])
        again = sends.first(ranks["resent"] + 1)
        until = np.where(has_receiver, arrived, self._until[_or(ranks["ack"], end)])
        until = np.minimum(until, self._since[_or(again, end)] - 1)
        since = self._since[np.maximum(ranks["resent"], 0)]
        ranks["qdisc"] = self._cover(Stage.DEV_SEND).first(since)
        ranks["qdisc"][ranks["qdisc"] > until] = -1
        ranks["driver"] = self._cover(Stage.DRIVER_START).last(np.maximum(until, 0))
        ranks["driver"][ranks["driver"] < since] = -1
        came = self._cover(Stage.DEV_RECV)
        ranks["driver_in"] = np.where(ranks["tcp"] < 0, came.first(), came.last(arrived))
        sent = self._since[np.maximum(ranks["driver"], 0)]
        ranks["driver_in"][ranks["driver_in"] < sent] = -1
        times = {name: np.where(ranks[name] < 0, -1, self._times[ranks[name]]) for name in TIMES}
        by_rank = np.zeros(end, np.bool_)
        by_rank[axis.rank] = axis.events.flags & RETRANSMISSION != 0
        told = sends.number(by_rank)
        if self._transmit() == Stage.IP_SEND:  # stacked devices send one transmission several times
            told = np.maximum(told, sends.number() - 1)
        # Only the copy is there: the first transmission is not known.
        copy = (ranks["transmit"] >= 0) & by_rank[ranks["transmit"]]
        times["transmit"][copy] = -1
        overlapping = (writes.number() > 1) | (reads.number() > 1)
        places = self._borders - axis.base[self._local]
        hi = np.append(places[1:], 0)
        found = Ranges(
            flow, places, hi, times, has_sender, has_receiver, np.maximum(told, 0), overlapping,
            self._first(Stage.SOCK_SEND), self._first(self._arrive()),
            self._over(has_sender, has_receiver),
        )  # fmt: skip
        return found.take(self._valid)

    def _find_valid(self) -> Mask:
        """(e,) which borders begin a range of bytes of interest."""
        axis = self._axis
        inside: Mask = self._borders >= axis.floor[self._local]
        inside &= self._borders < axis.ceil[self._local]
        inside[-1] = False
        # Beyond what a window can hold nobody knows which bytes there were.
        inside &= np.append(np.diff(self._borders), 0) < 1 << 32
        return inside

    def _progress(self, *stages: Stage) -> Array:
        """(e,) the first event of a flow that has come to the end of a range."""
        at = np.sort(np.concatenate([self._stages[stage] for stage in stages]))
        if not len(at):
            return np.full(self._e, -1, np.int64)
        reached = np.maximum.accumulate(self._lo[at])
        ends = np.append(self._borders[1:], np.iinfo(np.int64).max)
        found = np.searchsorted(reached, ends)
        good = found < len(at)
        event = at[np.minimum(found, len(at) - 1)]
        good &= self._axis.local[event] == self._local
        return np.where(good, self._axis.rank[event], -1)

    def _tcp_send(self, writes: Array) -> Array:
        """(e,) the TCP_SEND that began with the first byte of the range's send call."""
        axis, at, calls = self._axis, self._stages[Stage.TCP_SEND], self._stages[Stage.SOCK_SEND]
        if not len(at) or not len(calls):
            return np.full(self._e, -1, np.int64)
        known, number = np.unique(self._lo[at], return_inverse=True)
        keys = np.sort((number.astype(np.int64) << self._bits) | axis.rank[at])
        # Calls that failed before tried with the same first byte: the first one since it began.
        wanted = np.minimum(np.searchsorted(known, self._lo[calls]), len(known) - 1)
        since = (wanted << self._bits) | self._since[axis.rank[calls]]
        found = keys[np.minimum(np.searchsorted(keys, since), len(keys) - 1)]
        good = (known[wanted] == self._lo[calls]) & (found >> self._bits == wanted)
        good &= found >= since
        by_rank = np.full(self._end + 1, -1, np.int64)
        by_rank[axis.rank[calls]] = np.where(good, found & ((1 << self._bits) - 1), -1)
        return by_rank[writes]  # of a range without a call, -1, it is the last: -1

    def _complete(self, arrived: Array, in_order: Array) -> Array:
        """(e,) when all bytes of a flow up to a range had arrived, where that is certain.

        A range without an arrival had one before it was in order.
        """
        end = self._end
        early = np.where(arrived >= 0, arrived, -1)
        late = np.where(arrived >= 0, arrived, _or(in_order, end))
        early[~self._valid] = late[~self._valid] = -1
        offset = self._local * (end + 2)
        least, most = (np.maximum.accumulate(one + offset) - offset for one in (early, late))
        return np.where((least == most) & (arrived >= 0) & (most < end), most, -1)


def _or(ranks: Array, default: int) -> Array:
    """The ranks, `default` where there is none."""
    return np.where(ranks < 0, default, ranks)
