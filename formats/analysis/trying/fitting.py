# SPDX-License-Identifier: Apache-2.0
"""The path of a connection, from what its sender saw: rate, delay, jitter, loss, queue.

The same is computed of a copy's captures: what the two differ by is the fit's error, and what the
next copy is corrected by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tcpkmon.formats.analysis.trying.seen import Seen

_TRAIN = 8
"""ACKs over which the rate of a train of segments is taken."""
_STANDING = 30
"""ACKs with a queue before them from which on the rate is that of a full path."""
_STEPS = (0.5, 2.0)
"""The least and most by which a correction changes a value."""
_JITTER_MOST = 4
"""By how much a path's jitter may be larger than its first fit: packets that stay in order hide it.
What rises no more than that is no queue."""
RWND, SNDBUF = "rwnd", "sndbuf"
_LIMITED = 0.05
_CORRECTIONS = 4
_NEAR, _JITTER_NEAR = 0.04, 0.25


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
            if not (now > 0 and goal > 0):
                return now
            return now * float(np.clip(goal / found if found > 0 else np.inf, *_STEPS))

        return replace(
            self,
            rate_mbit=scaled(self.rate_mbit, wanted.rate_mbit, got.rate_mbit),
            rtt_ms=max(0.0, self.rtt_ms + wanted.rtt_ms - got.rtt_ms),
            jitter_ms=scaled(self.jitter_ms, wanted.jitter_ms, got.jitter_ms),
            queue_bytes=scaled(self.queue_bytes, wanted.queue_bytes, got.queue_bytes)
            if wanted.overflowed and got.overflowed else self.queue_bytes,
            window_bytes=scaled(self.window_bytes, wanted.window_bytes, got.window_bytes),
        )  # fmt: skip

    def implied(self, wanted: Fitted, got: Fitted) -> Fitted:
        """What the capture's path is, if this, which was set, looks as `got`."""
        lost = self.loss_percent + wanted.loss_percent - got.loss_percent
        return replace(self.corrected(wanted, got), loss_percent=max(lost, 0.0))


def approach(
    wanted: Fitted, first: Fitted, play: Callable[[Fitted], Fitted],
    allow: Callable[[Fitted], Fitted] = lambda path: path, fixed: Sequence[str] = (),
) -> tuple[Fitted, list[Fitted]]:
    """What to set so that a copy looks as wanted, and what each play of it implied. It is played
    until it is near, four times at most.

    play: a copy with this path, and what it looks like. allow: what may be set. fixed: values that
    need not be near.
    """  # fmt: skip
    set_to, implied = first, list[Fitted]()
    for number in range(_CORRECTIONS):
        got = play(set_to)
        implied.append(set_to.implied(wanted, got))
        if number and _is_near(wanted, got, fixed):
            break
        set_to = allow(set_to.corrected(wanted, got))
    return set_to, implied


def _is_near(wanted: Fitted, got: Fitted, fixed: Sequence[str]) -> bool:
    names = {"rtt_ms", "window_bytes", "rate_mbit", "jitter_ms"} - {*fixed}
    if wanted.overflowed:
        names.add("queue_bytes")
    for name in names:
        goal, may = getattr(wanted, name), _JITTER_NEAR if name == "jitter_ms" else _NEAR
        if goal and abs(getattr(got, name) - goal) > may * goal:
            return False
    return True


def spans(wanted: Fitted, implied: Sequence[Fitted]) -> dict[str, tuple[float, float]]:
    """From what to what the path's values are, by what copies imply; only of those that the
    capture tells: not the rate of a path that was never filled, nor a queue that never dropped."""
    told = {"rate_mbit": wanted.is_full, "rtt_ms": True, "jitter_ms": wanted.jitter_ms > 0,
            "loss_percent": True, "queue_bytes": wanted.overflowed,
            "window_bytes": wanted.window_bytes > 0}  # fmt: skip
    found = {name: [getattr(one, name) for one in implied] for name, is_told in told.items()
             if is_told}  # fmt: skip
    return {name: (min(values), max(values)) for name, values in found.items()}


def fit(seen: Seen) -> Fitted:
    """The path of a connection."""
    one, base = seen.connection, seen.base_us
    known = np.flatnonzero(seen.rtt_us >= 0)
    trips = seen.rtt_us[known]
    most = float(np.quantile(trips, 0.99)) if len(trips) else base
    train = _of_trains(seen)
    segment_us = one.mss / train if train else 0.0
    jitter = _jitter_us(seen, segment_us)
    above = base + max(3 * segment_us, 0.1 * base, 300.0) + _JITTER_MOST * jitter
    filled, count = _of_queue(seen, above)
    is_full = count >= _STANDING
    rate = (filled if is_full else train) * seen.overhead * 8
    by_queue, at_random, height_us = _sort_losses(seen, base, most)
    segments = max(one.bytes_sent / max(one.mss, 1), 1)
    overflowed = by_queue > 0
    queue = (height_us if overflowed else most - base) * rate / 8
    share = one.share
    return Fitted(
        rate_mbit=rate, is_full=is_full, rtt_ms=base / 1000,
        jitter_ms=jitter / 1000,
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
    # A few high round trips beside many losses elsewhere are not the queue's, unless most of what
    # was lost was lost there: slow start that overflows it.
    if len(heights) < 0.2 * len(seen.losses) and by_queue <= at_random:
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
