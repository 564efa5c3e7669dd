# SPDX-License-Identifier: Apache-2.0
"""The declarations of a schema as immutable values: the parser makes them, all others read them.

Two values are equal if they declare the same; positions and a schema's name do not count.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tcpkmon.formats.base.errors import Problem, UsageError
from tcpkmon.formats.base.limits import MOST_SUGGESTIONS
from tcpkmon.formats.base.text import suggest


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """A place in a schema file; line and column count from 1, in characters."""

    file: str = ""
    line: int = 0
    column: int = 0

    def problem(self, message: str) -> Problem:
        """A mistake at this place."""
        return Problem(self.file, self.line, self.column, message)


_NOWHERE = Position()
_NONE = re.compile(r"none(-?[0-9]{1,20})")
_T = TypeVar("_T", "Field", "Event", "Enum", "LogLevel")


@dataclass(frozen=True)
class Field:
    """One value of an event. `type` is a basic type, ``stringN`` or the name of an enum."""

    name: str
    type: str
    doc: str = ""
    unit: str = ""
    tags: frozenset[str] = frozenset()
    position: Position = field(default=_NOWHERE, compare=False, repr=False)

    @property
    def none(self) -> int | None:
        """The value by which the kernel says that it has none, of the tag @noneN: null in tables.

        Of a string 0: it is empty.
        """
        found = (match for tag in self.tags if (match := _NONE.fullmatch(tag)))
        return min((int(match[1]) for match in found), default=None)


@dataclass(frozen=True)
class Event:
    """The record of ``klogger(name, ...)``: its fields in order (there may be none)."""

    name: str
    fields: tuple[Field, ...] = ()
    doc: str = ""
    tags: frozenset[str] = frozenset()
    position: Position = field(default=_NOWHERE, compare=False, repr=False)

    def find_field(self, name: str) -> Field:
        """The field called `name`; raises UsageError."""
        return _find(self.fields, name, f"field of event '{self.name}'")


@dataclass(frozen=True)
class Member:
    """One name of an enum; `value` fits in a signed 32-bit int."""

    name: str
    value: int
    doc: str = ""
    tags: frozenset[str] = frozenset()
    position: Position = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True)
class Enum:
    """Names for values; several may share a value (the first then names it)."""

    name: str
    members: tuple[Member, ...]
    doc: str = ""
    position: Position = field(default=_NOWHERE, compare=False, repr=False)

    def names(self) -> dict[int, str]:
        """From each value to the name that decoding shows."""
        return {member.value: member.name for member in reversed(self.members)}


@dataclass(frozen=True)
class Include:
    """Part of a log level: it records all events of the level `name` too."""

    name: str
    position: Position = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True)
class Omit:
    """Part of a log level: it does not record the event `name` of the levels that it includes."""

    name: str
    position: Position = field(default=_NOWHERE, compare=False, repr=False)


LevelItem = Include | Omit | Event


@dataclass(frozen=True)
class LogLevel:
    """A group of events that ``using`` chooses."""

    name: str
    items: tuple[LevelItem, ...] = ()
    doc: str = ""
    position: Position = field(default=_NOWHERE, compare=False, repr=False)

    def events(self) -> tuple[Event, ...]:
        """The events that are declared in this level itself."""
        return tuple(item for item in self.items if isinstance(item, Event))


@dataclass(frozen=True)
class Arch:
    """Hardware counters of an architecture: pairs such as ``("counter1", "l2_cache_misses")``."""

    name: str
    counters: tuple[tuple[str, str], ...] = ()
    doc: str = ""
    position: Position = field(default=_NOWHERE, compare=False, repr=False)
    counter_positions: tuple[Position, ...] = field(default=(), compare=False, repr=False)


DATA_TAG = "data"
"""The tag of fields that are recorded on request only."""


@dataclass(frozen=True)
class Schema:
    """All declarations of one or several schema files.

    `events` holds every event in the order of the text, those within log levels too. extends: the
    schema to which the fields and the members belong (extending.py); '' once they are there.
    """

    events: tuple[Event, ...] = ()
    enums: tuple[Enum, ...] = ()
    loglevels: tuple[LogLevel, ...] = ()
    arches: tuple[Arch, ...] = ()
    using: tuple[str, ...] = ()
    name: str = field(default="", compare=False)
    using_positions: tuple[Position, ...] = field(default=(), compare=False, repr=False)
    extends: str = ""
    extends_position: Position = field(default=_NOWHERE, compare=False, repr=False)

    @functools.cached_property
    def enum_names(self) -> frozenset[str]:
        """The names of the enums, which are types of fields too."""
        return frozenset(enum.name for enum in self.enums)

    def event(self, name: str) -> Event:
        """The event called `name`; raises UsageError."""
        return _find(self.events, name, "event")

    def enum(self, name: str) -> Enum:
        """The enum called `name`; raises UsageError."""
        return _find(self.enums, name, "enum")

    def loglevel(self, name: str) -> LogLevel:
        """The log level called `name`; raises UsageError."""
        return _find(self.loglevels, name, "log level")

    def lean(self) -> Schema:
        """This schema without the fields that have DATA_TAG."""

        def lean(event: Event) -> Event:
            fields = tuple(field for field in event.fields if DATA_TAG not in field.tags)
            return event if len(fields) == len(event.fields) else replace(event, fields=fields)

        return self.with_events(lean)

    def with_events(self, change: Callable[[Event], Event]) -> Schema:
        """This schema with what `change` makes of each event."""
        levels = (
            replace(level, items=tuple(
                change(item) if isinstance(item, Event) else item for item in level.items
            ))
            for level in self.loglevels
        )  # fmt: skip
        return replace(self, events=tuple(map(change, self.events)), loglevels=tuple(levels))


class Suggestions:
    """suggest() for the first MOST_SUGGESTIONS names of a text, and an empty string from then on.

    A hostile text has many unknown names, and each suggestion compares one with all known names.
    """

    def __init__(self) -> None:
        self._left = MOST_SUGGESTIONS

    def suggest(self, name: str, names: Iterable[str]) -> str:
        """As the function suggest(), while there are suggestions left."""
        self._left -= 1
        return suggest(name, names) if self._left >= 0 else ""


def _find(items: tuple[_T, ...], name: str, what: str) -> _T:
    for item in items:
        if item.name == name:
            return item
    raise UsageError(f"unknown {what} '{name}'{suggest(name, (item.name for item in items))}")
