# SPDX-License-Identifier: Apache-2.0
"""What a question to a dataset may look at, and what all of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tcpkmon.formats.analysis.why import FAMILY, LIMITS
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.dataset.engines import Files, ibis


@dataclass(frozen=True)
class Asked:
    """What a query may look at. day: the last one; against: the one that it is compared with.
    connection: of `story`: segment and number. that: of `check`: an assertion."""

    files: Files
    day: str
    against: str
    connection: tuple[str, int]
    that: str


def connections(asked: Asked, days: Sequence[str] = ()) -> Any:
    """The connections, with the kernel. Nothing is proven in a file that contradicts itself."""
    settings = asked.files.table("settings", days).select("segment_id", "kernel", "exit_code")
    of = asked.files.table("connections", days).join(settings, "segment_id")
    return of.mutate(proven=of.proven.fill_null(False) & (of.exit_code != DamagedError.exit_code))


def unproven(of: Any) -> Any:
    return (~of.proven).cast("int64").sum() / of.count()


def sums(column: Any) -> Any:
    return column.fill_null(0).round(0).cast("int64").sum().cast("int64")


def limited(of: Any, limit: str) -> Any:
    """The share of a connection's time in which a limit, or its family, held; null without time."""
    whole = sum((of[f"us_{name}"] for name in LIMITS[1:]), of[f"us_{LIMITS[0]}"])
    mine = [of[f"us_{name}"] for name in LIMITS if limit in (name, FAMILY.get(name))]
    return sum(mine[1:], mine[0]).cast("float64") / whole.cast("float64").nullif(0.0)


def rank(of: Any, by: Sequence[str], value: str, share: float, more: Sequence[str]) -> Any:
    """The value at a share of the order of each group: one that is there, the same on all engines.
    more: what orders equal ones."""
    ranked = of.mutate(
        place=ibis().row_number().over(group_by=list(by), order_by=[value, *more]),
        every=of.count().over(group_by=list(by)),
    )
    at = ((ranked.every - 1) * share).floor().cast("int64")
    return ranked.filter(ranked.place == at).select(*by, value)


def quantile(of: Any, by: str, value: str, share: float) -> Any:
    """The value at a share of the order of each group, with its connections."""
    of = of.filter(of[value].notnull() & of[by].notnull())
    at = rank(of, [by], value, share, ["segment_id", "conn_id"])
    counts = of.group_by(by).aggregate(connections=of.count(), unproven=unproven(of))
    return counts.join(at, by).order_by(by)
