# SPDX-License-Identifier: Apache-2.0
"""Medians, spreads and ratios of the rounds' values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MANY = 10
"""From so many rounds on, quartiles: the extremes would grow with the number of rounds."""


@dataclass(frozen=True)
class Spread:
    """The median of some rounds, with the lowest and the highest (from MANY on: the quartiles)."""

    median: float
    low: float
    high: float
    rounds: int

    def text(self, digits: int = 2, scale: float = 1.0) -> str:
        """As `1.23 (1.20-1.31)`; a single round without the range."""
        if self.rounds == 1:
            return number(self.median * scale, digits)
        low, high = number(self.low * scale, digits), number(self.high * scale, digits)
        return f"{number(self.median * scale, digits)} ({low} to {high})"


def spread(values: Sequence[float]) -> Spread | None:
    """None when nothing was measured."""
    if not values:
        return None
    low, high = min(values), max(values)
    if len(values) >= MANY:
        low, _, high = statistics.quantiles(values, n=4)
    return Spread(statistics.median(values), low, high, len(values))


def deviation(values: Sequence[float]) -> float:
    """The standard deviation from the quartiles, for a normal distribution; two values or more."""
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 1.349


def standard_error(values: Sequence[float]) -> float:
    """The standard error of their median, from the quartiles, for a normal distribution."""
    if len(values) < 2:
        return math.nan
    return deviation(values) * math.sqrt(math.pi / 2 / len(values))


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """The ratio in each round, so that a slow drift does not count; without zero divisors."""
    return [a / b for a, b in zip(values, others, strict=False) if b]


def slowdowns(values: Sequence[float], bare: Sequence[float]) -> list[float]:
    """How much longer the work of each round took than the bare round's: 0.25 is a quarter.

    Both are rates (work per second).
    """
    return [b / a - 1 for a, b in zip(values, bare, strict=False) if a]


def number(value: float, digits: int = 2) -> str:
    """A number for people: with thousands separators; from 1000 on without decimals."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}f}"


def percent(value: float) -> str:
    """0.123 as `12.3 %`."""
    return f"{100 * value:.1f} %"
