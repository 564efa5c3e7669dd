# SPDX-License-Identifier: Apache-2.0
"""Which connections and flows of a capture count, and the values of each metric by unit.

A unit is a connection (a flow, for the times of schema magnet) or a run: a capture as a whole. An
ACK is none: those of one connection depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.check import fulfil, share_of, times_of
from tcpkmon.formats.analysis.diff.metrics import BY_NAME, METRICS, SHARED
from tcpkmon.formats.analysis.why.assemble import Table
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.conditions import Value

Flows = dict[str, Array]
"""Columns latency_*_us by name, and `bytes`, a row for each flow."""
CONNECTION, RUN = "connection", "run"


def choose_connections(table: Table, where: Value | None = None) -> tuple[Table, int]:
    """Those that moved data and fulfil the condition; of two ends of one, the sender's.

    And how many receivers fulfil it whose senders do not.
    """
    chosen = (table["bytes_acked"] + table["bytes_received"]) > 0
    if where is not None:
        chosen &= fulfil(table, where)
    counts = np.ones(len(chosen), np.bool_)
    first_of = _second_ends(table)
    counts[[*first_of]] = False
    others = sum(chosen[second] and not chosen[first] for second, first in first_of.items())
    return _take(table, chosen & counts), int(others)


def _take(table: Table, kept: Array) -> Table:
    return {name: values[kept] for name, values in table.items()}


def _second_ends(table: Table) -> dict[int, int]:
    """The rows of which the other end is in the capture too, and sent more; and that one's row."""
    ends: dict[tuple[Any, ...], list[int]] = {}
    names = ("laddr", "lport", "raddr", "rport")
    keys = list(zip(*(table[name].tolist() for name in names), strict=True))
    begins, lasts = table["start_ns"].tolist(), table["end_ns"].tolist()
    sent = list(zip(table["bytes_acked"].tolist(), (table["role"] == "active").tolist(),
                    strict=True))  # fmt: skip
    for at, key in enumerate(keys):
        ends.setdefault(key, []).append(at)
    found = {}
    for at, (laddr, lport, raddr, rport) in enumerate(keys):
        for other in ends.get((raddr, rport, laddr, lport), ()):
            overlaps = begins[at] <= lasts[other] and begins[other] <= lasts[at]
            if other != at and overlaps and (*sent[at], -at) < (*sent[other], -other):
                found[at] = other
                break
    return found


def values_by_connection(table: Table | None, flows: Flows | None) -> dict[str, Array]:
    """(n,) float64 of each metric that the capture has, without its nulls."""
    found: dict[str, Array] = {}
    if table is not None:
        sends = table["bytes_acked"] >= table["bytes_received"]
        for metric in METRICS:
            if metric.name in table:
                values = table[metric.name].astype(np.float64)
            elif metric.name.startswith("share_"):
                values = share_of(table, metric.name.removeprefix("share_"))
            else:
                continue
            found[metric.name] = values[sends] if metric.of_sender else values
    if flows is not None:
        found |= {name: values for name, values in flows.items() if name in BY_NAME}
    return {name: values[np.isfinite(values)] for name, values in found.items()}


def values_of_run(table: Table | None, flows: Flows | None) -> dict[str, Array]:
    """(1,) of each metric: the median of its connections; ratios and shares of all their sums.

    The mean time of a byte is that of all bytes.
    """
    found = {
        name: np.array([np.median(values)])
        for name, values in values_by_connection(table, flows).items() if len(values)
    }  # fmt: skip
    if table is not None:
        mine = _take(table, table["bytes_acked"] >= table["bytes_received"])
        sums = {f"share_{name}": tuple(times.sum() for times in times_of(mine, name))
                for name in SHARED}  # fmt: skip
        known = np.isfinite(mine["bytes_retrans"])
        sums["retrans_ratio"] = tuple(mine[name][known].sum() for name in
                                      ("bytes_retrans", "bytes_sent"))  # fmt: skip
        for name, (one, other) in sums.items():
            if name in found and other > 0:
                found[name] = np.array([one / other])
    if flows is not None and len(flows["bytes"]):
        for name, values in flows.items():
            known = np.isfinite(values)
            if name in found and not name.endswith("_p95_us"):
                weights = flows["bytes"][known]
                found[name] = np.array([np.average(values[known], weights=weights)])
    return found


def values_of_side(
    tables: Sequence[tuple[Table | None, Flows | None]], unit: str
) -> dict[str, Array]:
    """The values of all captures of a side together: (units,) of each metric."""
    values_of: Callable[..., dict[str, Array]] = (
        values_by_connection if unit == CONNECTION else values_of_run
    )
    found: dict[str, list[Array]] = {}
    for table, flows in tables:
        for name, values in values_of(table, flows).items():
            found.setdefault(name, []).append(values)
    return {name: np.concatenate(parts) for name, parts in found.items()}


def read_flows(path: Path) -> tuple[Flows, str] | None:
    """The times of a log's flows, and which ends were joined; None without schema magnet."""
    from tcpkmon.formats.analysis.latency import Latency, Summary, find_flows, make_report
    from tcpkmon.formats.analysis.latency.report import SIDES
    from tcpkmon.formats.analysis.log import open_log

    with open_log(path) as log:
        try:
            latency = Latency(log)
        except UsageError:
            return None
        summary = Summary(find_flows(latency.survey, []), latency.survey.begin_ns, 0)
        for some in latency:
            summary.add(some)
        report = make_report(latency, summary)
    flows = [one for one in report.flows if one.once or one.again]
    names = [name for name in BY_NAME if name.startswith("latency_")]
    found = {name: np.full(len(flows), np.nan) for name in (*names, "bytes")}
    for at, flow in enumerate(flows):
        for name, value in _flow_values(flow).items():
            found[name][at] = value
    return found, ", ".join(sorted({SIDES[flow.side] for flow in flows}))


def _flow_values(flow: Any) -> dict[str, float]:
    from tcpkmon.formats.analysis.latency.summary import middle_of

    spreads = [one for one in (flow.once, flow.again) if one]
    total = sum(int(one["whole"].weights.sum()) for one in spreads)
    found = {"bytes": float(total)}
    for part in dict.fromkeys(name for one in spreads for name in one):
        spent = sum(one[part].total_ns for one in spreads if part in one)
        found[f"latency_{part}_us"] = spent / total / 1000
    classes = np.concatenate([one["whole"].classes for one in spreads])
    weights = np.concatenate([one["whole"].weights for one in spreads])
    order = np.argsort(classes, kind="stable")
    reached = np.cumsum(weights[order])
    at = int(np.searchsorted(reached, 0.95 * reached[-1]))
    found["latency_whole_p95_us"] = float(middle_of(classes[order][at : at + 1])[0]) / 1000
    return found
