# SPDX-License-Identifier: Apache-2.0
"""The last record of each open connection, and what it has sent and received since it was seen.

    records of a batch, by connection       7 7 7 | 9 | 12 12
                                            first last
    table, a slot for each connection       row = the last record, acked += last less first
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.metrics.owners import Find, Owners, unknown
from tcpkmon.collector.metrics.shown import SHOWN, Chosen
from tcpkmon.collector.metrics.tcp_meter import segments_of
from tcpkmon.formats.base.tcp import SYNCHRONIZED, State

MOST = 1 << 18
"""Connections in the table, unless told otherwise. When it is full, the eighth goes whose last
record is the oldest: that of a connection's end may have been lost, or left out."""
LIMITED = {"busy": "busy_us", "rwnd": "rwnd_limited_us", "sndbuf": "sndbuf_limited_us"}
"""The kernel's own counters of what limits a sender; busy has the two others."""
# Name, column, and what counts the same in u32, if the column is not stored.
_COUNTERS = (
    ("acked", "bytes_acked", "snd_una"),
    ("received", "bytes_received", "rcv_nxt"),
    *((name, column, "") for name, column in LIMITED.items()),
)
_RATED = ("acked", "received", "retransmits", "opened", "closed")
_TOTALS = np.dtype(
    [("id", "=i8")]
    + [(name, "=i8") for name in _RATED]
    + [(f"{name}_before", "=i8") for name in _RATED]
    + [(f"{name}_rate", "=f8") for name in _RATED]
    + [("known", "?"), ("role", "i1")]
)
"""opened: 1 once the handshake was over; closed: 1 at the end. role: 1 it called, -1 it was called,
0 unknown."""
_KEPT = frozenset((
    *SHOWN, *(name for counter in _COUNTERS for name in counter[1:]), "comm", "laddr", "raddr",
    "netns", "cgroup", "conn_id", "location", "callvalue", "time_ns", "seg_ack", "seg_seq",
    "seg_len", "total_retrans",
))  # fmt: skip
RATE_S = 0.5
"""Rates are over at least this time."""
HELD_S = 5.0
"""Connections that ended stay for the next rates, unless nobody asked for rates for so long."""


class Connections:
    """The table. dtype: of a record, with conn_id and state. locations: numbers by name. find: see
    Owners; there are some where the records have ids of control groups. most: its rows, which take
    memory once they were used."""

    def __init__(
        self, dtype: np.dtype[Any], locations: Mapping[str, int], now_s: float,
        find: Find = unknown, most: int = MOST,
    ) -> None:  # fmt: skip
        self.owners = Owners(find) if "cgroup" in (dtype.names or ()) else None
        self._most = most
        self._retransmit, self._destroy = locations["RETRANSMIT"], locations["DESTROY"]
        self._state_change = locations["STATE_CHANGE"]
        names = dtype.names or ()
        self._counters = [
            (total, column if column in names else other, column in names)
            for total, column, other in _COUNTERS
            if column in names or other in names
        ]
        self.names = tuple(name for name in names if name in _KEPT)
        """Columns that are kept of each last record."""
        self._rows = np.zeros(most, [(name, dtype[name]) for name in self.names])
        self._totals = np.zeros(most, _TOTALS)
        self._slots: dict[int, int] = {}
        self._used = 0
        """Slots that were ever used; of these `_free` are free."""
        self._free: list[int] = []
        self._moved = np.zeros(most, np.uint8)
        """By slot: 2, it had a record since the last rates; 1, its rates are not 0."""
        self._held: list[int] | None = None
        self._ended: list[int] = []
        """Slots of connections that ended; the first `_told` of them have their rates."""
        self._told = 0
        self._rated_s = now_s
        self.is_whole = True
        """Whether it has all connections that are open, as far as the records tell."""
        self.sums = {total: 0 for total, _, _ in self._counters}
        """Bytes and microseconds of all connections, of those that ended too."""

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, entries: NDArray[Any]) -> None:
        """Take snapshots, (n,) rows in order; those of listeners are left out."""
        turns = entries["location"] == self._state_change
        listens = (entries["state"] == State.LISTEN) | (
            turns & (entries["callvalue"] == State.LISTEN)
        )
        if listens.any():
            entries = entries[~listens]
        ids = entries["conn_id"]
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]][: len(ids)])
        if len(ids) and not ids[0]:  # a record without a known connection
            starts = starts[1:]
        if not len(starts):
            return
        ends = np.r_[starts[1:], len(ids)]
        if len(self._slots) + len(self._ended) + len(starts) > self._most:
            self._free_ended(len(self._ended))
        if len(self._slots) + len(starts) > self._most:
            self._evict()
        ended = entries["location"][order[starts]] == self._destroy  # of a listener, if new
        slots = np.array([
            self._slots.get(number, -1) if over else self._slot(number)
            for number, over in zip(ids[starts].tolist(), ended.tolist(), strict=True)
        ], np.int64)  # fmt: skip
        have = slots >= 0
        slots, starts, ends = slots[have], starts[have], ends[have]
        last = order[ends - 1]
        self._moved[slots] |= 2
        self._count(entries, order, starts, ends, slots)
        for name in self.names:
            self._rows[name][slots] = entries[name][last]
        # A record of a change has the state before it.
        turns = entries["location"][last] == self._state_change
        self._rows["state"][slots[turns]] = entries["callvalue"][last[turns]]
        ends_now = entries["location"][last] == self._destroy
        self._totals["closed"][slots[ends_now]] = 1
        gone = entries["conn_id"][last[ends_now]].tolist()
        if self._held is None:
            self._remove(gone)
        else:
            self._held += gone

    def hold(self, keep: bool) -> None:
        """Whether connections that end stay in the table from now on."""
        gone, self._held = self._held, [] if keep else None
        self._remove(gone or ())

    def slots(self) -> NDArray[np.int64]:
        """(n,) the slot of each connection."""
        return np.fromiter(self._slots.values(), np.int64, len(self._slots))

    def values(self, name: str, slots: NDArray[np.int64]) -> NDArray[Any]:
        """(n,) a column of `names` in the last records of these slots."""
        values: NDArray[Any] = self._rows[name][slots]
        return values

    def rate(self, now_s: float) -> None:
        """Make the rates those since the last call that did so."""
        span_s = now_s - self._rated_s
        if span_s < RATE_S:
            return
        self._free_ended(self._told)
        self._told = len(self._ended)
        self._rated_s = now_s
        totals, moved = self._totals, np.flatnonzero(self._moved[: self._used])
        for name in _RATED:
            now = totals[name][moved]
            totals[f"{name}_rate"][moved] = (now - totals[f"{name}_before"][moved]) / span_s
            totals[f"{name}_before"][moved] = now
        self._moved[moved] >>= 1

    def shown(self) -> tuple[Chosen, Chosen, NDArray[np.bool_]]:
        """Totals, last records, and whether it is open: of each open connection, and of those that
        ended before the last rate()."""
        slots = np.r_[self.slots(), np.array(self._ended[: self._told], np.int64)]
        is_open = np.arange(len(slots)) < len(self._slots)
        return Chosen(self._totals, slots), Chosen(self._rows, slots), is_open

    def _count(
        self, entries: NDArray[Any], order: NDArray[Any], starts: NDArray[Any],
        ends: NDArray[Any], slots: NDArray[Any],
    ) -> None:  # fmt: skip
        """Add what the connections transferred: from the record before a batch to its last."""
        again = np.flatnonzero(entries["location"][order] == self._retransmit)
        segments = np.zeros(len(order), np.int64)
        segments[again] = segments_of(entries[order[again]])
        sums = np.r_[0, np.cumsum(segments)]
        again_by = sums[ends] - sums[starts]
        self._totals["retransmits"][slots] += again_by
        if self.owners is not None:
            self.owners.add("retransmits", entries["cgroup"][order[ends - 1]], again_by)
        self._count_opened(entries, order, starts, ends, slots)
        # The first and last record of each connection in which its counters mean something.
        means = np.isin(entries["state"][order], SYNCHRONIZED)
        places = np.flatnonzero(means)
        first, last = np.searchsorted(places, starts), np.searchsorted(places, ends) - 1
        some = last >= first
        slots, first, last = slots[some], order[places[first[some]]], order[places[last[some]]]
        known = self._totals["known"][slots]
        for total, column, wide in self._counters:
            before = np.where(known, self._rows[column][slots], entries[column][first])
            grown = entries[column][last] - before
            grown = grown.astype(np.int64) if wide else grown.astype(np.uint32).view(np.int32)
            grown = np.maximum(grown, 0)
            if total in (_TOTALS.names or ()):
                self._totals[total][slots] += grown
                if self.owners is not None:
                    self.owners.add(total, entries["cgroup"][last], grown)
            self.sums[total] += int(grown.sum(dtype=np.int64))
        self._totals["known"][slots] = True

    def _count_opened(
        self, entries: NDArray[Any], order: NDArray[Any], starts: NDArray[Any],
        ends: NDArray[Any], slots: NDArray[Any],
    ) -> None:  # fmt: skip
        """Note which connections were established in a batch, and by whom."""
        turns = entries["location"] == self._state_change
        at = np.flatnonzero((turns & (entries["callvalue"] == State.ESTABLISHED))[order])
        place = np.searchsorted(starts, at, "right") - 1
        ours = (place >= 0) & (at < ends[place]) if len(ends) else np.zeros(len(at), bool)
        chosen = slots[place[ours]]
        self._totals["opened"][chosen] = 1
        called = entries["state"][order[at[ours]]] == State.SYN_SENT
        self._totals["role"][chosen] = np.where(called, 1, -1)

    def _evict(self) -> None:
        """Forget the eighth that had no record for the longest time."""
        self.is_whole, eighth = False, max(1, self._most // 8)
        if self._held is not None or len(self._slots) < eighth:
            return
        numbers = np.fromiter(self._slots, np.int64, len(self._slots))
        if "time_ns" in self.names:
            times = self.values("time_ns", self.slots())
            numbers = numbers[np.argpartition(times, eighth - 1)]
        self._remove(numbers[:eighth].tolist())
        self._free_ended(len(self._ended))  # for those that come, also while rates are asked for

    def _remove(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if (slot := self._slots.pop(number, None)) is not None:
                self._ended.append(slot)
        if time.monotonic() - self._rated_s > HELD_S:
            self._free_ended(len(self._ended))

    def _free_ended(self, count: int) -> None:
        """Forget the first connections that ended."""
        self._free += self._ended[:count]
        del self._ended[:count]
        self._told = max(0, self._told - count)

    def _slot(self, number: int) -> int:
        """The connection's slot, a new one for a new connection; -1: there is no room."""
        slot = self._slots.get(number)
        if slot is None:
            if self._free:
                slot = self._free.pop()
                self._totals[slot] = 0
            elif self._used < self._most:
                slot = self._used
                self._used += 1
            else:
                return -1
            self._slots[number] = slot
            self._totals["id"][slot] = number
        return slot
