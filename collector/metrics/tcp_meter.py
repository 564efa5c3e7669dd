# SPDX-License-Identifier: Apache-2.0
"""Counts TCP's behaviour over ordered records: round trips, retransmissions, connections, bytes.

All records of a batch are counted by numpy. Only those few that begin and end connections go
through a loop.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.metrics.histogram import Histogram
from tcpkmon.formats.base.tcp import SYNCHRONIZED, CaState, State

_NO_MIN_RTT = 0xFFFFFFFF
MOST = 1 << 17
"""Connections whose beginning is remembered at once, unless told otherwise; the oldest are
forgotten."""
_ENDS = {"RESET_SENT": "reset sent", "RESET_RECEIVED": "reset received", "SOCKET_ERROR": "error"}


def segments_of(again: NDArray[Any]) -> NDArray[np.int64]:
    """(n,) the segments of records RETRANSMIT: the kernel may send several at once. Without the
    columns seg_len and mss, 1 each."""
    found = np.ones(len(again), np.int64)
    if {"seg_len", "mss"} <= set(again.dtype.names or ()):
        mss = np.maximum(again["mss"].astype(np.int64), 1)
        found = np.maximum(-(-again["seg_len"].astype(np.int64) // mss), 1)
    return found


class TcpMeter:
    """The counts since it was made. locations: the schema's numbers by name.

    A column that the capture does not store leaves out what needs it.
    """

    def __init__(self, locations: Mapping[str, int], most: int = MOST) -> None:
        self._most = most
        self._numbers = dict(locations)
        self._ends = {self._numbers[name]: end for name, end in _ENDS.items()}
        turns = ("STATE_CHANGE", "DESTROY", *_ENDS)
        self._is_turn = np.zeros(256, bool)
        self._is_turn[[self._numbers[name] for name in turns]] = True
        self._srtt, self._min_rtt = Histogram(4, 25), Histogram(4, 25)
        self._handshake = Histogram(4, 28)
        self._durations = {role: Histogram(8, 38) for role in ("client", "server")}
        self._retransmits: Counter[str] = Counter()
        self._zero: Counter[str] = Counter()
        self._opened: Counter[str] = Counter()
        self._closed: Counter[tuple[str, str]] = Counter()
        self._opening: dict[int, int] = {}
        self._open: dict[int, tuple[int, str]] = {}
        self._why: dict[int, str] = {}
        self._closing: dict[int, str] = {}
        """By connection that closed: its role. A reset may be sent after that (SO_LINGER), so it is
        counted at DESTROY, after the next batch, or when it is asked for."""

    def add(self, entries: NDArray[Any], times_ns: NDArray[np.int64]) -> None:
        """Count snapshots, (n,) rows in order; times_ns: their CLOCK_MONOTONIC."""
        names, locations = entries.dtype.names or (), entries["location"]
        received = entries[locations == self._numbers["SEGMENT_RECEIVED"]]
        if "srtt_us" in names:
            values = received["srtt_us"]
            self._srtt.add(values[values > 0])
        if "min_rtt_us" in names:
            values = received["min_rtt_us"]
            self._min_rtt.add(values[(values > 0) & (values < _NO_MIN_RTT)])
        if "snd_wnd" in names:
            self._zero["segments"] += int(np.count_nonzero(received["snd_wnd"] == 0))
        probes = locations == self._numbers["ZERO_WINDOW_PROBE"]
        self._zero["probes"] += int(np.count_nonzero(probes))
        self._count_retransmits(entries, locations)
        before = list(self._closing)
        if "conn_id" in names and "state" in names:
            turns = self._is_turn[locations & 0xFF]
            if turns.any():
                chosen = entries[turns]
                columns = [chosen[name].tolist() for name in _TURN]
                for row in zip(times_ns[turns].tolist(), *columns, strict=True):
                    self._turn(*row)
                self._forget()
        self._count_closed(before)

    def told(self) -> dict[str, Any]:
        """The counts for JSON."""
        self._count_closed(list(self._closing))
        return {
            "srtt": self._srtt.told(),
            "min_rtt": self._min_rtt.told(),
            "handshake": self._handshake.told(),
            "duration": {role: one.told() for role, one in self._durations.items()},
            "retransmits": dict(self._retransmits),
            "zero_window": dict(self._zero),
            "opened": dict(self._opened),
            "closed": [[role, end, count] for (role, end), count in self._closed.items()],
        }

    def _count_retransmits(self, entries: NDArray[Any], locations: NDArray[Any]) -> None:
        """By the state in which a segment is sent again: a timeout, a recovery, else a probe."""
        synacks = int(np.count_nonzero(locations == self._numbers["RETRANSMIT_SYNACK"]))
        self._retransmits["synack"] += synacks
        again = entries[locations == self._numbers["RETRANSMIT"]]
        if not len(again):
            return
        names = entries.dtype.names or ()
        if "ca_state" not in names or "state" not in names:
            self._retransmits["unknown"] += int(segments_of(again).sum())
            return
        segments = segments_of(again)
        syn = again["state"] == State.SYN_SENT
        states = np.bincount(again["ca_state"][~syn], segments[~syn], minlength=CaState.LOSS + 1)
        self._retransmits["syn"] += int(segments[syn].sum())
        self._retransmits["timeout"] += int(states[CaState.LOSS])
        self._retransmits["recovery"] += int(states[CaState.RECOVERY])
        self._retransmits["probe"] += int(states[:CaState.RECOVERY].sum())

    def _turn(self, now_ns: int, location: int, connection: int, old: int, value: int) -> None:
        """A record that may begin or end a connection; value: the callvalue."""
        if not connection:
            return
        if location in self._ends:
            end = self._ends[location]
            if end == "error" and value == errno.ETIMEDOUT:
                end = "timeout"
            self._why[connection] = end
        elif location == self._numbers["STATE_CHANGE"] and value == State.SYN_SENT:
            self._opening[connection] = now_ns
        elif location == self._numbers["STATE_CHANGE"] and value == State.ESTABLISHED:
            role = "client" if old == State.SYN_SENT else "server"
            self._opened[role] += 1
            self._open[connection] = now_ns, role
            if (began_ns := self._opening.pop(connection, None)) is not None:
                self._handshake.add(np.array([(now_ns - began_ns) // 1000]))
        elif location == self._numbers["DESTROY"] or value == State.CLOSE:
            if self._opening.pop(connection, None) is not None:
                self._closed["client", "no handshake"] += 1
            elif (opened := self._open.pop(connection, None)) is not None:
                began_ns, role = opened
                self._durations[role].add(np.array([(now_ns - began_ns) // 1000]))
                self._closing[connection] = role
            elif location != self._numbers["DESTROY"] and old in SYNCHRONIZED:
                self._closing[connection] = "unknown"
            if location == self._numbers["DESTROY"]:
                self._count_closed([connection])
                self._why.pop(connection, None)

    def _count_closed(self, connections: Iterable[int]) -> None:
        for connection in connections:
            if (role := self._closing.pop(connection, None)) is not None:
                self._closed[role, self._why.get(connection, "close")] += 1

    def _forget(self) -> None:
        tables: tuple[dict[int, Any], ...] = (self._opening, self._open, self._why)
        for table in tables:
            while len(table) > self._most:
                del table[next(iter(table))]


_TURN = ("location", "conn_id", "state", "callvalue")
