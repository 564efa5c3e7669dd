# SPDX-License-Identifier: Apache-2.0
"""Checks assertions on a capture: which table each is about, whether it holds, what breaks it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np

from tcpkmon.formats.analysis.check.capture import (
    CONNECTION_KINDS,
    INTERVAL_KINDS,
    REQUEST_KINDS,
    Capture,
)
from tcpkmon.formats.analysis.check.scope import (
    COLUMN_OF,
    CONSTANTS,
    INTERVAL,
    LEDGER,
    REQUEST,
    Compiled,
    Table,
    TableScope,
)
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.expressions import (
    COMPARISONS,
    Assertion,
    Operation,
    parse_assertion,
    read_all,
)
from tcpkmon.formats.conditions import Array, NoDataError, names_in

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
) -> tuple[list[Compiled], dict[str, set[str]]]:
    """The assertions, and which names they have by what their rows are. ExpressionError for all
    mistakes at once.

    records: the columns of the capture's records. An assertion is about intervals if it names one
    of their columns, about requests likewise, about connections if all its columns are theirs,
    else about records. wanted: bool, or number for expressions that are one number.
    """
    used: dict[str, set[str]] = {}

    def compile_one(text: str) -> Compiled:
        parsed = parse_assertion(text)
        names = {name.text for node in (parsed.node, parsed.where) for name in names_in(node)}
        names -= {*LEDGER, *CONSTANTS}
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
        used.setdefault(what, set()).update(names)
        return _compile(parsed, TableScope(kinds, aliases, what), wanted)

    return read_all(texts, compile_one), used


def _compile(parsed: Assertion, scope: TableScope, wanted: str) -> Compiled:
    node = parsed.node
    value = scope.want(wanted, node)
    if wanted == "number" and value.each:
        scope.add("this has one number for each row: take max() of it", node.at)
    where = scope.want("bool", parsed.where) if parsed.where is not None else None
    if parsed.where is not None and where is not None and where.kind == "bool" and not where.each:
        scope.add("`where` takes a condition on a column", parsed.where.at)
    scope.end()
    if not isinstance(node, Operation) or node.operator not in COMPARISONS:
        return Compiled(parsed.text, scope.what, value, where)
    left = scope.value(node.operands[0])
    return Compiled(parsed.text, scope.what, value, where, node.operator, left)


def check(capture: Capture, texts: Sequence[str]) -> list[Result]:
    """Whether each assertion holds. ExpressionError for their mistakes."""
    compiled, used = compile_assertions(texts, capture.record_kinds)
    tables = {what: capture.table(what, names) for what, names in used.items()}
    with np.errstate(all="ignore"):
        return [_result(one, one.rows(tables[one.what])) for one in compiled]


def measure(capture: Capture, texts: Sequence[str]) -> list[float | None]:
    """What expressions are that are one number, such as max(srtt_p95_us); None: there is no data.

    ExpressionError for their mistakes.
    """
    compiled, used = compile_assertions(texts, capture.record_kinds, "number")
    tables = {what: capture.table(what, names) for what, names in used.items()}
    found: list[float | None] = []
    for one in compiled:
        try:
            with np.errstate(all="ignore"):
                value = float(one.value.get(one.rows(tables[one.what]))[0])
        except NoDataError:
            value = math.nan
        found.append(value if math.isfinite(value) else None)
    return found


def _result(one: Compiled, table: Table) -> Result:
    text, what, rows = one.text, table.what, table.count
    try:
        holds, (_, has) = one.value.holds(table), one.value.get(table)
    except NoDataError as error:
        return Result(text, False, what, rows, str(error))
    if not one.value.each:
        seen = f"is {_text(one.left.get(table)[0], one.left.unit)}" if one.comparison else ""
        if "conforms" in text and not holds:
            seen = seen or "tcpkmon conform says which rule, and where"
        return Result(text, bool(holds), what, rows, seen)
    if not rows:
        return Result(text, False, what, rows, f"no {what} to hold it for")
    broken = np.flatnonzero(~holds)
    order, shown = _worst(one, table, broken)
    seen = f"all {rows:,} {what}s" if not len(broken) else (
        f"{len(broken):,} of {rows:,} {what}s break it"
    )
    if unknown := rows - int(np.count_nonzero(np.broadcast_to(has, rows))):
        seen += f", {unknown:,} of these as they have no value"
    worst = tuple(f"{_row(table, at)}{shown(at)}" for at in order[:_WORST].tolist())
    return Result(text, not len(broken), what, rows, seen, len(broken), worst)


def _worst(one: Compiled, table: Table, broken: Array) -> tuple[Array, Any]:
    """The rows that break it, the furthest from the bound first; what to say of each."""
    if not one.comparison or not one.left.each:
        return broken, lambda at: ""
    data, has = one.left.get(table)
    has = np.broadcast_to(has, table.count)

    def shown(at: int) -> str:
        return f": {_text(data[at], one.left.unit) if has[at] else 'no value'}"

    if one.left.kind != "number" or one.comparison in ("==", "!="):
        return broken, shown
    sign = -1 if one.comparison[0] == "<" else 1
    return broken[np.argsort(sign * data[broken], kind="stable")], shown


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


# What became of assertions: for people, as JSON, as JUnit XML, as annotations of GitHub.

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_lines(result: Result) -> list[str]:
    """Lines for people."""
    seen = f": {result.seen}" if result.seen else ""
    head = f"{'ok    ' if result.ok else 'FAILED'} {result.text}{seen}"
    return [for_terminal(line) for line in (head, *(f"         {row}" for row in result.worst))]


def as_dict(capture: Capture, results: Sequence[Result]) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "file": str(capture.path),
        "proven": capture.proven,
        "verdict": capture.verdict,
        "assertions": [dataclasses.asdict(result) for result in results],
    }


def as_junit(found: Sequence[tuple[Capture, Sequence[Result]]]) -> bytes:
    """A test suite for each capture, a test case for each assertion."""
    root = ElementTree.Element("testsuites", name="tcpkmon check")
    for capture, results in found:
        failures = str(sum(not result.ok for result in results))
        suite = ElementTree.SubElement(
            root, "testsuite", name=_xml(str(capture.path)), tests=str(len(results)),
            failures=failures, errors="0", skipped="0",
        )  # fmt: skip
        for result in results:
            case = ElementTree.SubElement(
                suite, "testcase", classname=_xml(str(capture.path)), name=_xml(result.text)
            )
            if not result.ok:
                told = ElementTree.SubElement(case, "failure", message=_xml(result.seen))
                told.text = _xml("\n".join(result.worst))
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text


def github_lines(capture: Capture, results: Sequence[Result]) -> list[str]:
    """A workflow command for each assertion that failed."""
    return [
        f"::error title=tcpkmon check::{_command(f'{capture.path}: {text}')}"
        for result in results
        if not result.ok
        for text in ["\n".join((f"{result.text}: {result.seen}", *result.worst))]
    ]


def _command(text: str) -> str:
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return for_terminal(escaped)


def _xml(text: str) -> str:
    return _NOT_XML.sub("?", text)
