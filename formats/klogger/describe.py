# SPDX-License-Identifier: Apache-2.0
"""Makes the header of a Klogger log, and its event table from a schema."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tcpkmon.formats.klogger.table import FORMAT, SNAPSHOT, WIDTHS
from tcpkmon.formats.schema import Event, Place, Schema, field_type, format_schema, place_fields

IN_HEAD = frozenset({"seq_no", "time", "seq", "time_ns", "serial", "cpu"})
"""Columns that SNAPSHOT lacks: each record's head has them, and the log's header has the CPU."""
SNAPSHOT_NUMBER = 1
"""The number of the tcp schema's event in a log. The location is a field of the event."""


def describe_event(schema: Schema, event: Event, number: int) -> dict[str, Any]:
    """The table entry of an event. Its fields have the offsets of the C structure."""
    places, size = place_fields(schema, event)
    return {
        "number": number,
        "name": event.name,
        "size": size,
        "fields": [
            _describe(
                place.field.name, _kind_of(place), place.type.signed, place.offset,
                place.type.width, place.field.type, place.field.none,
            )
            for place in places
        ],
    }  # fmt: skip


class EntryColumn(Protocol):
    """A column of a ring entry, as formats.psc.columns.Column; `length` is 0 if it is absent."""

    @property
    def name(self) -> str: ...

    @property
    def offset(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def is_raw(self) -> bool: ...

    @property
    def is_network(self) -> bool: ...


def describe_snapshot(
    schema: Schema, columns: Sequence[EntryColumn], entry_size: int, number: int = SNAPSHOT_NUMBER
) -> dict[str, Any]:
    """The table entry of SNAPSHOT, whose payload is a whole ring entry of the tcp schema.

    columns: those of a PSC entry; absent ones and IN_HEAD are left out.
    """
    event = schema.event(SNAPSHOT)
    enums = {enum.name for enum in schema.enums}
    fields = []
    for column in columns:
        if not column.length or column.name in IN_HEAD:
            continue
        place = (column.offset, column.length)
        declared = event.find_field(column.name)
        kind, type_name, signed = "int", declared.type, field_type(schema, declared).signed
        if column.is_raw:
            kind = "address" if column.name.endswith("addr") else "string"
        elif column.name in enums or declared.type in enums:
            kind, signed = "enum", True
            type_name = declared.type if declared.type in enums else column.name
        one = _describe(column.name, kind, signed, *place, type_name, declared.none)
        if column.is_network:
            one["network"] = True
        fields.append(one)
    return {"number": number, "name": SNAPSHOT, "size": -(-entry_size // 8) * 8, "fields": fields}


def make_header(
    schema: Schema,
    events: Sequence[Mapping[str, Any]],
    *,
    cpu: int,
    cpus: int,
    host: str,
    kernel: str,
    version: str,
    buffer_bytes: int,
    low_water_percent: int,
    clock: tuple[int, int, int],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """The header of one CPU's log, for encode_preamble().

    events: the event table, of describe_event() and describe_snapshot(). clock: CLOCK_MONOTONIC,
    CLOCK_REALTIME and the longest time between the two readings, all in ns.
    """
    return {
        "format": FORMAT,
        "byteorder": sys.byteorder,
        "cpu": cpu,
        "cpus": cpus,
        "host": host,
        "kernel": kernel,
        "tcpkmon": version,
        "buffer_bytes": buffer_bytes,
        "low_water_percent": low_water_percent,
        "clock": dict(zip(("mono_ns", "realtime_ns", "uncertainty_ns"), clock, strict=True)),
        "schema": format_schema(schema),
        "settings": dict(settings),
        "events": [dict(event) for event in events],
    }


def _kind_of(place: Place) -> str:
    if not place.is_raw:
        return place.type.kind
    is_address = "address" in place.field.tags and place.type.width in WIDTHS["address"]
    return "address" if is_address else "bytes"


def _describe(
    name: str, kind: str, signed: bool, offset: int, length: int, type_name: str, none: int | None
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": name, "kind": kind, "signed": signed, "offset": offset, "length": length,
        "type": type_name,
    }  # fmt: skip
    return found if none is None else found | {"none": none}
