# SPDX-License-Identifier: Apache-2.0
"""Several ordered sides: the ends are compared, then the range in which they differ is halved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tcpkmon.formats.analysis.bisecting.telling import Told

Trial = Callable[[Sequence[int], Sequence[str]], list[Told]]
"""Makes runs of the sides with these numbers, in turn, until it is known what each has more than
the one before it; compares these metrics (none: those of the plan)."""


@dataclass(frozen=True)
class Found:
    """low, high: the sides between which the change is; neighbours, unless it could not be told on
    which side of the middle it is. told: of these two. gradual: middles that differ from both ends
    of their range, where the half with the larger change was taken."""

    low: int
    high: int
    told: Told
    gradual: tuple[int, ...] = ()


def halve(sides: int, trial: Trial) -> Found:
    """Find the change between so many sides; the ends where they do not differ."""
    low, high = 0, sides - 1
    (told,) = trial((low, high), ())
    gradual: list[int] = []
    # The metric that differs most is the one to follow: a single one takes the fewest runs.
    names = [one.metric.name for one in told.changed[:1]]
    while told.changed and high - low > 1:
        middle = (low + high) // 2
        below, above = trial((low, middle, high), names)
        if below.changed and above.changed:
            gradual.append(middle)
        elif not below.changed and not above.changed:
            break
        if _size(below) >= _size(above):
            high, told = middle, below
        else:
            low, told = middle, above
    return Found(low, high, told, tuple(gradual))


def _size(told: Told) -> float:
    return max((abs(one.change or 0.0) for one in told.changed), default=-1.0)
