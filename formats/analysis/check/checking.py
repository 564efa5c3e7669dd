# SPDX-License-Identifier: Apache-2.0
"""Checks assertions on a capture: which table each is about, whether it holds, what breaks it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from formats.analysis.check.capture import (
    CONNECTION_KINDS,
    INTERVAL_KINDS,
    REQUEST_KINDS,
    Capture,
)
from formats.analysis.check.mistakes import Checker, names_in
from formats.analysis.check.names import COLUMN_OF, CONSTANTS, INTERVAL, LEDGER, REQUEST
from formats.analysis.check.values import Array, NoDataError, Table
from formats.base.expressions import (
    COMPARISONS,
    Assertion,
    ExpressionError,
    Mistake,
    Operation,
    parse_assertion,
)

_WORST = 5


@dataclass(frozen=True)
class Result:
    """Whether an assertion holds. what: connection, record, interval or request; rows: of how many.

    seen: the value that decided, for people. failed: how many rows break it; worst: some of them.
    """

    text: str
    ok: bool
    what: str
    rows: int
    seen: str = ""
    failed: int = 0
    worst: tuple[str, ...] = ()


def compile_assertions(
    texts: Sequence[str], records: Mapping[str, str], wanted: str = "bool"
) -> list[tuple[Assertion, str]]:
    """Each assertion, and what its rows are. ExpressionError for all mistakes at once.

    records: the columns of the capture's records. An assertion is about intervals if it names one
    of their columns, about requests likewise, about connections if all its columns are theirs,
    else about records. wanted: bool, or number for expressions that are one number.
    """
    found, mistakes = [], []
    for text in texts:
        try:
            parsed = parse_assertion(text)
        except Mistake as mistake:
            mistakes.append((text, mistake))
            continue
        names = _columns_in(parsed)
        others = names - {*CONNECTION_KINDS}
        aliases: Mapping[str, str] = {}
        if any(name.startswith(INTERVAL) for name in names):
            what, kinds = "interval", CONNECTION_KINDS | INTERVAL_KINDS
        elif any(name.startswith(REQUEST) for name in names):
            what, kinds = "request", CONNECTION_KINDS | REQUEST_KINDS
        elif any(name in records or COLUMN_OF.get(name) in records for name in others):
            what, kinds = "record", dict(records)
            aliases = {name: column for name, column in COLUMN_OF.items() if column in records}
        else:
            what, kinds = "connection", CONNECTION_KINDS
        checker = Checker(kinds, aliases, what)
        checker.check(parsed, wanted)
        mistakes += [(text, mistake) for mistake in checker.mistakes]
        found.append((parsed, what))
    if mistakes:
        raise ExpressionError(mistakes)
    return found


def _columns_in(parsed: Assertion) -> set[str]:
    return {*names_in(parsed.node), *names_in(parsed.where)} - {*LEDGER, *CONSTANTS}


def check(capture: Capture, texts: Sequence[str]) -> list[Result]:
    """Whether each assertion holds. ExpressionError for their mistakes."""
    compiled = compile_assertions(texts, capture.record_kinds)
    tables = _tables(capture, compiled)
    return [_result(parsed, tables[what]) for parsed, what in compiled]


def measure(capture: Capture, texts: Sequence[str]) -> list[float | None]:
    """What expressions are that are one number, such as max(srtt_p95_us); None: there is no data.

    ExpressionError for their mistakes.
    """
    compiled = compile_assertions(texts, capture.record_kinds, "number")
    tables = _tables(capture, compiled)
    found: list[float | None] = []
    for parsed, what in compiled:
        try:
            value = float(_chosen(parsed, tables[what]).value(parsed.node).data)
        except NoDataError:
            value = math.nan
        found.append(value if math.isfinite(value) else None)
    return found


def _tables(capture: Capture, compiled: Sequence[tuple[Assertion, str]]) -> dict[str, Table]:
    names: dict[str, set[str]] = {}
    for parsed, what in compiled:
        names.setdefault(what, set()).update(_columns_in(parsed))
    return {what: capture.table(what, used) for what, used in names.items()}


def _chosen(parsed: Assertion, table: Table) -> Table:
    """The rows that `where` chooses."""
    if parsed.where is None:
        return table
    chosen = table.value(parsed.where)
    return table.take(np.broadcast_to(np.logical_and(chosen.data, chosen.has), table.count))


def _result(parsed: Assertion, table: Table) -> Result:
    table = _chosen(parsed, table)
    text, what, rows = parsed.text, table.what, table.count
    try:
        value = table.value(parsed.node)
    except NoDataError as error:
        return Result(text, False, what, rows, str(error))
    if not value.each:
        return Result(text, bool(value.data), what, rows, _scalars(parsed, table))
    if not rows:
        return Result(text, False, what, rows, f"no {what} to hold it for")
    broken = np.flatnonzero(~np.logical_and(value.data, value.has))
    order, shown = _worst(parsed, table, broken)
    seen = f"all {rows:,} {what}s" if not len(broken) else (
        f"{len(broken):,} of {rows:,} {what}s break it"
    )
    worst = tuple(f"{_row(table, at)}{shown(at)}" for at in order[:_WORST].tolist())
    return Result(text, not len(broken), what, rows, seen, len(broken), worst)


def _scalars(parsed: Assertion, table: Table) -> str:
    """The left side of a comparison: what was seen."""
    node = parsed.node
    if not isinstance(node, Operation) or node.operator not in COMPARISONS:
        return ""
    value = table.value(node.operands[0])
    return f"is {_text(value.data, value.unit)}"


def _worst(parsed: Assertion, table: Table, broken: Array) -> tuple[Array, Any]:
    """The rows that break it, the furthest from the bound first; what to say of each."""
    node = parsed.node
    if not isinstance(node, Operation) or node.operator not in COMPARISONS:
        return broken, lambda at: ""
    value = table.value(node.operands[0])
    if not value.each:
        return broken, lambda at: ""
    has = np.broadcast_to(value.has, table.count)

    def shown(at: int) -> str:
        return f": {_text(value.data[at], value.unit) if has[at] else 'no value'}"

    if value.kind != "number" or node.operator in ("==", "!="):
        return broken, shown
    sign = -1 if node.operator[0] == "<" else 1
    return broken[np.argsort(sign * value.data[broken], kind="stable")], shown


def _text(value: Any, unit: int | None) -> str:
    if isinstance(value, str):
        return value
    return f"{float(value):.6g}" + ({1: " ns", 1000: " us", 10**6: " ms"}.get(unit or 0, ""))


def _row(table: Table, at: int) -> str:
    columns = table.columns
    if table.what == "record":
        return f"connection {columns['conn_id'][at]} at {columns['time_ns'][at] / 1e9:.6f} s"
    if table.what == "interval":
        limit, begin, duration = (
            columns[f"{INTERVAL}{name}"][at] for name in ("limit", "start_ns", "duration_us")
        )
        lasted = f"{limit} for {duration / 1e3:.3f} ms"
        return f"connection {columns['conn_id'][at]} at {begin / 1e9:.6f} s, {lasted}"
    if table.what == "request":
        number, begin, total = (
            columns[f"{REQUEST}{name}"][at] for name in ("number", "start_ns", "total_ms")
        )
        return (f"connection {columns['conn_id'][at]}, request {number} at {begin / 1e9:.6f} s, "
                f"{total:.3f} ms")  # fmt: skip
    ends = "{}:{} -> {}:{}".format(
        *(columns[name][at] for name in ("laddr", "lport", "raddr", "rport"))
    )
    return f"connection {columns['conn_id'][at]}, {ends}"
