# SPDX-License-Identifier: Apache-2.0
"""The events of Klogger schemata in a capture: their ids, and their records in the ring.

The record of an event, made by klogger_commit_event() in bpf/include/klogger.h:

     0        4           12    16      20   24
    +--------+-----------+-----+-------+----+---------------------------------+
    | serial | time (ns) | cpu | point | 0  | payload: the event's C structure |
    +--------+-----------+-----+-------+----+---------------------------------+
     u32      u64         u32   u32     u32

All records of a capture are as large as the largest, so that a ring is an array of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tcpkmon.collector.plan.columns import EVENT
from tcpkmon.collector.plan.engine_config import POINTS
from tcpkmon.collector.plan.schema_sources import Source, has_tcp, load_schema_of, made_events
from tcpkmon.collector.ring.points import EVENT_HEAD_BYTES, FIRST_EVENT
from tcpkmon.formats.base.control import FIRST_CONTROL
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.schema import Event, Place, Schema, enabled_events, place_fields


@dataclass(frozen=True)
class Slot:
    """An event: its id (the engine's point), the places of its fields, bytes of its payload.

    declared: all fields, also those that this capture leaves out.
    """

    number: int
    event: Event
    places: tuple[Place, ...]
    size: int
    declared: tuple[Place, ...]

    @property
    def name(self) -> str:
        return self.event.name


@dataclass(frozen=True)
class EventLayout:
    """The events of a merged schema, by id; `logged` are those that programs log."""

    schema: Schema
    slots: tuple[Slot, ...]
    logged: tuple[Slot, ...]

    @property
    def entry_size(self) -> int:
        """Bytes of the largest record that programs log."""
        return EVENT_HEAD_BYTES + max((slot.size for slot in self.logged), default=0)

    def slot(self, name: str) -> Slot:
        """The event of this name; UsageError where there is none."""
        self.schema.event(name)
        return next(slot for slot in self.slots if slot.name == name)


def ring_dtype(entry_size: int) -> np.dtype[Any]:
    """The head of a record in the ring; the payload has no fields."""
    return np.dtype(
        {
            "names": ["low", "time", "cpu", "location"],
            "formats": ["=u4", "=u8", "=u4", "=u4"],
            "offsets": [0, 4, 12, 16],
            "itemsize": entry_size,
        }
    )


def lay_out_sources(
    sources: Sequence[Source], using: Sequence[str] = (), data: bool = True
) -> EventLayout:
    """The events of several schemata. klogger() logs neither those of base nor SNAPSHOT of tcp.

    using: log levels that replace those that their schemata use. data: with the fields that have
    the tag @data.
    """
    schema = load_schema_of(sources)
    made = [*made_events(schema), *([EVENT] if has_tcp(sources) else [])]
    if using:
        files = {schema.loglevel(name).position.file for name in using}
        used = schema.using or [level.name for level in schema.loglevels]
        kept = [name for name in used if schema.loglevel(name).position.file not in files]
        schema = replace(schema, using=(*kept, *using))
    return lay_out(schema, made, data)


def lay_out(schema: Schema, base: Sequence[str], data: bool = True) -> EventLayout:
    """Numbers the events of a merged schema; its log levels choose those that are logged.

    base: names of the events that the collector makes. data: with the fields that have the tag
    @data. UsageError for too many events.
    """
    most = min(FIRST_CONTROL, POINTS) - FIRST_EVENT
    if len(schema.events) > most:
        raise UsageError(
            f"{len(schema.events)} events are more than a capture can hold ({most})",
            "load fewer schemata",
        )
    declared = [place_fields(schema, event)[0] for event in schema.events]
    if not data:
        schema = schema.lean()
    slots = tuple(
        Slot(FIRST_EVENT + index, event, *place_fields(schema, event), declared[index])
        for index, event in enumerate(schema.events)
    )
    enabled = {event.name for event in enabled_events(schema)} - set(base)
    return EventLayout(schema, slots, tuple(slot for slot in slots if slot.name in enabled))
