# SPDX-License-Identifier: Apache-2.0
"""The records of a capture as tables, piece by piece: snapshots, and each event of a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.klogger.choose import Choice
from tcpkmon.formats.klogger.logs import Logs
from tcpkmon.formats.klogger.table import LogEvent, LogFormat
from tcpkmon.formats.klogger.tables import make_tables
from tcpkmon.formats.psc.reader import Capture
from tcpkmon.formats.psc.tables import SNAPSHOT, Snapshots
from tcpkmon.formats.schema import Field, Schema
from tcpkmon.formats.tables.column import Column
from tcpkmon.formats.tables.shipped import ADDRESSES, RECORD_HEAD, column_of

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
