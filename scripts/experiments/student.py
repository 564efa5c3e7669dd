# SPDX-License-Identifier: Apache-2.0
"""Whether paired differences are more than noise: Student's t, many comparisons at once."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

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
    """The chance of |t| or more."""
    return float(2 * stats.t.sf(abs(t), freedom))


def interval(found: Change) -> tuple[float, float]:
    """The 95 % confidence interval of the ratio."""
    wide = float(stats.t.isf(LEVEL / 2, found.rounds - 1)) * found.error
    return found.ratio * math.exp(-wide), found.ratio * math.exp(wide)


def differ(changes: Sequence[Change]) -> list[bool]:
    """Which of them are more than noise, by Benjamini and Hochberg.

    Of those that are called different, LEVEL are so by chance, in the mean; however many there are.
    """
    chances = [one.chance for one in changes]
    return [bool(one <= LEVEL) for one in stats.false_discovery_control(chances)] if chances else []
