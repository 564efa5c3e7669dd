# SPDX-License-Identifier: Apache-2.0
"""Questions to a dataset, each expressed once in Ibis: DuckDB answers here, Spark on a cluster.

Each answer tells `unproven`: the share of what it sums, counted in connections (or segments), of
which records may be missing. No answer depends on the order of sums: times are summed as whole us,
and a quantile is the value of a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from statistics import NormalDist
from typing import Any

from tcpkmon.formats.analysis.check import CONNECTION_KINDS, LEDGER, TableScope, compile_assertions
from tcpkmon.formats.analysis.diff import ALPHA, METRICS, SHARED
from tcpkmon.formats.analysis.exchanges import PARTS
from tcpkmon.formats.analysis.why import FAMILY, LIMITS
from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.errors import DamagedError, UsageError
from tcpkmon.formats.base.expressions import (
    COMPARISONS,
    Call,
    Name,
    Node,
    Operation,
    Text,
    parse_assertion,
)
from tcpkmon.formats.conditions import Value
from tcpkmon.formats.dataset.engines import DUCKDB, Engine, Files, ibis, opened, told
from tcpkmon.formats.dataset.store import Store

# What a question to a dataset may look at, and what all of them share.

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


# An assertion on connections, as `tcpkmon check` has it, as an expression of Ibis.

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b, "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip
_CALCULATE: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": lambda a, b: a / b.nullif(0.0),
}  # fmt: skip
_INSTEAD = "a condition on the columns of a connection, such as 'retrans_ratio < 1e-3'"


class Asserted:
    """An assertion that every connection holds or breaks; what has no value breaks it.

    UsageError for mistakes, and for what is not of each connection alone.
    """

    def __init__(self, text: str) -> None:
        (compiled,), _ = compile_assertions([text], {})
        if compiled.what != "connection" or not compiled.value.each:
            raise UsageError(f"{text!r} is not about each connection", _INSTEAD)
        parsed = parse_assertion(text)
        self._node, self._where = parsed.node, parsed.where
        self._scope = TableScope(CONNECTION_KINDS, {}, "connection")

    def holds(self, of: Any) -> Any:
        """A boolean column, null where what it needs has no value."""
        return self._make(self._node, of)

    def where(self, of: Any) -> Any:
        """The connections that it is about; None: all."""
        return None if self._where is None else self._make(self._where, of).fill_null(False)

    def _make(self, node: Node, of: Any) -> Any:
        value = self._scope.value(node)
        if value.constant is not None:
            return ibis().literal(float(value.constant))
        if isinstance(node, Text):
            return ibis().literal(node.text)
        if isinstance(node, Name):
            if node.text in LEDGER or node.text not in of.columns:
                raise UsageError(f"{node.text} is no column of the dataset's connections", _INSTEAD)
            column = of[node.text]
            return column.cast("float64") if value.kind == "number" else column
        if isinstance(node, Call):
            return self._share(node, of)
        assert isinstance(node, Operation)
        parts = [self._make(one, of) for one in node.operands]
        if node.operator == "not":
            # Not ~parts[0]: Ibis writes its isnull() as NOT x IS NULL, which is NOT (x IS NULL).
            return parts[0] == ibis().literal(False)
        if node.operator in ("and", "or"):  # null where one is, not as in SQL
            one, other = parts
            both = one & other if node.operator == "and" else one | other
            return ibis().ifelse(one.isnull() | other.isnull(), None, both)
        if node.operator == "neg":
            return -parts[0]
        one, other = self._fitted(node, parts)
        table = _COMPARE if node.operator in COMPARISONS else _CALCULATE
        return table[node.operator](one, other)

    def _fitted(self, node: Operation, parts: list[Any]) -> list[Any]:
        """Both sides in the same unit of time."""
        values = [self._scope.value(one) for one in node.operands]
        if node.operator == "*" or any(value.kind == "text" for value in values):
            return parts
        if node.operator == "/" and not all(value.unit for value in values):
            return parts
        fitted = self._scope.same_unit(values[0], values[1], node)
        return [_in(*one) for one in zip(parts, values, fitted, strict=True)]

    def _share(self, node: Call, of: Any) -> Any:
        (limit,) = node.arguments
        if not isinstance(limit, Text):
            raise UsageError(f"{node.name} is not of each connection", _INSTEAD)
        return limited(of, limit.text)


def _in(part: Any, old: Value, new: Value) -> Any:
    if new.constant is not None:
        return ibis().literal(float(new.constant))
    if old.unit is None or old.unit == new.unit or new.unit is None:
        return part
    return part * (old.unit / new.unit)


# `tcpkmon requests`, `diff` and `check` as questions to a dataset.

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


def ask(store: Store, name: str, engine: str | Engine = DUCKDB, day: str = "",
        against: str = "", connection: str = "", that: str = "",
        files: Files | None = None) -> Any:  # fmt: skip
    """The answer as a pyarrow.Table. engine: duckdb, or spark://... or local[N] of Spark, or one
    that is open. day: as 2026-11-22, by default the last one that the dataset has; against: the
    other one, by default a week before. files: learns which were read. UsageError, FileError."""
    if isinstance(engine, str):
        with opened(engine) as one:
            return ask(store, name, one, day, against, connection, that, files)
    files = files or Files(store, engine)
    asked = _asked(files, name, day, against, connection, that)
    with told(name):
        return _in_utc(QUERIES[name][1](asked).to_pyarrow())


def _in_utc(answer: Any) -> Any:
    """Spark's times of day do not say that they are UTC, as its session is."""
    pyarrow = import_pyarrow()
    for at, field in enumerate(answer.schema):
        if pyarrow.types.is_timestamp(field.type):
            kind = pyarrow.timestamp("us", "UTC")
            answer = answer.set_column(at, field.with_type(kind), answer[field.name].cast(kind))
    return answer


def _asked(files: Files, name: str, day: str, against: str, connection: str, that: str) -> Asked:
    days = files.store.days("table=settings")
    if not days:
        raise UsageError(f"{files.store.url} holds no segment", "tcpkmon dataset add DIR FILE...")
    segment, _, number = connection.rpartition(":")
    if name == "story" and not (segment and number.isdigit()):
        raise UsageError("story needs --connection SEGMENT:CONN_ID",
                         "worst-connections lists them")  # fmt: skip
    if name == "check" and not that:
        raise UsageError("check needs --that ASSERTION", "such as 'retrans_ratio < 1e-3'")
    day = day or days[-1]
    if not against:
        against = (_date(day) - timedelta(days=7)).isoformat()
    _date(against)
    return Asked(files, day, against, (segment, int(number) if number.isdigit() else 0), that)


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{text} is no date", "give one as 2026-11-22") from error


def _worst_hosts(asked: Asked) -> Any:
    of = connections(asked, (asked.against, asked.day))
    is_new = of.date == asked.day
    by = of.group_by("host").aggregate(
        sent=sums(ibis().ifelse(is_new, of.bytes_sent, 0)),
        sent_again=sums(ibis().ifelse(is_new, of.bytes_retrans, 0)),
        sent_week_ago=sums(ibis().ifelse(is_new, 0, of.bytes_sent)),
        sent_again_week_ago=sums(ibis().ifelse(is_new, 0, of.bytes_retrans)),
        unproven=unproven(of),
    )
    by = by.mutate(ratio=by.sent_again / by.sent.nullif(0),
                   ratio_week_ago=by.sent_again_week_ago / by.sent_week_ago.nullif(0))  # fmt: skip
    return by.order_by([ibis().desc(by.ratio.fill_null(0)), by.host]).limit(_MOST)


def _limits_by_kernel(asked: Asked) -> Any:
    of = connections(asked)
    times = {f"us_{name}": sums(of[f"us_{name}"]) for name in LIMITS}
    by = of.group_by("kernel").aggregate(connections=of.count(), unproven=unproven(of), **times)
    return by.order_by("kernel")


def _srtt(asked: Asked) -> Any:
    of = connections(asked)
    of = of.mutate(ca_name=of.ca_name.fill_null("not recorded"))
    return quantile(of, "ca_name", "srtt_p99_us", 0.99)


def _handshakes(asked: Asked) -> Any:
    return quantile(connections(asked), "rport", "handshake_us", 0.99).limit(_MOST)


def _segments(asked: Asked) -> Any:
    of = asked.files.table("settings")
    of = of.filter(~of.proven.fill_null(False))
    of = of.mutate(unproven=ibis().literal(1.0))
    return of.select("date", "host", "segment_id", "file", "verdict", "lost", "entries",
                     "unproven").order_by("date", "host", "segment_id")  # fmt: skip


def _story(asked: Asked) -> Any:
    segment, number = asked.connection
    of = asked.files.table("intervals", keep=lambda part: part.is_merged or part.name == segment)
    of = of.filter((of.segment_id == segment) & (of.conn_id == number))
    of = of.mutate(unproven=(~of.certain).cast("float64"))
    return of.select("start_ns", "end_ns", "limit", "bytes_sent", "bytes_acked", "cwnd_end",
                     "inflight_end", "unproven").order_by("start_ns")  # fmt: skip


def _worst_connections(asked: Asked) -> Any:
    of = connections(asked, (asked.day,))
    of = of.filter(of.bytes_retrans > 0)
    of = of.mutate(unproven=(~of.proven).cast("float64"))
    return of.select("host", "segment_id", "conn_id", "laddr", "lport", "raddr", "rport",
                     "start", "bytes_sent", "bytes_retrans", "main_limit", "unproven").order_by(
        [ibis().desc(of.bytes_retrans), of.segment_id, of.conn_id]).limit(_MOST)  # fmt: skip


def _groups(*by: str) -> Callable[[Asked], Any]:
    def query(asked: Asked) -> Any:
        of = connections(asked)
        told = of.group_by(list(by)).aggregate(
            connections=of.count(), sent=sums(of.bytes_sent), received=sums(of.bytes_received),
            sent_again=sums(of.bytes_retrans), unproven=unproven(of),
        )  # fmt: skip
        keys = [ibis().desc(told.connections), *(told[one].asc(nulls_first=True) for one in by)]
        return told.order_by(keys).limit(_MOST)

    return query


def _histogram(asked: Asked) -> Any:
    """Counts that merge: bucket n holds srtt from 2^n us to 2^(n+1)."""
    of = connections(asked)
    of = of.filter(of.srtt_p50_us.notnull() & (of.srtt_p50_us >= 1))
    edges = [of.srtt_p50_us >= float(1 << n) for n in range(1, 32)]
    bucket = sum((edge.cast("int64") for edge in edges[1:]), edges[0].cast("int64"))
    of = of.mutate(bucket=bucket)
    by = of.group_by("date", "bucket").aggregate(connections=of.count(), unproven=unproven(of))
    return by.order_by("date", "bucket")


def _bloat(asked: Asked) -> Any:
    of = connections(asked)
    by = of.group_by("host").aggregate(connections=of.count(), unproven=unproven(of),
                                       bloated=of.bloat.cast("int64").sum())  # fmt: skip
    by = by.mutate(share=by.bloated / by.connections)
    return by.order_by([ibis().desc(by.share), by.host]).limit(_MOST)


QUERIES: dict[str, tuple[str, Callable[[Asked], Any]]] = {
    "worst-hosts": ("hosts by bytes sent again, on a day and a week before", _worst_hosts),
    "worst-connections": ("connections by bytes sent again, on a day", _worst_connections),
    "limits": ("time of each limit, by kernel", _limits_by_kernel),
    "srtt": ("99th percentile of srtt_p99_us, by congestion control", _srtt),
    "srtt-histogram": ("connections by srtt, powers of two, by day", _histogram),
    "handshakes": ("99th percentile of handshake_us, by the peer's port", _handshakes),
    "unproven": ("segments of which records are, or may be, missing", _segments),
    "story": ("what limited one connection, from its begin to its end", _story),
    "main-limits": ("connections and bytes by their main limit", _groups("main_limit")),
    "ends": ("connections by how they ended", _groups("end_reason", "errno")),
    "requests": ("exchanges by the server's port: times, and where they went", requests),
    "diff": ("a day against one before: medians, and which differ", diff),
    "check": ("an assertion on connections, by host: --that", check),
    "bloat": ("hosts by their share of connections with long queues", _bloat),
}
"""What each query tells, and how."""
