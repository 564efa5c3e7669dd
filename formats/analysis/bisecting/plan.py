# SPDX-License-Identifier: Apache-2.0
"""When two sides are compared while their runs are made, and at which level each time.

A test that is repeated as data comes finds a difference by chance more often than its level says.
So the level is spent: until a share t of all runs, alpha t^2 of it (Kim and DeMets, "Design and
analysis of group sequential tests based on the type I error spending rate function", Biometrika
74, 1987, after Lan and DeMets, Biometrika 70, 1983). A look tests at what was spent since the last
one. The sum of the looks' levels is alpha, so no more than alpha of all plans stop by chance,
however the looks depend on each other (Bonferroni). The looks are settled before the first run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.analysis.diff import BY_NAME, Metric, least_p
from tcpkmon.formats.base.errors import UsageError

DEFAULT = ("duration_us", "goodput_mean")
"""Which metrics are compared unless others are named: one tells of work, the other of time that is
given. Each further one takes more runs."""
PILOT = 5
"""Runs of each side from whose scatter the power is told."""
_MOST_LOOKS = 4
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Look:
    """After so many runs of a side, at this level."""

    runs: int
    alpha: float


@dataclass(frozen=True)
class Plan:
    """runs: of each side, at most. alpha: false alarms of all metrics and looks together. least:
    the change that matters (0.05: five per cent, or points of a share). baseline: runs of the first
    side that are there already and stay as many; 0: both sides grow."""

    metrics: tuple[Metric, ...]
    runs: int
    alpha: float
    least: float
    baseline: int
    looks: tuple[Look, ...]

    @property
    def pilot(self) -> int:
        return min(PILOT, self.looks[0].runs)

    @property
    def confidence(self) -> float:
        """Of the intervals at each look, so that those of all looks hold together in 95 % of all
        plans (repeated confidence intervals: Jennison and Turnbull, JRSS B 51, 1989)."""
        return 1 - (1 - _CONFIDENCE) / len(self.looks)


def make_plan(
    names: Sequence[str], runs: int, alpha: float, least: float, baseline: int = 0
) -> Plan:
    """Settle the looks. UsageError where even sides that do not overlap would prove nothing."""
    metrics = tuple(BY_NAME[name] for name in names or DEFAULT)

    def spent(count: int) -> float:
        return alpha * (count / runs) ** 2

    def can_tell(count: int, level: float) -> bool:
        return least_p(baseline or count, count) * len(metrics) <= level

    first = next((count for count in range(1, runs + 1) if can_tell(count, spent(count))), None)
    if first is None:
        enough = _enough(len(metrics), alpha, baseline)
        raise UsageError(
            f"{runs} runs of a side prove nothing at alpha {alpha:g} for {len(metrics)} metrics, "
            "even if the sides do not overlap",
            f"it takes --runs {enough}" if enough else
            f"the baseline takes more than {baseline} captures",
        )  # fmt: skip
    looks: list[Look] = []
    before = 0.0
    for count in sorted({round(at) for at in np.linspace(first, runs, _MOST_LOOKS).tolist()}):
        level = spent(count) - before
        if can_tell(count, level):
            looks.append(Look(count, level))
            before = spent(count)
    return Plan(metrics, runs, alpha, least, baseline, tuple(looks))


def _enough(tests: int, alpha: float, baseline: int) -> int | None:
    """The least --runs with a look that may tell."""
    return next((runs for runs in range(1, 1000)
                 if least_p(baseline or runs, runs) * tests <= alpha), None)  # fmt: skip
