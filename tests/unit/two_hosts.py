# SPDX-License-Identifier: Apache-2.0
"""Two hosts' ends of a connection, made up: clocks, delays, losses and jitter are known."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.pairing import End
from tcpkmon.formats.base.tcp import Location

MSS = 1448
HERE, THERE = b"\0" * 10 + b"\xff\xff\x0a\0\0\x01", b"\0" * 10 + b"\xff\xff\x0a\0\0\x02"
_ACK_NS = 5_000
"""From a segment's record to its ACK's departure."""


@dataclass(frozen=True)
class Case:
    """forth_ns, back_ns: least delays; jitter: of the delays, a mean by least delay. reorders:
    jitter overtakes. full: with TRANSMIT and the column seg_ack."""

    seed: int = 1
    segments: int = 200
    every_ns: int = 5_000_000
    forth_ns: int = 3_000_000
    back_ns: int = 9_000_000
    jitter: float = 0.3
    loss: float = 0.02
    reorders: bool = False
    offset_ns: int = -7_000_000_000
    drift: float = 40e-6
    full: bool = True
    first_seq: int = (1 << 32) - 50 * MSS
    start_ns: int = 5_000_000_000_000

    def clock_b(self, at: Any) -> Any:
        """B's clock at a time of A's."""
        since = np.asarray(at, np.int64) - self.start_ns
        return np.asarray(at, np.int64) + self.offset_ns + np.rint(since * self.drift).astype(int)


@dataclass
class Run:
    """The ends, and the truth in A's time: departures and arrivals of data, and of ACKs that tell
    a new number; the offset of each copy that was lost."""

    a: End
    b: End
    data: tuple[NDArray[Any], NDArray[Any]]
    acks: tuple[NDArray[Any], NDArray[Any]]
    lost: list[int]


def run(case: Case) -> Run:
    """Segments at even times; what is lost is sent again 40 ms later; an ACK for each."""
    rng = np.random.default_rng(case.seed)
    copies: list[tuple[int, int, int | None]] = []  # sent, number, arrived
    for number in range(case.segments):
        at = case.start_ns + number * case.every_ns
        while rng.random() < case.loss:
            copies.append((at, number, None))
            at += 40_000_000
        delay = case.forth_ns * (1 + rng.exponential(case.jitter))
        copies.append((at, number, at + int(delay)))
    copies.sort()
    if not case.reorders:
        before = 0
        for at, (left, number, came) in enumerate(copies):
            if came is not None:
                before = max(before + 1, came)
                copies[at] = left, number, before
    zero = case.first_seq
    begin = case.start_ns - 1_000_000
    rows_a = [(begin, Location.STATE_CHANGE, 0, 0, 0, 0)]
    rows_b = [(begin - case.back_ns, Location.STATE_CHANGE, 0, 0, 0, 0)]
    arrived = sorted((came, number) for _, number, came in copies if came is not None)
    have, upto, acks = set(), 0, []
    for came, number in arrived:
        low = number * MSS
        rows_b.append((came, Location.SEGMENT_RECEIVED, 0, upto * MSS, low, low + MSS))
        have.add(number)
        while upto in have:
            upto += 1
        left = came + _ACK_NS
        back = left + int(case.back_ns * (1 + rng.exponential(case.jitter)))
        if acks and not case.reorders:
            back = max(back, acks[-1][0] + 1)
        acks.append((back, upto * MSS, left))
    seen, top = set(), 0
    events = sorted([(at, 0, number, 0) for at, number, _ in copies]
                    + [(back, 1, 0, ack) for back, ack, _ in acks])  # fmt: skip
    una = 0
    for at, kind, number, ack in events:
        if kind:
            told, una = una, max(una, ack)
            rows_a.append((at, Location.SEGMENT_RECEIVED, una if case.full else told, top, 0, 0))
            continue
        low = number * MSS
        if case.full:
            rows_a.append((at, Location.TRANSMIT, una, top, low, low + MSS))
        if number in seen:
            rows_a.append((at + 2_000, Location.RETRANSMIT, una, top, low, low + MSS))
        seen.add(number)
        top = max(top, low + MSS)
    a = np.array(sorted(rows_a), np.int64).T
    b = np.array(rows_b, np.int64).T
    nothing = np.zeros(a.shape[1], np.int64)
    out = a[1] != Location.SEGMENT_RECEIVED
    end_a = End(1, (HERE, 40000, THERE, 80), a[0], a[1], a[3] + zero, a[2] + zero, nothing + 77,
                np.where(out, a[4] + zero, 77), np.where(out, a[5] + zero, 77))  # fmt: skip
    none = np.zeros(b.shape[1], np.int64)
    end_b = End(9, (THERE, 80, HERE, 40000), case.clock_b(b[0]), b[1], none + 77, none + 77,
                b[3] + zero, b[4] + zero, b[5] + zero)  # fmt: skip
    data = np.array([(at, came) for at, _, came in copies if came is not None], np.int64).T
    new = [one for before, one in pairwise([(0, 0, 0), *acks]) if one[1] > before[1]]
    acked = np.array([(left, back) for back, _, left in new], np.int64).T
    lost = [number * MSS for _, number, came in copies if came is None]
    return Run(end_a, end_b, (data[0], data[1]), (acked[0], acked[1]), sorted(lost))
