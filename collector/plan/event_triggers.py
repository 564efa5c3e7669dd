# SPDX-License-Identifier: Apache-2.0
"""Triggers of the flight recorder on the events of any schema, for Klogger logs.

A log is not ordered over the CPUs, so such a trigger is a moment: an event, and what its own fields
must be. Of the schema tcp it is a location, and what the columns of its record must be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.plan.columns import Layout
from tcpkmon.collector.plan.event_layout import EventLayout, Slot
from tcpkmon.collector.plan.recorder import STALL
from tcpkmon.collector.plan.triggers import CONDITIONS, TriggerScope, scope_of
from tcpkmon.collector.ring.points import EVENT_HEAD_BYTES
from tcpkmon.collector.writer.dump import Hit
from tcpkmon.formats.base.expressions import Mistake, Name, Parsed, parse, read_all
from tcpkmon.formats.base.text import suggest
from tcpkmon.formats.conditions import Value, names_in

CONNECTIONS = ("conn_id", "connection")
"""Fields that are the number of a connection."""
_LOCATION = ("location", "=u4", 16)
_POINT = (np.dtype("=u4"), 16)


@dataclass(frozen=True)
class Shape:
    """A kind of record: the points that it has, and its fields in the ring."""

    points: frozenset[int]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class EventTrigger:
    """Fires at each record that a mask shows; each mask is of records of one shape."""

    number: int
    masks: tuple[tuple[Shape, Callable[[Any], NDArray[np.bool_]]], ...]


def compile_event_triggers(
    texts: Sequence[str],
    events: EventLayout | None,
    tcp: Layout | None,
    recorded: Sequence[str],
    entry_size: int,
) -> tuple[EventTrigger, ...]:
    """The triggers of a capture of these events and of tcp's locations; None: it has none.

    recorded: names of both. entry_size: of a record in the ring. ExpressionError for all mistakes.
    """
    found = read_all(
        texts, lambda text: (*_masks(parse(text), events, tcp, recorded, entry_size),)
    )
    return tuple(EventTrigger(number, masks) for number, masks in enumerate(found, 1))


def _masks(
    parsed: Parsed,
    events: EventLayout | None,
    tcp: Layout | None,
    recorded: Sequence[str],
    entry_size: int,
) -> Iterator[tuple[Shape, Callable[[Any], NDArray[np.bool_]]]]:
    slots = {slot.name.lower(): slot for slot in (events.logged if events else ())}
    named = {name.text.lower() for name in names_in(parsed.node)}
    if parsed.for_ns is not None or parsed.all:
        raise Mistake("an event of a log is a moment: leave out `for` and `all:`", parsed.for_at)
    if STALL in named:
        raise Mistake("stall is for PSC files: a log has triggers on events", 0)
    chosen = [slots[name] for name in slots if name in named]
    if not chosen and tcp is not None:
        trigger = scope_of(tcp, recorded).trigger(0, parsed)
        if trigger.for_ns is not None:
            raise Mistake("a log has triggers on events: name one, such as `rto and ...`", 0)
        assert tcp.dtype.fields is not None
        fields = {name: (kind, at) for name, (kind, at, *_) in tcp.dtype.fields.items()}
        yield Shape(trigger.locations, _dtype(fields, entry_size)), trigger.mask
        return
    if not chosen:
        meant = [suggest(name, [*slots]) for name in sorted(named)]
        raise Mistake(f"it names no event of this capture{next(filter(None, meant), '')}", 0)
    assert events is not None
    known = {place.field.name for slot in chosen for place in slot.places}
    for slot in chosen:
        trigger = _EventScope(slot, events, recorded, known).trigger(0, parsed)
        yield Shape(frozenset({slot.number}), _dtype(_fields(slot), entry_size)), trigger.mask


def _fields(slot: Slot) -> dict[str, tuple[np.dtype[Any], int]]:
    """The numbers of an event, with their places in a record of the ring."""
    found = {
        place.field.name: (
            np.dtype(f"={'i' if place.type.signed else 'u'}{place.type.width}"),
            EVENT_HEAD_BYTES + place.offset,
        )
        for place in slot.places
        if place.type.kind in ("int", "enum")
    }
    name, kind, at = _LOCATION
    return {**found, name: (np.dtype(kind), at)}


def _dtype(fields: dict[str, tuple[np.dtype[Any], int]], entry_size: int) -> np.dtype[Any]:
    return np.dtype(
        {
            "names": list(fields),
            "formats": [kind for kind, _ in fields.values()],
            "offsets": [at for _, at in fields.values()],
            "itemsize": entry_size,
        }
    )


class _EventScope(TriggerScope):
    """The names of one event. known: the fields of all events that the trigger names."""

    def __init__(
        self, slot: Slot, events: EventLayout, recorded: Sequence[str], known: set[str]
    ) -> None:
        fields = [(place.field, True) for place in slot.places]
        numbers = {one.name: one.number for one in events.logged}
        super().__init__(events.schema, fields, numbers, recorded)
        self._known = known

    def name(self, node: Name) -> Value:
        if node.text not in self._fields and node.text in self._known:
            return Value("number", lambda rows: (np.full(len(rows), np.nan), True))
        if node.text in CONDITIONS:
            return self.add(f"{node.text} is for the schema tcp", node.at)
        return super().name(node)


class EventWatch:
    """All triggers of a capture. Feed it with each CPU's records."""

    def __init__(self, triggers: Sequence[EventTrigger]) -> None:
        self._triggers = triggers

    def tick(self, now_ns: int) -> list[Hit]:
        """None: an event fires with its record."""
        return []

    def feed(self, rows: NDArray[Any], times_ns: NDArray[Any]) -> list[Hit]:
        """Records as in the ring, and their times; what fires."""
        points = rows.getfield(*_POINT)
        present = set(np.flatnonzero(np.bincount(np.minimum(points, 255))).tolist())
        hits = []
        for trigger in self._triggers:
            count, first, conn = 0, None, 0
            for shape, mask in trigger.masks:
                if not present & shape.points:
                    continue
                at = np.flatnonzero(np.isin(points, [*shape.points]))
                some = np.ascontiguousarray(rows[at]).view(shape.dtype)
                where = np.flatnonzero(mask(some))
                if not len(where):
                    continue
                count += len(where)
                time_ns = int(times_ns[at[where[0]]])
                if first is None or time_ns < first:
                    names = [n for n in CONNECTIONS if n in (shape.dtype.names or ())]
                    first, conn = time_ns, int(some[names[0]][where[0]]) if names else 0
            if first is not None:
                hits.append(Hit(trigger.number, first, conn, count))
        return hits
