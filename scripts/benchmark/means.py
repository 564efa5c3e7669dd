# SPDX-License-Identifier: Apache-2.0
"""Slowdowns over all work, of a tool and beside those of another: what the targets compare.

A work that scatters by more than STEADY decides nothing: it is in no mean and in no verdict.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from scripts.benchmark import slowdown
from scripts.benchmark.work import WORK
from scripts.experiments import interleaved
from scripts.experiments.results import Results
from scripts.experiments.stats import deviation, number, percent, standard_error

STEADY = 0.03
"""The most that a deciding work's slowdowns without any tool may scatter."""
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


def scatter_of(results: Results, work: str) -> float | None:
    """The standard deviation, by the quartiles, of the work's slowdowns off against off: of single
    rounds, whose median is compared. None where it is not known."""
    found = results.slowdowns(slowdown.NAME, work, slowdown.OFF, interleaved.bare(slowdown.OFF))
    return deviation(found) if len(found) > 2 else None


def deciding(results: Results) -> list[str]:
    """The work that decides; of a quick run all, as few rounds do not tell how it scatters."""
    if results.quick:
        return list(WORK)
    return [work for work in WORK if (scatter_of(results, work) or 0.0) <= STEADY]


def slowdown_of(results: Results, case: str, work: str) -> Mean | None:
    """The median of the rounds."""
    found = results.slowdowns(slowdown.NAME, work, case, interleaved.bare(case))
    return Mean(statistics.median(found), standard_error(found)) if found else None


def mean_slowdown(results: Results, case: str) -> Mean | None:
    """The mean over the deciding work of its median slowdown."""
    works = deciding(results)
    found = [mean for work in works if (mean := slowdown_of(results, case, work)) is not None]
    if not found:
        return None
    error = math.hypot(*(mean.error for mean in found)) / len(found)
    return Mean(statistics.fmean(mean.value for mean in found), error)


def mean_cpu(results: Results, case: str) -> float | None:
    """How many times as much CPU the deciding work takes, the mean over it."""
    found = [
        results.ratio(slowdown.NAME, interleaved.cpu_subject(work), case, interleaved.bare(case))
        for work in deciding(results)
    ]
    medians = [one.median for one in found if one is not None]
    return statistics.fmean(medians) if medians else None


def beside(results: Results, case: str, other: str) -> Beside | None:
    """The means over the deciding work of two cases."""
    ours, theirs = mean_slowdown(results, case), mean_slowdown(results, other)
    return None if ours is None or theirs is None else Beside("mean", ours, theirs)


def each_beside(results: Results, case: str, other: str, limit: float = 1.0) -> list[Beside]:
    """Two cases in each deciding work: first where the case is most beyond `limit` times the
    other."""
    found = []
    for work in deciding(results):
        ours, theirs = slowdown_of(results, case, work), slowdown_of(results, other, work)
        if ours is not None and theirs is not None:
            found.append(Beside(work, ours, theirs))
    return sorted(found, key=lambda one: -one.excess(limit).value)


def within(excess: Mean) -> bool | None:
    """Whether a limit is kept; None: it is exceeded, but by no more than noise may be."""
    if excess.value <= 0:
        return True
    return None if excess.value <= SURE * excess.error else False
