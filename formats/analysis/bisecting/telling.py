# SPDX-License-Identifier: Apache-2.0
"""What a look tells of two sides: what changed, what did not by as much as matters, and the rest.

p, changes and intervals are those of `tcpkmon diff`; the look's level takes the place of its alpha.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.bisecting.plan import Look, Plan
from tcpkmon.formats.analysis.diff import DIFFERS, SAME, Compared, compare
from tcpkmon.formats.base.errors import UsageError


@dataclass(frozen=True)
class Told:
    """runs: of each side. changed: metrics that differ, strongest first. equal: those whose change
    is within the least one that matters, by its interval. unsure: the others."""

    look: Look
    runs: tuple[int, int]
    changed: tuple[Compared, ...]
    equal: tuple[Compared, ...]
    unsure: tuple[Compared, ...]

    @property
    def is_sure(self) -> bool:
        """Whether more runs are needless: something changed, or nothing that matters."""
        return bool(self.changed) or not self.unsure


def tell(
    plan: Plan, look: Look, a: Mapping[str, Array], b: Mapping[str, Array], intervals: bool = True
) -> Told:
    """Compare two sides at a look. a, b: (runs,) values by metric. intervals: without them none is
    equal, and it is quicker. UsageError without scipy."""
    names = [metric.name for metric in plan.metrics]
    compared, _ = compare(a, b, alpha=look.alpha, metrics=names,
                          confidence=plan.confidence if intervals else 0.0)  # fmt: skip
    equal = [one for one in compared if _is_within(one, plan.least)]
    changed = [one for one in compared if one.result == DIFFERS and one not in equal]
    unsure = [one for one in compared if one not in equal and one not in changed]
    changed.sort(key=lambda one: one.p or 0.0)
    runs = tuple(max((len(side.get(name, ())) for name in names), default=0) for side in (a, b))
    return Told(look, (runs[0], runs[1]), tuple(changed), tuple(equal), tuple(unsure))


def _is_within(one: Compared, least: float) -> bool:
    """By its interval; values that are all the same need none."""
    if one.result == SAME and one.p is None:
        return abs(one.change or 0.0) < least
    return one.interval is not None and max(map(abs, one.interval)) < least


def refuse_useless(plan: Plan, a: Mapping[str, Array], b: Mapping[str, Array]) -> None:
    """UsageError where the first runs show that no run can tell anything: a metric that no run has,
    or values that are all the same."""
    both = {
        metric.name: np.concatenate([side.get(metric.name, np.zeros(0)) for side in (a, b)])
        for metric in plan.metrics
    }
    if absent := [name for name, values in both.items() if not len(values)]:
        raise UsageError(f"no run has a value of {', '.join(absent)}", "name others by --metrics")
    if all((values == values[0]).all() for values in both.values()):
        told = ", ".join(f"{name} {values[0]:g}" for name, values in both.items())
        raise UsageError(
            f"all runs of both sides are equal ({told}): nothing here depends on the side",
            "name other --metrics, or a command that does more",
        )
