# SPDX-License-Identifier: Apache-2.0
"""Questions to a dataset, each expressed once in Ibis: DuckDB answers here, Spark on a cluster.

Each answer tells `unproven`: the share of what it sums, counted in connections (or segments), of
which records may be missing. No answer depends on the order of sums: times are summed as whole us,
and a quantile is the value of a rank.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

from tcpkmon.formats.analysis.why import LIMITS
from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.dataset.analyses import check, diff, requests
from tcpkmon.formats.dataset.asked import Asked, connections, quantile, sums, unproven
from tcpkmon.formats.dataset.engines import DUCKDB, Engine, Files, ibis, opened, told
from tcpkmon.formats.dataset.store import Store

_MOST = 20


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
