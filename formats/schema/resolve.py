# SPDX-License-Identifier: Apache-2.0
"""What the names in a schema refer to: types, and log levels with using, include and omit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from formats.errors import Problem
from formats.schema.model import (
    Arch,
    Enum,
    Event,
    Include,
    LogLevel,
    Omit,
    Position,
    Schema,
    suggest,
)
from formats.schema.types import basic_type, explain_unknown_type


def merge(schemata: Sequence[Schema]) -> Schema:
    """One schema with the declarations of all; `check` tells whether they fit together.

    A schema with log levels and no ``using`` keeps all its levels in use.
    """
    using: dict[str, Position] = {}
    if any(schema.using for schema in schemata):
        for schema in schemata:
            using.update(zip(schema.using, schema.using_positions, strict=False))
            if not schema.using:
                using.update((level.name, level.position) for level in schema.loglevels)
    return Schema(
        tuple(event for schema in schemata for event in schema.events),
        tuple(enum for schema in schemata for enum in schema.enums),
        tuple(level for schema in schemata for level in schema.loglevels),
        tuple(arch for schema in schemata for arch in schema.arches),
        tuple(using),
        "+".join(schema.name for schema in schemata),
        tuple(using.values()),
    )


def check(schema: Schema) -> list[Problem]:
    """What is wrong with the names of `schema`: declared twice, unknown, in a circle."""
    return [
        *_repeated("event", schema.events),
        *_repeated("enum", schema.enums),
        *_repeated("log level", schema.loglevels),
        *_repeated("arch", schema.arches),
        *_wrong_types(schema),
        *_wrong_levels(schema),
    ]


def enabled_events(schema: Schema) -> tuple[Event, ...]:
    """The events outside log levels and those of the levels in use, in the schema's order."""
    levels = {level.name: level for level in schema.loglevels}
    recorded = _level_events(levels, _include_order(levels)[0])
    in_levels = {event.name for level in schema.loglevels for event in level.events()}
    chosen = schema.using or tuple(levels)
    names = set().union(*(recorded.get(name, frozenset()) for name in chosen))
    return tuple(
        event for event in schema.events if event.name not in in_levels or event.name in names
    )


def _problem(position: Position, message: str) -> Problem:
    return Problem(position.file, position.line, position.column, message)


def _repeated(what: str, items: Sequence[Event | Enum | LogLevel | Arch]) -> Iterator[Problem]:
    first: dict[str, Position] = {}
    for item in items:
        before = first.setdefault(item.name, item.position)
        if before is not item.position and item.name:
            where = f"{before.file}:{before.line}"
            message = f"expected a new {what} name, found '{item.name}' again (first at {where})"
            yield _problem(item.position, message)


def _wrong_types(schema: Schema) -> Iterator[Problem]:
    enums = {enum.name: enum for enum in schema.enums}
    for event in schema.events:
        for field in event.fields:
            if field.type not in enums and basic_type(field.type) is None:
                yield _problem(field.position, explain_unknown_type(field.type, list(enums)))


def _wrong_levels(schema: Schema) -> Iterator[Problem]:
    levels = {level.name: level for level in schema.loglevels}
    events = [event.name for event in schema.events]
    for name, position in zip(schema.using, schema.using_positions, strict=False):
        if name not in levels:
            yield _problem(position, _unknown("a log level", name, list(levels)))
    order, circles = _include_order(levels)
    for include, path in circles:
        circle = " -> ".join(path)
        yield _problem(include.position, f"expected log levels without a circle, found {circle}")
    recorded = _level_events(levels, order)
    known = frozenset(events)
    for level in schema.loglevels:
        included: set[str] = set()
        for item in level.items:
            if isinstance(item, Include):
                included |= recorded.get(item.name, frozenset())
                if item.name not in levels:
                    yield _problem(item.position, _unknown("a log level", item.name, list(levels)))
        for item in level.items:
            if isinstance(item, Omit) and item.name not in known:
                yield _problem(item.position, _unknown("an event", item.name, events))
            elif isinstance(item, Omit) and item.name not in included and not circles:
                wanted = f"an event of the log levels that '{level.name}' includes"
                yield _problem(item.position, f"expected {wanted}, found '{item.name}'")


def _unknown(what: str, name: str, names: list[str]) -> str:
    return f"expected the name of {what}, found unknown '{name}'{suggest(name, names)}"


def _include_order(
    levels: dict[str, LogLevel],
) -> tuple[list[str], list[tuple[Include, list[str]]]]:
    """Each level after those that it includes; and each include that closes a circle."""
    order: dict[str, None] = {}
    circles: list[tuple[Include, list[str]]] = []
    for root, level in levels.items():
        path: dict[str, Iterator[Include]] = {} if root in order else {root: _includes(level)}
        while path:
            name, rest = next(reversed(path.items()))
            include = next(rest, None)
            if include is None:
                order[name] = None
                del path[name]
            elif include.name in path:
                names = list(path)
                circles.append((include, [*names[names.index(include.name) :], include.name]))
            elif include.name in levels and include.name not in order:
                path[include.name] = _includes(levels[include.name])
    return list(order), circles


def _includes(level: LogLevel) -> Iterator[Include]:
    return iter([item for item in level.items if isinstance(item, Include)])


def _level_events(levels: dict[str, LogLevel], order: list[str]) -> dict[str, frozenset[str]]:
    """The names of the events that each level records."""
    recorded: dict[str, frozenset[str]] = {}
    for name in order:
        level = levels[name]
        included: set[str] = set()
        for include in _includes(level):
            included |= recorded.get(include.name, frozenset())
        omitted = {item.name for item in level.items if isinstance(item, Omit)}
        recorded[name] = frozenset((included - omitted) | {event.name for event in level.events()})
    return recorded
