# SPDX-License-Identifier: Apache-2.0
"""Resolves the names in a schema: types, and log levels with using, include and omit."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from tcpkmon.formats.base.errors import Problem
from tcpkmon.formats.base.limits import MOST_SCHEMA_PROBLEMS
from tcpkmon.formats.schema.model import (
    Arch,
    Enum,
    Event,
    Include,
    LogLevel,
    Omit,
    Position,
    Schema,
    Suggestions,
)
from tcpkmon.formats.schema.types import basic_type, explain_unknown_type


def merge(schemata: Sequence[Schema]) -> Schema:
    """One schema with the declarations of all; `check` finds what contradicts each other.

    A schema with log levels and no ``using`` keeps all its levels in use. The counters of one arch
    in several schemata are merged; if they contradict each other, both remain for `check`.
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
        _merge_arches(schemata),
        tuple(using),
        "+".join(schema.name for schema in schemata),
        tuple(using.values()),
    )


def _merge_arches(schemata: Sequence[Schema]) -> tuple[Arch, ...]:
    merged: list[Arch] = []
    for schema in schemata:
        before = {arch.name: number for number, arch in enumerate(merged)}
        for arch in schema.arches:
            number = before.get(arch.name)
            if number is None or any(_contradictions(merged[number], arch)):
                merged.append(arch)
            else:
                merged[number] = _join(merged[number], arch)
    return tuple(merged)


def _join(first: Arch, second: Arch) -> Arch:
    new = [pair not in first.counters for pair in second.counters]
    return Arch(
        first.name,
        (*first.counters, *itertools.compress(second.counters, new)),
        "\n".join(filter(None, dict.fromkeys([first.doc, second.doc]))),
        first.position,
        (*first.counter_positions, *itertools.compress(second.counter_positions, new)),
    )


def _contradictions(first: Arch, second: Arch) -> Iterator[tuple[Position, str]]:
    """Where the second gives a counter of the first another name, or a name another counter."""
    names = dict(first.counters)
    counters = {name: counter for counter, name in first.counters}
    places = second.counter_positions or [second.position] * len(second.counters)
    for (counter, name), position in zip(second.counters, places, strict=True):
        if names.get(counter, name) != name:
            yield position, f"expected '{names[counter]}' for {counter}, found '{name}'"
        elif counters.get(name, counter) != counter:
            yield position, f"expected {counters[name]} for '{name}', found {counter}"


def check(schema: Schema) -> list[Problem]:
    """The wrong names in `schema` (at most MOST_SCHEMA_PROBLEMS): repeated, unknown or circular."""
    suggestions = Suggestions()
    problems = itertools.chain(
        repeated("event", schema.events),
        repeated("enum", schema.enums),
        repeated("log level", schema.loglevels),
        _repeated_arches(schema.arches),
        _wrong_types(schema, suggestions),
        _wrong_levels(schema, suggestions),
    )
    return list(itertools.islice(problems, MOST_SCHEMA_PROBLEMS))


def enabled_events(schema: Schema) -> tuple[Event, ...]:
    """The events to record, in order: those outside of levels, and those of the levels in use.

    Without ``using`` every level is in use.
    """
    levels = {level.name: level for level in schema.loglevels}
    bits = _event_bits(schema)
    recorded = _level_events(levels, _include_order(levels)[0], bits)
    in_levels = {event.name for level in schema.loglevels for event in level.events()}
    used = 0
    for name in schema.using or levels:
        used |= recorded.get(name, 0)
    return tuple(
        event for event in schema.events if event.name not in in_levels or used & bits[event.name]
    )


def repeated(what: str, items: Sequence[Event | Enum | LogLevel | Arch]) -> Iterator[Problem]:
    """The items whose name another one has before."""
    first: dict[str, Position] = {}
    for item in items:
        before = first.setdefault(item.name, item.position)
        if before is not item.position and item.name:
            where = f"{before.file}:{before.line}"
            message = f"expected a new {what} name, found '{item.name}' again (first at {where})"
            if before.file != item.position.file:
                message += "; record these schemata in a capture each"
            yield item.position.problem(message)


def _repeated_arches(arches: Sequence[Arch]) -> Iterator[Problem]:
    first: dict[str, Arch] = {}
    for arch in arches:
        before = first.setdefault(arch.name, arch)
        if before.position.file == arch.position.file:
            yield from repeated("arch", [before, arch])
            continue
        for position, message in _contradictions(before, arch):
            where = f"{before.position.file}:{before.position.line}"
            yield position.problem(f"{message} (arch '{arch.name}' is at {where} too)")


def _wrong_types(schema: Schema, suggestions: Suggestions) -> Iterator[Problem]:
    enums = dict.fromkeys(enum.name for enum in schema.enums)
    known: set[tuple[Position, str]] = set()  # fields of a group are in several events
    for event in schema.events:
        for field in event.fields:
            seen = (field.position, field.type) in known
            if not seen and field.type not in enums and basic_type(field.type) is None:
                known.add((field.position, field.type))
                message = explain_unknown_type(field.type, enums, suggestions.suggest)
                yield field.position.problem(message)


def _wrong_levels(schema: Schema, suggestions: Suggestions) -> Iterator[Problem]:
    def unknown(what: str, name: str, names: Iterable[str]) -> str:
        near = suggestions.suggest(name, names)
        return f"expected the name of {what}, found unknown '{name}'{near}"

    levels = {level.name: level for level in schema.loglevels}
    bits = _event_bits(schema)
    for name, position in zip(schema.using, schema.using_positions, strict=False):
        if name not in levels:
            yield position.problem(unknown("a log level", name, levels))
    order, circles = _include_order(levels)
    for include, path in circles:
        circle = " -> ".join(path if len(path) <= 10 else [*path[:5], "...", *path[-4:]])
        yield include.position.problem(f"expected log levels without a circle, found {circle}")
    recorded = _level_events(levels, order, bits)
    for level in schema.loglevels:
        included = 0
        for item in level.items:
            if isinstance(item, Include):
                included |= recorded.get(item.name, 0)
                if item.name not in levels:
                    yield item.position.problem(unknown("a log level", item.name, levels))
        for item in level.items:
            if isinstance(item, Omit) and item.name not in bits:
                yield item.position.problem(unknown("an event", item.name, bits))
            elif isinstance(item, Omit) and not (included & bits[item.name] or circles):
                wanted = f"an event of the log levels that '{level.name}' includes"
                yield item.position.problem(f"expected {wanted}, found '{item.name}'")


def _include_order(
    levels: dict[str, LogLevel],
) -> tuple[list[str], list[tuple[Include, list[str]]]]:
    """The levels, each after those that it includes, and the includes that close a circle."""
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
                if len(circles) < MOST_SCHEMA_PROBLEMS:
                    names = list(path)
                    circles.append((include, [*names[names.index(include.name) :], include.name]))
            elif include.name in levels and include.name not in order:
                path[include.name] = _includes(levels[include.name])
    return list(order), circles


def _includes(level: LogLevel) -> Iterator[Include]:
    return iter([item for item in level.items if isinstance(item, Include)])


def _event_bits(schema: Schema) -> dict[str, int]:
    """A bit for each event: sets of events as ints stay small in a deep chain of levels."""
    names = dict.fromkeys(event.name for event in schema.events)
    return {name: 1 << number for number, name in enumerate(names)}


def _level_events(
    levels: dict[str, LogLevel], order: list[str], bits: dict[str, int]
) -> dict[str, int]:
    """The events that each level records, as a sum of bits."""
    recorded: dict[str, int] = {}
    for name in order:
        included = omitted = own = 0
        for item in levels[name].items:
            if isinstance(item, Include):
                included |= recorded.get(item.name, 0)
            elif isinstance(item, Omit):
                omitted |= bits.get(item.name, 0)
            else:
                own |= bits[item.name]
        recorded[name] = (included & ~omitted) | own
    return recorded
