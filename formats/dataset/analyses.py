# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon requests`, `diff` and `check` as questions to a dataset."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

from tcpkmon.formats.analysis.diff import ALPHA, METRICS, SHARED
from tcpkmon.formats.analysis.exchanges import PARTS
from tcpkmon.formats.dataset.asked import Asked, connections, limited, rank, sums, unproven
from tcpkmon.formats.dataset.asserting import Asserted
from tcpkmon.formats.dataset.engines import ibis

_MOST = 20


def requests(asked: Asked) -> Any:
    """Exchanges of the day, by the end that saw them and the server's port. us_*: sums of parts."""
    of = asked.files.table("requests", (asked.day,))
    of = of.mutate(port=ibis().ifelse(of.side == "client", of.rport, of.lport))
    by = ["side", "port"]
    parts = {f"us_{name}": sums(of[f"{name}_ns"].cast("float64") / 1000) for name in PARTS}
    told = of.group_by(by).aggregate(
        exchanges=of.count(), unanswered=(of.response_bytes == 0).cast("int64").sum(),
        unproven=(~of.certain).cast("int64").sum() / of.count(), **parts)  # fmt: skip
    known = of.filter(of.total_ns.notnull())
    more = ["segment_id", "conn_id", "number"]
    for name, share in (("p50_ns", 0.5), ("p99_ns", 0.99)):
        at = rank(known, by, "total_ns", share, more).rename({name: "total_ns"})
        told = told.left_join(at, by).drop("side_right", "port_right")
    return told.order_by([ibis().desc(told.exchanges), told.side, told.port]).limit(_MOST)


def diff(asked: Asked) -> Any:
    """The metrics of `tcpkmon diff` of the connections of two days that moved data.

    larger: in which share of all pairs the later day's is the larger one (Mann-Whitney's U; equal
    ones count half). differs: at ALPHA by the normal approximation, corrected for the number of
    metrics (Bonferroni), as if connections were independent.
    """
    of = connections(asked, (asked.against, asked.day))
    of = of.filter((of.bytes_acked + of.bytes_received) > 0)
    sends = of.bytes_acked >= of.bytes_received
    values = {}
    for metric in METRICS:
        name = metric.name.removeprefix("share_")
        if metric.name in of.columns:
            value = of[metric.name].cast("float64")
        elif metric.name.startswith("share_") and name in SHARED:
            value = limited(of, name)
        else:
            continue
        values[metric.name] = ibis().ifelse(sends, value, None) if metric.of_sender else value
    is_later = of.date == asked.day
    of = of.select("segment_id", "conn_id", "proven", is_later=is_later, **values)
    long = of.pivot_longer(list(values), names_to="metric", values_to="value")
    long = long.filter(long.value.notnull() & ~long.value.isnan())
    order = ["segment_id", "conn_id"]
    told = long.group_by("metric").aggregate(
        n_a=(~long.is_later).cast("int64").sum(), n_b=long.is_later.cast("int64").sum(),
        unproven=unproven(long))  # fmt: skip
    both = told.filter((told.n_a > 0) & (told.n_b > 0))
    levels = long.group_by(["metric", "value"]).aggregate(
        a=(~long.is_later).cast("int64").sum(), b=long.is_later.cast("int64").sum())  # fmt: skip
    below = levels.a.cumsum(group_by="metric", order_by="value") - levels.a
    levels = levels.mutate(pairs=levels.b * (2 * below + levels.a), ties=levels.a + levels.b)
    cubes = (levels.ties * levels.ties * levels.ties - levels.ties).cast("float64")
    tested = levels.mutate(cubes=cubes).group_by("metric").aggregate(
        twice=lambda t: t.pairs.sum(), cubes=lambda t: t.cubes.sum())  # fmt: skip
    for name, later in (("median_a", False), ("median_b", True)):
        side = long.filter(long.is_later == later)
        at = rank(side, ["metric"], "value", 0.5, order).rename({name: "value"})
        both = both.join(at, "metric")
    both = both.join(tested, "metric")
    n_a, n_b = both.n_a.cast("float64"), both.n_b.cast("float64")
    every = n_a + n_b
    spread = (n_a * n_b / 12 * (every + 1 - both.cubes / (every * (every - 1)))).sqrt()
    z = (both.twice / 2 - n_a * n_b / 2) / spread.nullif(0.0)
    edge = NormalDist().inv_cdf(1 - ALPHA / 2 / len(values))
    both = both.mutate(larger=both.twice / 2 / (n_a * n_b), z=z)
    both = both.mutate(differs=(both.z.abs() > edge).fill_null(False))
    return both.select("metric", "n_a", "n_b", "median_a", "median_b", "larger", "z", "differs",
                       "unproven").order_by("metric")  # fmt: skip


def check(asked: Asked) -> Any:
    """How many connections of each host of the day break an assertion, the worst host first.

    no_value: how many of these as they have no value of what it names.
    """
    of = connections(asked, (asked.day,))
    asserted = Asserted(asked.that)
    if (where := asserted.where(of)) is not None:
        of = of.filter(where)
    of = of.mutate(holds=asserted.holds(of))
    broken, no_value = ~of.holds.fill_null(False), of.holds.isnull()
    by = of.group_by("host").aggregate(connections=of.count(), broken=broken.sum(),
                                       no_value=no_value.sum(), unproven=unproven(of))  # fmt: skip
    return by.order_by([ibis().desc(by.broken), by.host])
