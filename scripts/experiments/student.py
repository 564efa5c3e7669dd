# SPDX-License-Identifier: Apache-2.0
"""Whether paired differences are more than noise: Student's t, many comparisons at once."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.05


@dataclass(frozen=True)
class Change:
    """The geometric mean of some rounds' ratios.

    error: its standard error, relative. chance: of ratios so far from 1 if there is no difference.
    """

    ratio: float
    error: float
    chance: float
    rounds: int


def change(logarithms: Sequence[float]) -> Change:
    """Of the natural logarithms of the rounds' ratios, two or more."""
    count, mean = len(logarithms), statistics.fmean(logarithms)
    error = statistics.stdev(logarithms) / math.sqrt(count)
    if not error:
        return Change(math.exp(mean), 0.0, 0.0 if mean else 1.0, count)
    return Change(math.exp(mean), error, chance_of(mean / error, count - 1), count)


def chance_of(t: float, freedom: int) -> float:
    """The chance of |t| or more (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(abs(t), math.sqrt(freedom))
    odd = freedom % 2 == 1
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (k - 1) / k
        total += term
    total *= math.sin(angle)
    return max(0.0, 1 - (2 / math.pi * (angle + total) if odd else total))


def interval(found: Change) -> tuple[float, float]:
    """The 95 % confidence interval of the ratio."""
    low, high = 0.0, 1e6
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if chance_of(middle, found.rounds - 1) > LEVEL else (low, middle)
    return found.ratio * math.exp(-high * found.error), found.ratio * math.exp(high * found.error)


def differ(changes: Sequence[Change]) -> list[bool]:
    """Which of them are more than noise, by Benjamini and Hochberg.

    Of those that are called different, LEVEL are so by chance, in the mean; however many there are.
    """
    order = sorted(range(len(changes)), key=lambda i: changes[i].chance)
    last = 0
    for rank, i in enumerate(order, 1):
        if changes[i].chance <= LEVEL * rank / len(changes):
            last = rank
    chosen = set(order[:last])
    return [i in chosen for i in range(len(changes))]
