# SPDX-License-Identifier: Apache-2.0
"""The tables that a capture has, each read when somebody asks for it, and no other one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tcpkmon.formats.analysis import Log, causes, drops, exchanges, listeners, why
from tcpkmon.formats.analysis.latency import Latency, find_fields, make_table
from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.errors import DamagedError, UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.reader import Reader
from tcpkmon.formats.base.text import suggest
from tcpkmon.formats.klogger.choose import Choice
from tcpkmon.formats.klogger.logs import Logs
from tcpkmon.formats.klogger.table import LogEvent, LogFormat
from tcpkmon.formats.klogger.tables import make_tables
from tcpkmon.formats.psc.reader import Capture
from tcpkmon.formats.psc.tables import SNAPSHOT, Snapshots
from tcpkmon.formats.registry import format_of, open_files
from tcpkmon.formats.schema import Field, Schema
from tcpkmon.formats.tables.column import (
    ADDRESSES,
    DROPS,
    GROUPS,
    LEDGER,
    LISTENERS,
    PROOF,
    RECORD_HEAD,
    SHIPPED,
    Column,
    cause_column,
    column_of,
    conform,
    schema_of,
)
from tcpkmon.formats.verify import CAUSES, Report

# The records of a capture as tables, piece by piece: snapshots, and each event of a log.

_HEAD = ("time", "time_ns", "serial", "cpu")
_KINDS = {"enum": "text", "string": "text", "address": "text", "bytes": "bytes"}


def columns_of_capture(capture: Capture) -> tuple[Column, ...]:
    """Those of the table snapshots of a PSC file."""
    names = _different([name for name in capture.names if name])
    texts = Snapshots(capture, names).texts
    fields = _fields(capture.schema, SNAPSHOT)
    found = []
    for name in names:
        kind = "time" if capture.columns_by_name[name].is_time else "int"
        kind = "text" if texts[name] is not None else kind
        kind = "uint" if name in ADDRESSES and kind == "int" else kind
        found.append(column_of(name, kind, fields.get(name)))
    return tuple(found)


def read_capture(capture: Capture, names: Sequence[str]) -> Iterator[Any]:
    """Tables of the snapshots, with these columns at least."""
    for tables in Snapshots(capture, names).tables():
        yield from tables.values()


def columns_of_event(log: LogFormat, event: LogEvent) -> tuple[Column, ...]:
    """Those of the table of an event of a log."""
    is_snapshot = event.name == SNAPSHOT
    try:
        fields = _fields(log.schema, event.name)
    except DamagedError:
        fields = {}
    found = list(RECORD_HEAD)
    for field, name in _names_of(event).items():
        one = event.find_field(field)
        assert one is not None
        kind = _KINDS.get(one.kind, "int")
        if kind == "int" and one.length == 8 and not one.signed:
            kind = "uint" if not is_snapshot or field in ADDRESSES else "int"
        found.append(column_of(name, kind, fields.get(field)))
    return tuple(found)


def read_event(logs: Logs, event: LogEvent) -> Iterator[Any]:
    """Tables of an event's records, in time order of all logs."""
    pyarrow = import_pyarrow()
    has_clock = all(reader.format.clock is not None for reader in logs.readers)
    clock = "epoch" if has_clock else "mono"
    chosen = Logs(logs.readers, Choice((event.name,)), clock, merge=len(logs.readers) > 1)
    names = _names_of(event)
    for _, records in chosen.streams():
        for batch, times_ns in records:
            made = make_tables(batch, times_ns, clock)[event.name]
            arrays = {"time_ns": pyarrow.array(batch.times_ns.view("i8")[batch.where(event.name)])}
            if has_clock:
                arrays["time"] = made["timestamp"]
            arrays |= {name: made[name] for name in ("serial", "cpu")}
            for field, name in names.items():
                there = f"field.{field}" if f"field.{field}" in made.column_names else field
                arrays[name] = made[there]
            yield pyarrow.table(arrays)


def _names_of(event: LogEvent) -> dict[str, str]:
    """The columns of an event's fields; one with a name that each record has is field.NAME."""
    known = {name.lower() for name in _HEAD}
    names = _different([field.name for field in event.fields])
    return {name: f"field.{name}" if name.lower() in known else name for name in names}


def _different(names: list[str]) -> list[str]:
    """Without those that SQL cannot tell from one before."""
    return [*{name.lower(): name for name in reversed(names)}.values()][::-1]


def _fields(schema: Schema | None, event: str) -> dict[str, Field]:
    """What a file's own schema says of the fields of an event."""
    events = schema.events if schema is not None else ()
    return {field.name: field for one in events if one.name == event for field in one.fields}


# The tables ledger and proof: what verify finds in the files of a capture.

_COUNTS = ("attempts", "filtered", "unchanged", "limited", "shed", "written", "in_file", "pending")


def reports_of(paths: Iterable[Path]) -> list[Report]:
    """What verify says of each file. FileError."""
    return [report for path in paths for report in format_of(path).verify(path)]


def ledger_of(reports: Sequence[Report]) -> Any:
    """The table ledger. No count is in it twice: what sums up other files is left out."""
    rows = []
    for report in _parts(reports):
        head = {"path": report.path, "segment": _segment(report), "proven": _is_proven(report)}
        for row in report.rows:
            counts = {name: getattr(row, name) for name in _COUNTS}
            lost = {cause_column(name): row.lost.get(name, 0) for name in CAUSES}
            rows.append({**head, "cpu": row.cpu, "location": row.name, **counts, **lost,
                         "lost": row.lost_total, "missed": 0})  # fmt: skip
        for one in report.missed:
            if missed := one.recursion + one.kprobe:
                counts = dict.fromkeys((*_COUNTS, *map(cause_column, CAUSES), "lost"), 0)
                rows.append({**head, **counts, "location": one.name, "missed": missed})
    return _table(rows, LEDGER)


def proof_of(reports: Sequence[Report]) -> Any:
    """The table proof."""
    parts = {id(report) for report in _parts(reports)}
    rows = [
        {
            "path": report.path, "whole": id(report) not in parts, "segment": _segment(report),
            "format": report.format, "verdict": report.verdict, "exit_code": report.exit_code,
            "proven": _is_proven(report), "entries": report.entries,
            "size_bytes": report.size_bytes, "lost": report.lost_total,
            "end_reason": report.end_reason, "checkpoints": report.checkpoints,
            "problems": report.problems_total,
        }
        for report in reports
    ]  # fmt: skip
    return _table(rows, PROOF)


def _table(rows: list[dict[str, Any]], columns: Sequence[Column]) -> Any:
    return import_pyarrow().Table.from_pylist(rows, schema=schema_of(columns))


def _parts(reports: Sequence[Report]) -> list[Report]:
    """Those that tell of no other one's files."""
    above = {parent for one in reports for parent in Path(one.path).parents}
    return [one for one in reports if Path(one.path) not in above]


def _is_proven(report: Report) -> bool:
    return report.exit_code == 0 and report.ledger


def _segment(report: Report) -> int | None:
    return report.part.number if report.part is not None else None


SNAPSHOTS = "snapshots"
_NEEDS = {
    SNAPSHOTS: "the schema tcp",
    "connections": "the schema tcp with at least the default columns",
    "intervals": "the schema tcp with at least the default columns",
    "drops": "the schema tcp with at least the default columns, by a version that has DROPPED",
    "listeners": "the schema tcp with at least the default columns, by a version that has LISTENER",
    "causes": "the schema tcp with at least the default columns",
    "groups": "the schema tcp with the column cgroup",
    "mptcp": "the schema tcp with the column mptcp_token",
    "requests": "the schema tcp with at least the default columns",
    "latency": "the schema magnet: collect --latency",
}


@dataclass(frozen=True)
class Opened:
    """An open capture. paths: as they were named."""

    paths: tuple[Path, ...]
    reader: Reader

    @cached_property
    def reports(self) -> list[Report]:
        """What verify says of its files: two tables are made of it. FileError."""
        return reports_of(self.paths)

    @classmethod
    def of(cls, paths: Iterable[str | os.PathLike[str]]) -> Opened:
        """Open it anew. FileError, DamagedError; UsageError for files of several captures."""
        found = tuple(Path(path) for path in paths)
        return cls(found, open_files(*found))


@dataclass(frozen=True)
class View:
    """A table of a capture. text: what a row is. columns: in their order.

    read(opened, names): pyarrow.Tables that have these columns at least, in bounded memory.
    """

    name: str
    text: str
    columns: tuple[Column, ...]
    read: Callable[[Opened, Sequence[str]], Iterator[Any]]

    def tables(self, opened: Opened, names: Sequence[str] | None = None) -> Iterator[Any]:
        """The table in pieces, with these columns (all of them): pyarrow.Tables of one schema."""
        wanted = {column.name: column for column in self.columns}
        if names is not None:
            wanted = {name: wanted[name] for name in names}
        for table in self.read(opened, list(wanted)):
            yield conform(table, list(wanted.values()))


def views_of(opened: Opened) -> dict[str, View]:
    """The tables that a capture has, by name. This reads no record."""
    reader, found = opened.reader, []
    if isinstance(reader, Capture):
        found.append(View(SNAPSHOTS, "a row for each record", columns_of_capture(reader),
                          lambda opened, names: read_capture(_capture(opened), names)))  # fmt: skip
    read = {"ledger": _read_ledger, "proof": _read_proof, **_analyses(reader)}
    found += [View(name, *SHIPPED[name], read[name]) for name in SHIPPED if name in read]
    if isinstance(reader, Logs):
        found += _events(reader)
        found.sort(key=lambda view: view.name != SNAPSHOTS)
    views: dict[str, View] = {}
    for view in found:  # a name that SQL cannot tell from one before is not there
        views.setdefault(view.name.lower(), view)
    return {view.name: view for view in views.values()}


def table_of(opened: Opened, name: str) -> Any:
    """A whole table of a capture as a pyarrow.Table. UsageError for one that it lacks."""
    view = find_view(views_of(opened), name, str(opened.reader.path))
    tables = list(view.tables(opened))
    return import_pyarrow().concat_tables([schema_of(view.columns).empty_table(), *tables])


def find_view(views: dict[str, View], name: str, of: str) -> View:
    """The view of this name, in any case of its letters; UsageError that says which there are."""
    by_name = {known.lower(): view for known, view in views.items()}
    if (found := by_name.get(name.lower())) is None:
        needs = f", which needs {_NEEDS[name]}" if name in _NEEDS else suggest(name, views)
        there = ", ".join(for_terminal(known) for known in views)
        raise UsageError(f"{of} has no table {name!r}{needs}", f"it has {there}")
    return found


def _analyses(reader: Reader) -> dict[str, Callable[[Opened, Sequence[str]], Iterator[Any]]]:
    """What is computed from the records, as far as they tell enough."""
    found: dict[str, Callable[[Opened, Sequence[str]], Iterator[Any]]] = {}
    with suppress(UsageError), why.Source(reader) as source:
        found = {"connections": _read_connections, "intervals": _read_intervals,
                 "causes": _read_causes}  # fmt: skip
        if "cgroup" in source.known:
            found["groups"] = _read_groups
        if "mptcp_token" in source.known:
            found["mptcp"] = _read_wholes
        if drops.records_drops(source):
            found["drops"] = _read_drops
        if listeners.records_listeners(source):
            found["listeners"] = _read_listeners
        if not exchanges.missing(source):
            found["requests"] = _read_requests
    if isinstance(reader, Logs):
        with suppress(UsageError, DamagedError):
            find_fields(reader.format)
            found["latency"] = _read_latency
    return found


def _events(logs: Logs) -> Iterator[View]:
    events = {event.name: event for reader in logs.readers for event in reader.format.events}
    for event in events.values():
        columns = columns_of_event(logs.format, event)
        name = SNAPSHOTS if event.name == SNAPSHOT else event.name
        yield View(name, f"a row for each record {event.name}", columns, _reading(event))


def _reading(event: LogEvent) -> Callable[[Opened, Sequence[str]], Iterator[Any]]:
    return lambda opened, names: read_event(_logs(opened), event)


def _capture(opened: Opened) -> Capture:
    assert isinstance(opened.reader, Capture)
    return opened.reader


def _logs(opened: Opened) -> Logs:
    assert isinstance(opened.reader, Logs)
    return opened.reader


def _read_connections(opened: Opened, names: Sequence[str]) -> Iterator[Any]:
    yield why.as_arrow(why.connections(opened.reader))


def _read_causes(opened: Opened, names: Sequence[str]) -> Iterator[Any]:
    yield why.as_arrow(causes.causes(opened.reader))


def _read_wholes(opened: Opened, names: Sequence[str]) -> Iterator[Any]:
    yield why.as_arrow(why.wholes(why.connections(opened.reader)))


def _read_intervals(opened: Opened, names: Sequence[str]) -> Iterator[Any]:
    with why.Source(opened.reader) as source:
        for table in why.interval_tables(source):
            yield why.as_arrow(table)


def _read_groups(opened: Opened, names: Sequence[str]) -> Iterator[Any]:
    with why.Source(opened.reader) as source:
        for _ in source.read():
            pass
        rows = [{"cgroup": one, **asdict(group)} for one, group in source.groups.items()]
    table = {column.name: [row[column.name] or None for row in rows] for column in GROUPS}
    yield import_pyarrow().table(table, schema_of(GROUPS))


def _read_drops(opened: Opened, names: Sequence[str]) -> Iterator[Any]:
    with why.Source(opened.reader, needed=drops.NEEDED, what=drops.WHAT) as source:
        yield _timed(drops.drops(source), DROPS)


def _read_listeners(opened: Opened, names: Sequence[str]) -> Iterator[Any]:
    with why.Source(opened.reader, needed=listeners.NEEDED, what=listeners.WHAT) as source:
        for rows in listeners.listeners(source):
            yield _timed(rows, LISTENERS)


def _timed(rows: Sequence[dict[str, Any]], columns: Sequence[Column]) -> Any:
    """A pyarrow.Table of rows that begin with their time [ns]."""
    pyarrow = import_pyarrow()
    table = {column.name: [row[column.name] for row in rows] for column in columns}
    times = pyarrow.array(table.pop("time"), pyarrow.timestamp("ns", "UTC"))
    made = {"time": times.cast(pyarrow.timestamp("us", "UTC"), safe=False), **table}
    return pyarrow.table(made, schema_of(columns))


def _read_requests(opened: Opened, names: Sequence[str]) -> Iterator[Any]:
    yield exchanges.as_arrow(exchanges.exchanges(opened.reader))


def _read_latency(opened: Opened, names: Sequence[str]) -> Iterator[Any]:
    latency = Latency(Log(_logs(opened).readers))
    for some in latency:
        yield make_table(some, latency.survey)


def _read_ledger(opened: Opened, names: Sequence[str]) -> Iterator[Any]:
    yield ledger_of(opened.reports)


def _read_proof(opened: Opened, names: Sequence[str]) -> Iterator[Any]:
    yield proof_of(opened.reports)
