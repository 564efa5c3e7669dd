# SPDX-License-Identifier: Apache-2.0
"""Checks assertions on a capture: which table each is about, whether it holds, what breaks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from formats.analysis.check.mistakes import Checker, names_in
from formats.analysis.check.names import COLUMN_OF, CONSTANTS, LEDGER
from formats.analysis.check.values import Array, NoDataError, Table
from formats.analysis.why import CONNECTIONS, FAMILY, LIMITS, Source, connections
from formats.base.expressions import (
    COMPARISONS,
    Assertion,
    ExpressionError,
    Mistake,
    Operation,
    parse_assertion,
)
from formats.registry import format_of

_WORST = 5
_KINDS = {"int": "number", "float": "number", "text": "text", "bool": "bool"}
_CONNECTION_KINDS = {column.name: _KINDS[column.kind] for column in CONNECTIONS}
_ALWAYS = ("conn_id", "location", "lport", "rport", "state")
"""What Source needs to tell the records of connections."""


@dataclass(frozen=True)
class Result:
    """Whether an assertion holds. what: connection or record, of how many rows it was about.

    seen: the value that decided, for people. failed: how many rows break it; worst: some of them.
    """

    text: str
    ok: bool
    what: str
    rows: int
    seen: str = ""
    failed: int = 0
    worst: tuple[str, ...] = ()


@dataclass
class Capture:
    """A capture on the disk, and what it says of all assertions. Errors as Source has them."""

    path: Path
    proven: bool = field(init=False)
    verdict: str = field(init=False)

    def __post_init__(self) -> None:
        reports = format_of(self.path).verify(self.path)
        self.proven = bool(reports) and all(report.exit_code == 0 for report in reports)
        self.verdict = "; ".join(r.verdict for r in reports if r.exit_code) or "nothing lost"
        with Source(self.path) as source:
            self._connections = connections(source)
            reader = source.reader
            self.lost = int(reader.lost)
            self._whole = not self.lost and reader.complete and not reader.damaged

    def record_columns(self) -> dict[str, str]:
        """The columns of its records that hold numbers."""
        with Source(self.path) as source:
            reader = source.reader
            if hasattr(reader, "columns_by_name"):
                names = [n for n, c in reader.columns_by_name.items() if n and c.length <= 8]
            else:
                event = reader.format.find_event("SNAPSHOT")
                names = [one.name for one in event.fields if one.kind in ("int", "enum")]
        return dict.fromkeys([*names, "time_ns"], "number")

    def table(self, what: str, names: Sequence[str]) -> Table:
        """The rows of one kind, with these columns and those that name a row."""
        columns = self._connections if what == "connection" else self._records(names)
        aliases = {} if what == "connection" else COLUMN_OF
        holds = dict(zip(LEDGER, (self._whole, self.proven), strict=True))
        count = len(columns["conn_id"])
        return Table(what, columns, count, self.lost, holds, self._share, CONSTANTS, aliases)

    def _records(self, names: Sequence[str]) -> dict[str, Array]:
        wanted = [name for name in names if name not in _ALWAYS and name != "time_ns"]
        kept = ["conn_id", *wanted, *(name for name in names if name in _ALWAYS[1:])]
        pieces: dict[str, list[Array]] = {name: [] for name in [*kept, "time_ns"]}
        with Source(self.path) as source:
            source.names = [*_ALWAYS, *wanted]
            for piece in source.read():
                for name in kept:
                    pieces[name].append(piece[name])
                pieces["time_ns"].append(piece.times_ns)
        return {
            name: np.concatenate(found) if found else np.zeros(0)
            for name, found in pieces.items()
        }

    def _share(self, limit: str) -> Array:
        table = self._connections
        times = {name: table[f"us_{name}"].astype(np.float64) for name in LIMITS}
        total = np.sum(list(times.values()), axis=0)
        mine = np.sum([us for n, us in times.items() if limit in (n, FAMILY.get(n))], axis=0)
        with np.errstate(all="ignore"):
            share: Array = np.where(total > 0, mine / total, np.nan)
        return share


def compile_assertions(
    texts: Sequence[str], records: Mapping[str, str]
) -> list[tuple[Assertion, str]]:
    """Each assertion, and what its rows are. ExpressionError for all mistakes at once.

    records: the columns of the capture's records. An assertion is about connections if all its
    columns are theirs, else about records.
    """
    found, mistakes = [], []
    for text in texts:
        try:
            parsed = parse_assertion(text)
        except Mistake as mistake:
            mistakes.append((text, mistake))
            continue
        names = {*names_in(parsed.node), *names_in(parsed.where)} - {*LEDGER, *CONSTANTS}
        others = {name for name in names if name not in _CONNECTION_KINDS}
        of_records = any(name in records or COLUMN_OF.get(name) in records for name in others)
        what = "record" if of_records else "connection"
        kinds = records if of_records else _CONNECTION_KINDS
        aliases = {n: c for n, c in COLUMN_OF.items() if c in records} if of_records else {}
        checker = Checker(kinds, aliases, what)
        checker.check(parsed)
        mistakes += [(text, mistake) for mistake in checker.mistakes]
        found.append((parsed, what))
    if mistakes:
        raise ExpressionError(mistakes)
    return found


def check(capture: Capture, texts: Sequence[str]) -> list[Result]:
    """Whether each assertion holds. ExpressionError for their mistakes."""
    compiled = compile_assertions(texts, capture.record_columns())
    names: set[str] = set()
    for parsed, what in compiled:
        if what == "record":
            used = {*names_in(parsed.node), *names_in(parsed.where)} - {*LEDGER, *CONSTANTS}
            known = capture.record_columns()
            names |= {name if name in known else COLUMN_OF[name] for name in used}
    tables = {what: capture.table(what, sorted(names)) for what in {w for _, w in compiled}}
    return [_result(parsed, tables[what]) for parsed, what in compiled]


def _result(parsed: Assertion, table: Table) -> Result:
    if parsed.where is not None:
        chosen = table.value(parsed.where)
        table = table.take(np.broadcast_to(np.logical_and(chosen.data, chosen.has), table.count))
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
    ends = "{}:{} -> {}:{}".format(
        *(columns[name][at] for name in ("laddr", "lport", "raddr", "rport"))
    )
    return f"connection {columns['conn_id'][at]}, {ends}"
