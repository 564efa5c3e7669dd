# SPDX-License-Identifier: Apache-2.0
"""Slowdowns over all work, of a tool and beside those of another: what the targets compare."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from scripts.benchmark import slowdown
from scripts.benchmark.work import WORK
from scripts.experiments import interleaved
from scripts.experiments.results import Results
from scripts.experiments.stats import number, percent, standard_error

SURE = 2.0
"""So many standard errors beyond a limit are not noise."""


@dataclass(frozen=True)
class Mean:
    """A slowdown (0.1: 10 % longer) and its standard error (nan where there was but one round)."""

    value: float
    error: float

    @property
    def text(self) -> str:
        """As `12.3 % ± 0.4`."""
        more = "" if math.isnan(self.error) else f" \u00b1 {100 * self.error:.1f}"
        return percent(self.value) + more


@dataclass(frozen=True)
class Beside:
    """A slowdown beside another in the same work (or the mean of all work)."""

    work: str
    ours: Mean
    other: Mean

    @property
    def ratio(self) -> float:
        """inf where the other tool costs nothing."""
        return self.ours.value / self.other.value if self.other.value > 0 else math.inf

    @property
    def text(self) -> str:
        """The ratio with its standard error, as `0.55 ± 0.12`; both, where it means nothing."""
        if not self.is_known:
            return f"{self.ours.text} against {self.other.text}"
        error = math.hypot(self.ours.error, self.ratio * self.other.error) / self.other.value
        more = "" if math.isnan(error) else f" \u00b1 {error:.2f}"
        return number(self.ratio) + more

    @property
    def is_known(self) -> bool:
        """The other's slowdown is more than noise, so that the ratio means something."""
        error = 0.0 if math.isnan(self.other.error) else self.other.error
        return self.other.value > SURE * error

    def excess(self, limit: float) -> Mean:
        """By how much ours is beyond `limit` times the other."""
        return Mean(
            self.ours.value - limit * self.other.value,
            math.hypot(self.ours.error, limit * self.other.error),
        )


def slowdown_of(results: Results, case: str, work: str) -> Mean | None:
    """The median of the rounds."""
    found = results.slowdowns(slowdown.NAME, work, case, interleaved.bare(case))
    return Mean(statistics.median(found), standard_error(found)) if found else None


def mean_slowdown(results: Results, case: str) -> Mean | None:
    """The mean over all work of its median slowdown."""
    found = [mean for work in WORK if (mean := slowdown_of(results, case, work)) is not None]
    if not found:
        return None
    error = math.hypot(*(mean.error for mean in found)) / len(found)
    return Mean(statistics.fmean(mean.value for mean in found), error)


def mean_cpu(results: Results, case: str) -> float | None:
    """How many times as much CPU the work takes, the mean over all of it."""
    found = [
        results.ratio(slowdown.NAME, interleaved.cpu_subject(work), case, interleaved.bare(case))
        for work in WORK
    ]
    medians = [one.median for one in found if one is not None]
    return statistics.fmean(medians) if medians else None


def beside(results: Results, case: str, other: str) -> Beside | None:
    """The means over all work of two cases."""
    ours, theirs = mean_slowdown(results, case), mean_slowdown(results, other)
    return None if ours is None or theirs is None else Beside("mean", ours, theirs)


def each_beside(results: Results, case: str, other: str, limit: float = 1.0) -> list[Beside]:
    """Two cases in each work: first where the case is most beyond `limit` times the other."""
    found = []
    for work in WORK:
        ours, theirs = slowdown_of(results, case, work), slowdown_of(results, other, work)
        if ours is not None and theirs is not None:
            found.append(Beside(work, ours, theirs))
    return sorted(found, key=lambda one: -one.excess(limit).value)


def within(excess: Mean) -> bool | None:
    """Whether a limit is kept; None: it is exceeded, but by no more than noise may be."""
    if excess.value <= 0:
        return True
    return None if excess.value <= SURE * excess.error else False
