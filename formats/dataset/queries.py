# SPDX-License-Identifier: Apache-2.0
"""Questions to a dataset, each expressed once in Ibis: DuckDB answers here, Spark on a cluster.

Each answer tells `unproven`: the share of what it sums, counted in connections (or segments), of
which records may be missing. No answer depends on the order of sums: times are summed as whole us,
and a quantile is the value of a rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from tcpkmon.formats.analysis.why import LIMITS
from tcpkmon.formats.base.errors import DamagedError, FileError, UsageError
from tcpkmon.formats.base.installing import how_to_install
from tcpkmon.formats.dataset.store import Store

_MOST = 20


@dataclass(frozen=True)
class Asked:
    """What a query may look at. table(name): an Ibis table. day: the last one. connection: of
    `story`: segment and number."""

    table: Callable[[str], Any]
    day: str
    connection: tuple[str, int]


def ask(store: Store, name: str, engine: str = "duckdb", day: str = "",
        connection: str = "") -> Any:  # fmt: skip
    """The answer as a pyarrow.Table. engine: duckdb, or spark://... or local[N] of Spark.
    day: as 2026-11-22, by default the last one that the dataset has. UsageError."""
    query = QUERIES[name][1]
    parts = store.parts("table=settings")
    if not parts:
        raise UsageError(f"{store.url} holds no segment", "tcpkmon dataset add DIR FILE...")
    segment, _, number = connection.partition(":")
    if name == "story" and not number.isdigit():
        raise UsageError("story needs --connection SEGMENT:CONN_ID", "unproven lists segments")
    session = _spark(engine) if engine != "duckdb" else _duckdb()
    try:
        asked = Asked(_tables(store, session, engine), day or max(one.date for one in parts),
                      (segment, int(number or 0)))  # fmt: skip
        return query(asked).to_pyarrow()
    except FileError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("duckdb", "_duckdb", "ibis", "pyspark"):
            raise
        raise FileError(f"{name}: {' '.join(str(error).split())[:300]}") from error
    finally:
        session.disconnect()


def _ibis() -> Any:
    try:
        import ibis
    except ImportError as error:
        raise UsageError("questions to a dataset need ibis, which is not installed",
                         how_to_install("ibis-framework[duckdb]")) from error  # fmt: skip
    return ibis


def _duckdb() -> Any:
    return _ibis().duckdb.connect()


def _spark(master: str) -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError("--engine needs pyspark, which is not installed",
                         how_to_install("pyspark")) from error  # fmt: skip
    build = SparkSession.builder.master(master).appName("tcpkmon")
    build = build.config("spark.sql.session.timeZone", "UTC")
    build = build.config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    return _ibis().pyspark.connect(build.config("spark.ui.enabled", "false").getOrCreate())


def _tables(store: Store, session: Any, engine: str) -> Callable[[str], Any]:
    """Reads a table: columns that an older file lacks are null; date and host are text."""

    def table(name: str) -> Any:
        parts = store.parts(f"table={name}")
        if not parts:
            raise UsageError(f"{store.url} has no table {name}")
        paths = [f"{store.base}/{part.key}" for part in parts]
        if engine == "duckdb":
            if not store.is_local:
                if not session.con.filesystem_is_registered("tcpkmon"):
                    session.con.register_filesystem(_fsspec(store))
                paths = [f"tcpkmon://{path}" for path in paths]
            return session.read_parquet(paths, union_by_name=True, hive_partitioning=True,
                                        hive_types_autocast=False)  # fmt: skip
        scheme = "" if store.is_local else "s3a://"
        from pyspark.sql import SparkSession

        reader = SparkSession.active().read.options(
            mergeSchema="true", basePath=f"{scheme}{store.base}/table={name}")  # fmt: skip
        reader.parquet(*(scheme + path for path in paths)).createOrReplaceTempView(name)
        return session.table(name)

    return table


def _fsspec(store: Store) -> Any:
    """pyarrow's file system for DuckDB, which knows fsspec's."""
    from fsspec.implementations.arrow import ArrowFSWrapper

    class Files(ArrowFSWrapper):  # type: ignore[misc]
        protocol = "tcpkmon"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.removeprefix("tcpkmon://")

    return Files(store.files)


def _connections(asked: Asked) -> Any:
    """The connections, with the kernel. Nothing is proven in a file that contradicts itself."""
    settings = asked.table("settings").select("segment_id", "kernel", "exit_code")
    of = asked.table("connections").join(settings, "segment_id")
    return of.mutate(proven=of.proven.fill_null(False) & (of.exit_code != DamagedError.exit_code))


def _unproven(of: Any) -> Any:
    return (~of.proven).cast("int64").sum() / of.count()


def _sum(column: Any) -> Any:
    return column.fill_null(0).round(0).cast("int64").sum().cast("int64")


def _worst_hosts(asked: Asked) -> Any:
    ibis = _ibis()
    week = (date.fromisoformat(asked.day) - timedelta(days=7)).isoformat()
    of = _connections(asked)
    of = of.filter(of.date.isin([asked.day, week]))
    is_new = of.date == asked.day
    by = of.group_by("host").aggregate(
        sent=_sum(ibis.ifelse(is_new, of.bytes_sent, 0)),
        sent_again=_sum(ibis.ifelse(is_new, of.bytes_retrans, 0)),
        sent_week_ago=_sum(ibis.ifelse(is_new, 0, of.bytes_sent)),
        sent_again_week_ago=_sum(ibis.ifelse(is_new, 0, of.bytes_retrans)),
        unproven=_unproven(of),
    )
    by = by.mutate(ratio=by.sent_again / by.sent.nullif(0),
                   ratio_week_ago=by.sent_again_week_ago / by.sent_week_ago.nullif(0))  # fmt: skip
    return by.order_by([ibis.desc(by.ratio.fill_null(0)), by.host]).limit(_MOST)


def _limits_by_kernel(asked: Asked) -> Any:
    of = _connections(asked)
    sums = {f"us_{name}": _sum(of[f"us_{name}"]) for name in LIMITS}
    by = of.group_by("kernel").aggregate(connections=of.count(), unproven=_unproven(of), **sums)
    return by.order_by("kernel")


def _quantile(of: Any, by: str, value: str, share: float) -> Any:
    """The value of a rank, for each group: the same on all engines."""
    ibis = _ibis()
    of = of.filter(of[value].notnull() & of[by].notnull())
    ranked = of.mutate(
        rank=ibis.row_number().over(group_by=by, order_by=[of[value], of.segment_id, of.conn_id]),
        all=of.count().over(group_by=by),
    )
    at = ranked.filter(ranked["rank"] == ((ranked["all"] - 1) * share).floor().cast("int64"))
    at = at.select(by, value)
    counts = of.group_by(by).aggregate(connections=of.count(), unproven=_unproven(of))
    return counts.join(at, by).order_by(by)


def _srtt(asked: Asked) -> Any:
    of = _connections(asked)
    of = of.mutate(ca_name=of.ca_name.fill_null("not recorded"))
    return _quantile(of, "ca_name", "srtt_p99_us", 0.99)


def _handshakes(asked: Asked) -> Any:
    return _quantile(_connections(asked), "rport", "handshake_us", 0.99).limit(_MOST)


def _segments(asked: Asked) -> Any:
    of = asked.table("settings")
    of = of.filter(~of.proven.fill_null(False))
    of = of.mutate(unproven=_ibis().literal(1.0))
    return of.select("date", "host", "segment_id", "file", "verdict", "lost", "entries",
                     "unproven").order_by("date", "host", "segment_id")  # fmt: skip


def _story(asked: Asked) -> Any:
    of = asked.table("intervals")
    segment, number = asked.connection
    of = of.filter((of.segment_id == segment) & (of.conn_id == number))
    of = of.mutate(unproven=(~of.certain).cast("float64"))
    return of.select("start_ns", "end_ns", "limit", "bytes_sent", "bytes_acked", "cwnd_end",
                     "inflight_end", "unproven").order_by("start_ns")  # fmt: skip


def _groups(*by: str) -> Callable[[Asked], Any]:
    def query(asked: Asked) -> Any:
        of = _connections(asked)
        told = of.group_by(list(by)).aggregate(
            connections=of.count(), sent=_sum(of.bytes_sent), received=_sum(of.bytes_received),
            sent_again=_sum(of.bytes_retrans), unproven=_unproven(of),
        )  # fmt: skip
        keys = [_ibis().desc(told.connections), *(told[one].asc(nulls_first=True) for one in by)]
        return told.order_by(keys).limit(_MOST)

    return query


def _histogram(asked: Asked) -> Any:
    """Counts that merge: bucket n holds srtt from 2^n us to 2^(n+1)."""
    of = _connections(asked)
    of = of.filter(of.srtt_p50_us.notnull() & (of.srtt_p50_us >= 1))
    edges = [of.srtt_p50_us >= float(1 << n) for n in range(1, 32)]
    bucket = sum((edge.cast("int64") for edge in edges[1:]), edges[0].cast("int64"))
    of = of.mutate(bucket=bucket)
    by = of.group_by("date", "bucket").aggregate(connections=of.count(), unproven=_unproven(of))
    return by.order_by("date", "bucket")


def _bloat(asked: Asked) -> Any:
    ibis = _ibis()
    of = _connections(asked)
    by = of.group_by("host").aggregate(connections=of.count(), unproven=_unproven(of),
                                       bloated=of.bloat.cast("int64").sum())  # fmt: skip
    by = by.mutate(share=by.bloated / by.connections)
    return by.order_by([ibis.desc(by.share), by.host]).limit(_MOST)


QUERIES: dict[str, tuple[str, Callable[[Asked], Any]]] = {
    "worst-hosts": ("hosts by bytes sent again, on a day and a week before", _worst_hosts),
    "limits": ("time of each limit, by kernel", _limits_by_kernel),
    "srtt": ("99th percentile of srtt_p99_us, by congestion control", _srtt),
    "srtt-histogram": ("connections by srtt, powers of two, by day", _histogram),
    "handshakes": ("99th percentile of handshake_us, by the peer's port", _handshakes),
    "unproven": ("segments of which records are, or may be, missing", _segments),
    "story": ("what limited one connection, from its begin to its end", _story),
    "main-limits": ("connections and bytes by their main limit", _groups("main_limit")),
    "ends": ("connections by how they ended", _groups("end_reason", "errno")),
    "bloat": ("hosts by their share of connections with long queues", _bloat),
}
"""What each query tells, and how."""
