# SPDX-License-Identifier: Apache-2.0
"""The results of a run, kept as JSON; medians and ratios of the rounds, what is beyond noise."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from scipy import stats

MANY = 10
"""From so many rounds on, quartiles: the extremes would grow with the number of rounds."""
LEVEL = 0.05
"""Of what is called a difference, so much is one by chance."""


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


def differ(changes: Sequence[Change]) -> list[bool]:
    """Which of them are more than noise, by Benjamini and Hochberg.

    Of those that are called different, LEVEL are so by chance, in the mean; however many there are.
    """
    chances = [one.chance for one in changes]
    return [bool(one <= LEVEL) for one in stats.false_discovery_control(chances)] if chances else []


@dataclass
class Results:
    """Values by section, subject and case, one a round; skipped cases by section.

    machine: its description. seconds: the duration of each section.
    """

    machine: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    quick: bool = False
    values: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    skipped: dict[str, dict[str, str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, section: str, subject: str, case: str, value: float) -> None:
        subjects = self.values.setdefault(section, {})
        subjects.setdefault(subject, {}).setdefault(case, []).append(value)

    def skip(self, section: str, case: str, reason: str) -> None:
        self.skipped.setdefault(section, {})[case] = reason

    def is_skipped(self, section: str, case: str) -> bool:
        return case in self.skipped.get(section, {})

    def all(self, section: str, subject: str, case: str) -> list[float]:
        """The rounds' values; [] when it was not measured."""
        return self.values.get(section, {}).get(subject, {}).get(case, [])

    def spread(self, section: str, subject: str, case: str) -> Spread | None:
        return spread(self.all(section, subject, case))

    def median(self, section: str, subject: str, case: str) -> float | None:
        found = self.spread(section, subject, case)
        return None if found is None else found.median

    def slowdowns(self, section: str, subject: str, case: str, bare: str) -> list[float]:
        """By round, how much longer the subject's work took in this case than in the bare one."""
        return slowdowns(self.all(section, subject, case), self.all(section, subject, bare))

    def ratio(self, section: str, subject: str, case: str, other: str) -> Spread | None:
        """The subject's value in this case, divided by that in the other, round by round."""
        return spread(ratios(self.all(section, subject, case), self.all(section, subject, other)))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Results:
        """What to_json wrote; ValueError for anything else."""
        try:
            raw: Any = json.loads(text)
            return cls(**raw)
        except TypeError as error:
            raise ValueError(f"no results of scripts/bench: {error}") from None
