# SPDX-License-Identifier: Apache-2.0
"""Puts what schemata with `extends` declare into the schemata that they extend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tcpkmon.formats.base.errors import Problem
from tcpkmon.formats.schema.model import Arch, Enum, Event, LogLevel, Schema, Suggestions
from tcpkmon.formats.schema.resolve import repeated


def extend(schemata: Sequence[Schema]) -> tuple[list[Schema], list[Problem]]:
    """Those that extend none, with the fields, members and enums that others add to them.

    The problems: what is added twice, to nothing, or cannot be added.
    """
    found = {number: schema for number, schema in enumerate(schemata) if not schema.extends}
    numbers = {schema.name: number for number, schema in found.items()}
    problems: list[Problem] = []
    suggestions = Suggestions()
    for schema in schemata:
        if not schema.extends:
            continue
        number = numbers.get(schema.extends)
        if number is None:
            near = suggestions.suggest(schema.extends, numbers)
            message = f"expected a schema that is read too, found '{schema.extends}'{near}"
            problems.append(schema.extends_position.problem(message))
            continue
        problems += _wrong(found[number], schema, suggestions)
        found[number] = _add(found[number], schema)
    return list(found.values()), problems


def _add(base: Schema, more: Schema) -> Schema:
    """The base with what `more` adds; of a name that is there already, the first counts."""
    fields = {event.name: event.fields for event in reversed(more.events)}
    members = {enum.name: enum.members for enum in reversed(more.enums)}

    def widen(event: Event) -> Event:
        names = {field.name for field in event.fields}
        new = (field for field in fields.get(event.name, ()) if field.name not in names)
        return replace(event, fields=(*event.fields, *new))

    def name(enum: Enum) -> Enum:
        names = {member.name for member in enum.members}
        new = (member for member in members.get(enum.name, ()) if member.name not in names)
        return replace(enum, members=(*enum.members, *new))

    others = (enum for enum in more.enums if enum.name not in base.enum_names)
    return replace(base.with_events(widen), enums=(*map(name, base.enums), *others))


def _wrong(base: Schema, more: Schema, suggestions: Suggestions) -> Iterator[Problem]:
    """What `more` cannot add to the base."""
    yield from repeated("event", more.events)
    yield from repeated("enum", more.enums)
    events = {event.name: event for event in base.events}
    enums = {enum.name: enum for enum in base.enums}
    others: list[LogLevel | Arch] = [*more.loglevels, *more.arches]
    for other in others:
        message = f"expected events and enums alone in what extends '{base.name}'"
        yield other.position.problem(message)
    for position in more.using_positions:
        yield position.problem(f"expected no 'using' in what extends '{base.name}'")
    for event in more.events:
        if event.name not in events:
            near = suggestions.suggest(event.name, events)
            message = f"expected an event of '{base.name}', found unknown '{event.name}'{near}"
            yield event.position.problem(message)
            continue
        names = {field.name for field in events[event.name].fields}
        for field in event.fields:
            if field.name in names:
                message = f"expected a new field name, found '{field.name}' of '{base.name}' again"
                yield field.position.problem(message)
    for enum in more.enums:
        known = enums.get(enum.name)
        names = {member.name for member in known.members} if known else set[str]()
        for member in enum.members:
            if member.name in names:
                message = f"expected a new name, found '{member.name}' of '{base.name}' again"
                yield member.position.problem(message)
