# SPDX-License-Identifier: Apache-2.0
"""What so many runs of a side can show, told from the scatter of the first ones.

Noether, "Sample size determination for some common nonparametric tests", JASA 82 (1987), for
Mann-Whitney: N = (z_a/2 + z_b)^2 / (12 c (1 - c) (p - 1/2)^2), where p is the chance that a value
of the one side is above one of the other; here of two normal ones, on the logarithm of the metric
(of shares on the metric). A scatter from few runs is uncertain: the bound that it exceeds in one
case of five is taken, so that four plans of five have the power that is told (Browne, Statistics in
Medicine 14, 1995). The level is that of the last look; the earlier ones only add to the power.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import expm1, inf, log1p, sqrt

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.bisecting.plan import Plan
from tcpkmon.formats.analysis.diff import SHARE, Metric, scipy_stats

POWER = 0.8
_DOUBT = 0.2
_MOST_RUNS = 100_000


@dataclass(frozen=True)
class Power:
    """scatter: standard deviation within a side (relative, of a share in points), and scatter_most
    its bound. shows: the least change that all runs of the plan show; infinite where they show none
    that does not move every run. needed: runs of a side that show the plan's least change; None:
    no number does."""

    metric: Metric
    scatter: float
    scatter_most: float
    shows: float
    needed: int | None


def powers(plan: Plan, *sides: Mapping[str, Array]) -> list[Power]:
    """Of each metric that scatters. sides: (runs,) values by metric. Left out: a metric without a
    value in two runs of a side, and one that is sometimes 0, which has no relative scatter."""
    found = (_power(plan, metric, [side.get(metric.name, np.zeros(0)) for side in sides])
             for metric in plan.metrics)  # fmt: skip
    return [one for one in found if one is not None]


def _power(plan: Plan, metric: Metric, sides: list[Array]) -> Power | None:
    is_share = metric.kind == SHARE
    if any(len(side) < 2 or (not is_share and (side <= 0).any()) for side in sides):
        return None
    scaled = [side if is_share else np.log(side) for side in sides]
    freedom = sum(len(side) - 1 for side in scaled)
    scatter = sqrt(sum(float(((side - side.mean()) ** 2).sum()) for side in scaled) / freedom)
    stats = scipy_stats()
    most = scatter * sqrt(freedom / float(stats.chi2.ppf(_DOUBT, freedom)))
    normal = stats.norm
    level = plan.looks[-1].alpha / len(plan.metrics)
    z = float(normal.isf(level / 2) + normal.isf(1 - POWER))

    def shift(runs: int) -> float:
        """The least one that so many runs of a side show."""
        above = z / sqrt(12 * _pairs(plan, runs))
        return most * sqrt(2) * float(normal.ppf(0.5 + above)) if above < 0.5 else inf

    shows, least = shift(plan.runs), plan.least if is_share else log1p(plan.least)
    needed: int | None = None
    if not most or shift(_MOST_RUNS) <= least:
        low, high = 0, _MOST_RUNS
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if shift(middle) <= least else (middle, high)
        needed = high
    return Power(metric, _shown(is_share, scatter), _shown(is_share, most),
                 _shown(is_share, shows), needed)  # fmt: skip


def _pairs(plan: Plan, runs: int) -> float:
    """N c (1 - c) of Noether's formula."""
    other = plan.baseline or runs
    return runs * other / (runs + other)


def _shown(is_share: bool, value: float) -> float:
    return value if is_share or value == inf else expm1(value)
