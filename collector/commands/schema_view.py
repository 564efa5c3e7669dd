# SPDX-License-Identifier: Apache-2.0
"""Schemata for `tcpkmon schema`: as text in the schema language, and as plain data for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tcpkmon.collector.plan.event_layout import EventLayout, Slot
from tcpkmon.collector.plan.extension import own_columns, own_locations
from tcpkmon.collector.plan.schema_sources import Source
from tcpkmon.formats.schema import Enum, Field, LogLevel, Member, Place, format_schema


def text_lines(layout: EventLayout, made: Sequence[str]) -> Iterator[str]:
    """The merged schema, then comments with the id of each event and whether it is logged.

    made: names of the events that the collector makes.
    """
    yield from format_schema(layout.schema).splitlines()
    yield ""
    yield "// Numbers of the events, and whether they are logged:"
    width = max((len(slot.name) for slot in layout.slots), default=0)
    for slot in layout.slots:
        yield f"//   {slot.number:3}  {slot.name:{width}}  {_logged(layout, slot, made)}"


def describe(layout: EventLayout, sources: Sequence[Source], made: Sequence[str]) -> dict[str, Any]:
    """All declarations of the schemata as values for JSON; offsets and sizes in bytes."""
    schema = layout.schema
    return {
        "schemata": [
            {
                "name": source.name,
                "conf": str(source.conf),
                "text": str(source.text) if source.text else None,
                "shipped": source.shipped,
            }
            for source in sources
        ],
        "using": list(schema.using),
        "events": [
            {
                "number": slot.number,
                "name": slot.name,
                "logged": _logged(layout, slot, made),
                "bytes": slot.size,
                "doc": slot.event.doc,
                "tags": sorted(slot.event.tags),
                "fields": [_field(place) for place in slot.places],
            }
            for slot in layout.slots
        ],
        "enums": [_enum(enum) for enum in schema.enums],
        "loglevels": [_level(level) for level in schema.loglevels],
        "arches": [
            {"name": arch.name, "counters": dict(arch.counters), "doc": arch.doc}
            for arch in schema.arches
        ],
    }


def summary(source: Source, layout: EventLayout) -> str:
    """One line: how many events a schema declares, or what it adds to tcp."""
    if source.extends:
        columns = (f.name for f in own_columns(layout.schema) if _is_in(f, source))
        locations = (m.name for m in own_locations(layout.schema) if _is_in(m, source))
        return f"{source.name}: adds to {source.extends} {' '.join([*columns, *locations])}"
    mine = [slot for slot in layout.slots if slot.event.position.file == str(source.conf)]
    count = sum(slot in layout.logged for slot in mine)
    off = "" if count in (0, len(mine)) else f", {len(mine) - count} of them switched off by levels"
    return f"{source.name}: {len(mine)} event{'' if len(mine) == 1 else 's'}{off}"


def _is_in(declared: Field | Member, source: Source) -> bool:
    return declared.position.file == str(source.conf)


def _logged(layout: EventLayout, slot: Slot, made: Sequence[str]) -> str:
    if slot.name in made:
        return "by the collector"
    return "yes" if slot in layout.logged else "no"


def _field(place: Place) -> dict[str, Any]:
    field = place.field
    return {
        "name": field.name,
        "type": field.type,
        "kind": place.type.kind,
        "offset": place.offset,
        "bytes": place.type.width,
        "unit": field.unit,
        "doc": field.doc,
        "tags": sorted(field.tags),
    }


def _enum(enum: Enum) -> dict[str, Any]:
    members = [
        {"name": member.name, "value": member.value, "doc": member.doc} for member in enum.members
    ]
    return {"name": enum.name, "members": members, "doc": enum.doc}


def _level(level: LogLevel) -> dict[str, Any]:
    kinds: dict[str, list[str]] = {"event": [], "include": [], "omit": []}
    for item in level.items:
        kinds[type(item).__name__.lower()].append(item.name)
    return {"name": level.name, "doc": level.doc, "events": kinds["event"],
            "includes": kinds["include"], "omits": kinds["omit"]}  # fmt: skip
