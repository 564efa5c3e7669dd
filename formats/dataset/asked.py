# SPDX-License-Identifier: Apache-2.0
"""What a question to a dataset may look at, and what all of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.dataset.engines import Files, ibis
from tcpkmon.formats.dataset.store import Part


@dataclass(frozen=True)
class Asked:
    """What a query may look at. day: the last one; against: the one that it is compared with.
    connection: of `story`: segment and number. that: of `check`: an assertion."""

    files: Files
    day: str
    against: str
    connection: tuple[str, int]
    that: str

    def table(self, name: str, days: Sequence[str] = (),
              keep: Callable[[Part], bool] | None = None) -> Any:  # fmt: skip
        """An Ibis table: see Files.table()."""
        return self.files.table(name, days, keep)


def connections(asked: Asked, days: Sequence[str] = ()) -> Any:
    """The connections, with the kernel. Nothing is proven in a file that contradicts itself."""
    settings = asked.table("settings", days).select("segment_id", "kernel", "exit_code")
    of = asked.table("connections", days).join(settings, "segment_id")
    return of.mutate(proven=of.proven.fill_null(False) & (of.exit_code != DamagedError.exit_code))


def unproven(of: Any) -> Any:
    return (~of.proven).cast("int64").sum() / of.count()


def sums(column: Any) -> Any:
    return column.fill_null(0).round(0).cast("int64").sum().cast("int64")


def quantile(of: Any, by: str, value: str, share: float) -> Any:
    """The value of a rank, for each group: the same on all engines."""
    of = of.filter(of[value].notnull() & of[by].notnull())
    ranked = of.mutate(
        rank=ibis().row_number().over(
            group_by=by, order_by=[of[value], of.segment_id, of.conn_id]),
        all=of.count().over(group_by=by),
    )
    at = ranked.filter(ranked["rank"] == ((ranked["all"] - 1) * share).floor().cast("int64"))
    at = at.select(by, value)
    counts = of.group_by(by).aggregate(connections=of.count(), unproven=unproven(of))
    return counts.join(at, by).order_by(by)
