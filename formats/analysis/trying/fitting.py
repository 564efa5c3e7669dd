# SPDX-License-Identifier: Apache-2.0
"""The path of a connection, from what its sender saw: rate, delay, jitter, loss, queue.

The same is computed of a copy's captures: what the two differ by is the fit's error, and what the
next copy is corrected by.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.trying.seen import Seen

Array = NDArray[Any]
_TRAIN = 8
"""ACKs over which the rate of a train of segments is taken."""
_STANDING = 30
"""ACKs with a queue before them from which on the rate is that of a full path."""
_STEPS = (0.5, 2.0)
"""The least and most by which a correction changes a value."""
RWND, SNDBUF = "rwnd", "sndbuf"
_LIMITED = 0.05


@dataclass(frozen=True)
class Fitted:
    """A path. rate_mbit: of IP packets; is_full: whether a queue stood there, else it is the rate
    of trains of segments, and the path may be faster. rtt_ms: without a queue. jitter_ms: added to
    that, from 0 on. loss_percent: of segments, not by the queue. queue_bytes: at which it drops;
    overflowed: whether it did, else it holds more. window_bytes, sndbuf_bytes: what the receiver's
    window and the send buffer were at most, where they limited; else 0.
    """

    rate_mbit: float
    is_full: bool
    rtt_ms: float
    jitter_ms: float
    loss_percent: float
    queue_bytes: float
    overflowed: bool
    window_bytes: float = 0.0
    sndbuf_bytes: float = 0.0

    def corrected(self, wanted: Fitted, got: Fitted) -> Fitted:
        """What to set next, where this was set, and looked as `got`; wanted: the capture."""

        def scaled(now: float, goal: float, found: float) -> float:
            if not (now > 0 and goal > 0 and found > 0):
                return now
            return now * float(np.clip(goal / found, *_STEPS))

        return replace(
            self,
            rate_mbit=scaled(self.rate_mbit, wanted.rate_mbit, got.rate_mbit),
            rtt_ms=max(0.0, self.rtt_ms + wanted.rtt_ms - got.rtt_ms),
            jitter_ms=scaled(self.jitter_ms, wanted.jitter_ms, got.jitter_ms),
            queue_bytes=scaled(self.queue_bytes, wanted.queue_bytes, got.queue_bytes)
            if wanted.overflowed and got.overflowed else self.queue_bytes,
            window_bytes=scaled(self.window_bytes, wanted.window_bytes, got.window_bytes),
        )  # fmt: skip


def fit(seen: Seen) -> Fitted:
    """The path of a connection."""
    one, base = seen.connection, seen.base_us
    known = np.flatnonzero(seen.rtt_us >= 0)
    trips = seen.rtt_us[known]
    most = float(np.quantile(trips, 0.99)) if len(trips) else base
    train = _of_trains(seen)
    segment_us = one.mss / train if train else 0.0
    filled, count = _of_queue(seen, base + max(3 * segment_us, 0.1 * base, 300.0))
    is_full = count >= _STANDING
    rate = (filled if is_full else train) * seen.overhead * 8
    by_queue, at_random, height_us = _sort_losses(seen, base, most)
    segments = max(one.bytes_sent / max(one.mss, 1), 1)
    overflowed = by_queue > 0
    queue = (height_us if overflowed else most - base) * rate / 8
    share = one.share
    return Fitted(
        rate_mbit=rate, is_full=is_full, rtt_ms=base / 1000,
        jitter_ms=_jitter_us(seen, segment_us) / 1000,
        loss_percent=100 * at_random / segments, queue_bytes=max(queue, 0.0),
        overflowed=overflowed,
        window_bytes=float(one.snd_wnd_max) if share(RWND) >= _LIMITED else 0.0,
        sndbuf_bytes=float(one.sndbuf) if share(SNDBUF) >= _LIMITED else 0.0,
    )  # fmt: skip


def _of_trains(seen: Seen) -> float:
    """The rate at which trains of segments came out of the path [bytes/us]."""
    if len(seen.times_us) <= _TRAIN:
        return 0.0
    spans = seen.times_us[_TRAIN:] - seen.times_us[:-_TRAIN]
    nbytes = seen.delivered[_TRAIN:] - seen.delivered[:-_TRAIN]
    use = (spans > 0) & (nbytes > 0)
    rates = nbytes[use] / spans[use]
    return float(np.quantile(rates, 0.9)) if len(rates) else 0.0


def _of_queue(seen: Seen, above_us: float) -> tuple[float, int]:
    """The rate while a queue stood [bytes/us], and of how many ACKs."""
    standing = seen.rtt_us >= above_us
    both = standing[1:] & standing[:-1]
    spans, nbytes = np.diff(seen.times_us), np.diff(seen.delivered)
    use = both & (spans < max(seen.base_us, 5000.0))
    total = float(spans[use].sum())
    return (float(nbytes[use].sum()) / total if total > 0 else 0.0), int(use.sum())


def _sort_losses(seen: Seen, base: float, most: float) -> tuple[int, int, float]:
    """Segments lost where the queue was near its highest, those lost elsewhere, and how high it was
    before the former [us]."""
    by_queue = at_random = 0
    heights: list[float] = []
    stands = most - base > max(1000.0, 0.15 * base)
    for place, count in seen.losses.tolist():
        since = seen.times_us[place] - 2 * most
        recent = seen.rtt_us[: place + 1][seen.times_us[: place + 1] >= since]
        height = float(recent.max()) - base if len(recent) else 0.0
        if stands and height >= 0.6 * (most - base):
            by_queue += count
            heights.append(height)
        else:
            at_random += count
    # A few high round trips beside many losses elsewhere are not the queue's.
    if len(heights) < 0.2 * len(seen.losses):
        return 0, by_queue + at_random, 0.0
    return by_queue, at_random, float(np.median(heights)) if heights else 0.0


def _jitter_us(seen: Seen, segment_us: float) -> float:
    """How far round trips rise from one ACK to the next, beyond what two segments take.

    A queue rises by what is sent; a path whose delay varies jumps.
    """
    trips = seen.rtt_us
    both = (trips[1:] >= 0) & (trips[:-1] >= 0)
    steps = np.diff(trips)[both] - 3 * segment_us
    if len(steps) < _STANDING:
        return 0.0
    found = float(np.quantile(steps, 0.97))
    return found if found > max(500.0, 0.03 * seen.base_us) else 0.0
