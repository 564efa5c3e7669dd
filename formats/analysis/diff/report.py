# SPDX-License-Identifier: Apache-2.0
"""What a comparison found, as plain values: for people, for --json and for pictures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.diff.conditions import Condition, Judged, judge
from tcpkmon.formats.analysis.diff.settings import Difference, differences
from tcpkmon.formats.analysis.diff.sides import Side
from tcpkmon.formats.analysis.diff.statistics import ALPHA, Compared, Family, compare
from tcpkmon.formats.analysis.diff.units import CONNECTION, RUN, values_of_side


@dataclass(frozen=True)
class Report:
    """a, b: the sides. values: of each, (units,) by metric. compared: by metric."""

    a: Side
    b: Side
    unit: str
    settings: list[Difference]
    values: tuple[dict[str, Array], dict[str, Array]]
    compared: dict[str, Compared]
    families: list[Family]
    alpha: float
    judged: list[Judged]


def make_report(
    a: Side,
    b: Side,
    conditions: Sequence[Condition] = (),
    alpha: float = ALPHA,
    metrics: Collection[str] = (),
    unit: str = "",
) -> Report:
    """Compare two sides. unit: empty: a run where a side has several. UsageError without scipy."""
    unit = unit or (RUN if max(len(a.runs), len(b.runs)) > 1 else CONNECTION)
    sides = [values_of_side([(run.connections, run.flows) for run in side.runs], unit)
             for side in (a, b)]  # fmt: skip
    named = {metric.name for one in conditions for metric in one.metrics}
    wanted = {*metrics, *named} if metrics else ()
    compared, families = compare(sides[0], sides[1], named, alpha, wanted)
    by_name = {one.metric.name: one for one in compared}
    settings = differences([run.settings for run in a.runs], [run.settings for run in b.runs])
    return Report(a, b, unit, settings, (sides[0], sides[1]), by_name, families, alpha,
                  judge(conditions, by_name))  # fmt: skip
