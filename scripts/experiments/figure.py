# SPDX-License-Identifier: Apache-2.0
"""A row of the page's first table: a figure of then, ours, and whether it is what was wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.experiments.report import NONE, Table
from scripts.experiments.stats import number
from scripts.experiments.student import Change, change, interval


@dataclass(frozen=True)
class Figure:
    """reached: None where nothing was to be reached, or was measured."""

    experiment: str
    then: str
    now: str
    wanted: str
    reached: bool | None
    unclear: bool = False
    """Missed by no more than noise may be: the interval has both."""


@dataclass(frozen=True)
class Value:
    """A mean with its 95 % confidence interval."""

    value: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, logarithms: Sequence[float]) -> Value:
        """Of the rounds' ratios, two or more: their geometric mean."""
        found: Change = change(logarithms)
        return cls(found.ratio, *interval(found), found.rounds)

    def text(self, digits: int, unit: str = "") -> str:
        low, high = number(self.low, digits), number(self.high, digits)
        return f"{number(self.value, digits)}{unit} ({low} to {high})"

    def percent_lost(self) -> Value:
        """Of a rate, if this is how many times as long the work takes."""
        value, low, high = (100 * (1 - 1 / one) for one in (self.value, self.low, self.high))
        return Value(value, low, high, self.rounds)

    def figure(self, experiment: str, then: str, wanted: str, most: float, now: str) -> Figure:
        """Whether it is at most so much."""
        reached, unclear = self.value <= most, self.low <= most < self.value
        return Figure(experiment, then, now, wanted, reached, unclear)


def table_of(figures: Sequence[Figure], then: str) -> Table:
    """All of them; then: the year of the others."""
    words = {True: "yes", False: "**no**", None: NONE}
    return Table(
        f"What {then} measured, and what this machine does",
        ("experiment", then, "here", "wanted", "reached"),
        [(f.experiment, f.then, f.now, f.wanted, "~" if f.unclear else words[f.reached])
         for f in figures],
        "In brackets: 95 % confidence intervals. ~: missed, but the interval has what was wanted, "
        "so noise can be the reason.",
    )  # fmt: skip
