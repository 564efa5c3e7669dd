# SPDX-License-Identifier: Apache-2.0
"""What a sender's capture shows of a path that is known: a transfer is simulated, packet by packet.

The sender is reno with SACK and RACK; each segment is acknowledged. The path is as
collector/lab/link.c has it: losses at random, a queue at its rate, a delay and a jitter in order,
and the delay back.
"""

from __future__ import annotations

import heapq
import random
from collections import deque

import numpy as np

from tcpkmon.collector.lab.link import Way
from tcpkmon.formats.analysis.trying import Burst, Seen
from tcpkmon.formats.analysis.why import Connection

MSS, PACKET = 1448, 1500
_RTO_S = 0.3


class _Path:
    """Both ways have the delay."""

    def __init__(self, way: Way, seed: int) -> None:
        self._way, self._chance = way, random.Random(seed)
        self._free_s = self._last_s = 0.0

    def pass_on(self, now_s: float) -> float | None:
        """When a packet's ACK comes; None: it is lost."""
        way, rate = self._way, self._way.rate_mbit * 1e6 / 8
        if self._chance.random() * 100 < way.loss_percent:
            return None
        if max(self._free_s - now_s, 0) * rate + PACKET > way.queue_bytes:
            return None
        self._free_s = max(self._free_s, now_s) + PACKET / rate
        delay_s = (way.delay_ms + self._chance.random() * way.jitter_ms) / 1000
        self._last_s = max(self._last_s, self._free_s + delay_s)
        return self._last_s + way.delay_ms / 1000


class _Sender:
    """cwnd, ssthresh, window: in segments. Segments have numbers, packets too."""

    def __init__(self, way: Way, total: int, window: float, seed: int) -> None:
        self._path, self._total, self._window = _Path(way, seed), total, window
        self.now_s, self.cwnd, self.ssthresh = 0.0, 10.0, 1e9
        self.sent = self.una = self._next = self._until = 0
        self._acks: list[tuple[float, int, int, float]] = []
        self._flying: deque[tuple[int, int]] = deque()
        self._lost: deque[int] = deque()
        self._again: set[int] = set()
        self._acked: set[int] = set()
        self.times: list[int] = []
        self.trips: list[int] = []
        self.losses: list[list[int]] = []

    def _send(self, one: int) -> None:
        self.sent += 1
        self._flying.append((self.sent, one))
        if (back := self._path.pass_on(self.now_s)) is not None:
            heapq.heappush(self._acks, (back, self.sent, one, self.now_s))

    def _send_some(self) -> None:
        while len(self._flying) < self.cwnd:
            if self._lost:
                one = self._lost.popleft()
                self._again.add(one)
                self.losses[-1][1] += 1
                self._send(one)
            elif self._next < min(self._total, self.una + self._window):
                self._send(self._next)
                self._next += 1
            else:
                break

    def _reduce(self, cwnd: float) -> None:
        self.ssthresh = max(self.cwnd / 2, 2)
        self.cwnd, self._until = cwnd or self.ssthresh, self._next
        self.losses.append([max(len(self.times) - 1, 0), 0])

    def run(self) -> None:
        """Until all is acknowledged."""
        while len(self._acked) < self._total:
            self._send_some()
            if not self._acks:
                self.now_s += _RTO_S
                self._lost.extend(one for _, one in self._flying)
                self._flying.clear()
                self._reduce(1)
                continue
            self.now_s, number, one, sent_s = heapq.heappop(self._acks)
            before, calm = self.una, self.una >= self._until
            # In a path that keeps the order, what was sent before this and did not come is lost.
            while self._flying and self._flying[0][0] <= number:
                other = self._flying.popleft()[1]
                if other != one:
                    self._lost.append(other)
            self._acked.add(one)
            while self.una in self._acked:
                self.una += 1
            if self._lost and calm:
                self._reduce(0)
                calm = False
            if calm or self.cwnd < self.ssthresh:
                self.cwnd += 1 if self.cwnd < self.ssthresh else 1 / self.cwnd
            fresh = self.una > before and calm and one not in self._again
            self.times.append(round(self.now_s * 1e6))
            self.trips.append(round((self.now_s - sent_s) * 1e6) if fresh else -1)


def simulate(way: Way, segments: int, seed: int, window_bytes: float = 0) -> Seen:
    """A transfer of so many full segments. window_bytes: the receiver's; 0: no bound."""
    sender = _Sender(way, segments, window_bytes // MSS or 1e9, seed)
    sender.run()
    whole_ns = int(sender.now_s * 1e9)
    one = Connection(
        1, mss=MSS, bytes_sent=sender.sent * MSS, bytes_acked=segments * MSS, end_ns=whole_ns,
        snd_wnd_max=int(window_bytes), limit_ns={"rwnd" if window_bytes else "cwnd": whole_ns},
        raddr="10.0.0.1", min_rtt_us=min(trip for trip in sender.trips if trip >= 0),
    )  # fmt: skip
    delivered = MSS * np.arange(1, segments + 1)
    losses = np.array(sender.losses, np.int64).reshape(-1, 2)
    return Seen(one, np.array(sender.times), delivered, np.array(sender.trips), losses,
                (Burst(0.0, segments * MSS),), True, {})  # fmt: skip
