# SPDX-License-Identifier: Apache-2.0
"""Which end of one capture is the other end of which connection of another capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.pairing.ends import End
from tcpkmon.formats.base.sequence import ahead_of
from tcpkmon.formats.base.tcp import ARRIVED

_CHANCE = 1e-6
"""How many wrong pairs chance may make of sequence numbers alone."""


@dataclass(frozen=True)
class Pair:
    """Both ends; b's sequence numbers are shifted to those of a. by: addresses or sequence."""

    a: End
    b: End
    by: str


def match(ends_a: Sequence[End], ends_b: Sequence[End]) -> list[Pair]:
    """The pairs that are sure: an end of which two are possible has none.

    By addresses where they mirror each other and the sequence numbers agree; what is left by
    sequence numbers of both directions, as behind address translation, if chance cannot do it.
    """
    found: list[Pair] = []
    by_address: dict[object, list[End]] = {}
    for b in ends_b:
        by_address.setdefault(b.reverse, []).append(b)
    groups: dict[object, list[End]] = {}
    for a in ends_a:
        if a.address in by_address:
            groups.setdefault(a.address, []).append(a)
    for key, some in groups.items():
        found += _of_group(some, by_address[key], "addresses", np.inf)
    paired_a = {pair.a.conn_id for pair in found}
    paired_b = {pair.b.conn_id for pair in found}
    left_a = [a for a in ends_a if a.conn_id not in paired_a]
    left_b = [b for b in ends_b if b.conn_id not in paired_b]
    return found + _of_group(left_a, left_b, "sequence", _CHANCE)


def _of_group(ends_a: Sequence[End], ends_b: Sequence[End], by: str, chance: float) -> list[Pair]:
    if not ends_a or not ends_b:
        return []
    spans_b = [_spans(ends_b, own) for own in (False, True)]
    candidates: list[tuple[int, int]] = []
    for at, a in enumerate(ends_a):
        fits, odds = np.ones(len(ends_b), np.bool_), np.full(len(ends_b), 1.0)
        for own, (low_b, size_b) in zip((True, False), spans_b, strict=True):
            (low,), (size,) = _spans([a], own)
            ahead = ahead_of(low_b, low)
            fits &= (ahead <= size) & (ahead + size_b >= 0)
            odds *= (size + size_b + 1) / 2.0**32
        fits &= odds * len(ends_a) * len(ends_b) < chance
        candidates += [(at, int(one)) for one in np.flatnonzero(fits)]
    times_a = Counter(at for at, _ in candidates)
    times_b = Counter(at for _, at in candidates)
    return [
        Pair(ends_a[at], _aligned(ends_a[at], ends_b[to]), by)
        for at, to in candidates
        if times_a[at] == 1 and times_b[to] == 1
    ]


def _spans(ends: Sequence[End], own: bool) -> tuple[Array, Array]:
    """(n,) first sequence numbers and lengths: of what each end sent (own), or received."""
    lows = [end.acked[0] if own else end.received[0] for end in ends]
    highs = [end.sent.max() if own else end.received.max() for end in ends]
    low = np.array(lows, np.int64)
    return low, np.array(highs, np.int64) - low


def _aligned(a: End, b: End) -> End:
    """b with the numbers of a: both count on from 32 bits of their own."""
    up = ahead_of(b.received[:1], a.sent[:1])[0] + a.sent[0] - b.received[0]
    down = ahead_of(b.sent[:1], a.received[:1])[0] + a.received[0] - b.sent[0]
    from_peer = np.isin(b.location, ARRIVED)
    shift = np.where(from_peer, up, down)
    return replace(b, sent=b.sent + down, acked=b.acked + down, received=b.received + up,
                   low=b.low + shift, high=b.high + shift)  # fmt: skip
