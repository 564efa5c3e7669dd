# SPDX-License-Identifier: Apache-2.0
"""What a sender's capture shows of a path that is known: a transfer is simulated, packet by packet.

The sender is reno with SACK; each segment is acknowledged. The path is as collector/lab/link.c has
it: a queue at its rate, then a delay and a jitter in order, then the delay back; losses at random
are before the queue.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import numpy as np

from tcpkmon.formats.analysis.trying import Burst, Fitted, Seen
from tcpkmon.formats.analysis.why import Connection

MSS, PACKET = 1448, 1500
_RTO_S, _DUPLICATES = 0.3, 3


@dataclass
class _Path:
    """What it does to a packet."""

    path: Fitted
    chance: random.Random
    free_s: float = 0.0
    last_s: float = 0.0

    def pass_on(self, now_s: float) -> float | None:
        """When its ACK comes; None: it is lost."""
        rate, delay_s = self.path.rate_mbit * 1e6 / 8, self.path.rtt_ms / 2000
        if self.chance.random() * 100 < self.path.loss_percent:
            return None
        if max(self.free_s - now_s, 0) * rate + PACKET > self.path.queue_bytes:
            return None
        self.free_s = max(self.free_s, now_s) + PACKET / rate
        arrives = self.free_s + delay_s + self.chance.random() * self.path.jitter_ms / 1000
        self.last_s = max(self.last_s, arrives)
        return self.last_s + delay_s


@dataclass
class _Sender:
    """Its windows are in segments."""

    window: float
    cwnd: float = 10.0
    ssthresh: float = 1e9
    sent_s: dict[int, float] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    una: int = 0
    until: int = -1

    @property
    def in_recovery(self) -> bool:
        return self.una < self.until

    def shrink(self) -> None:
        self.ssthresh = max(self.cwnd / 2, 2)
        self.cwnd, self.until = self.ssthresh, len(self.sent_s)

    def grow(self) -> None:
        self.cwnd += 1 if self.cwnd < self.ssthresh else 1 / self.cwnd


def simulate(path: Fitted, segments: int, seed: int) -> Seen:
    """A transfer of so many full segments. path.window_bytes: the receiver's, 0: no bound."""
    wire = _Path(path, random.Random(seed))
    window = path.window_bytes // MSS if path.window_bytes else 1e9
    sender = _Sender(window)
    acks: list[tuple[float, int]] = []
    times, delivered, trips, losses = [], [], [], []
    now, sent, count = 0.0, 0, 0
    highest = -1

    def send(one: int) -> None:
        nonlocal sent
        sent += 1
        sender.sent_s[one] = now
        if (back := wire.pass_on(now)) is not None:
            heapq.heappush(acks, (back, one))

    while len(sender.acked) < segments:
        flying = len(sender.sent_s) - len(sender.acked)
        lost = [one for one in range(sender.una, highest - _DUPLICATES + 1)
                if one not in sender.acked and one not in sender.again]  # fmt: skip
        if lost and not sender.in_recovery:
            sender.shrink()
            losses.append([len(times) - 1, 0])
        for one in lost:
            sender.again.add(one)
            losses[-1][1] += 1
            send(one)
        while flying < min(sender.cwnd, sender.window) and len(sender.sent_s) < segments:
            send(len(sender.sent_s))
            flying += 1
        if not acks or acks[0][0] > now + 4 * path.rtt_ms / 1000 + _RTO_S:
            now += _RTO_S
            sender.shrink()
            losses.append([max(len(times) - 1, 0), 1])
            sender.again.add(sender.una)
            send(sender.una)
            continue
        now, one = heapq.heappop(acks)
        if one in sender.acked:
            continue
        was, calm = sender.una, not sender.in_recovery
        sender.acked.add(one)
        highest = max(highest, one)
        while sender.una in sender.acked:
            sender.una += 1
        count += MSS
        fresh = sender.una > was and calm and one not in sender.again
        times.append(round(now * 1e6))
        delivered.append(count)
        trips.append(round((now - sender.sent_s[one]) * 1e6) if fresh else -1)
        if not sender.in_recovery:
            sender.grow()
    limit = "rwnd" if path.window_bytes else "cwnd"
    one = Connection(
        1, mss=MSS, bytes_sent=sent * MSS, bytes_acked=segments * MSS,
        snd_wnd_max=int(path.window_bytes), end_ns=int(now * 1e9),
        limit_ns={limit: int(now * 1e9)}, raddr="10.0.0.1",
        min_rtt_us=min(trip for trip in trips if trip >= 0),
    )  # fmt: skip
    return Seen(
        one, np.array(times), np.array(delivered), np.array(trips),
        np.array(losses, np.int64).reshape(-1, 2), (Burst(0.0, segments * MSS),), True, {},
    )  # fmt: skip
