# SPDX-License-Identifier: Apache-2.0
"""Schema text and files to a checked Schema, or to one error with every mistake."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tcpkmon.formats.base.errors import FileError, Problem, SchemaError
from tcpkmon.formats.base.limits import MOST_SCHEMA_BYTES
from tcpkmon.formats.schema.grammar import Grammar
from tcpkmon.formats.schema.model import Arch, Enum, Event, Field, LogLevel, Schema, Suggestions
from tcpkmon.formats.schema.resolve import check, merge, repeated

# Puts what schemata with `extends` declare into the schemata that they extend.

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


@dataclass(frozen=True)
class Partial:
    """The declarations that could be read, and the problems."""

    schema: Schema
    problems: tuple[Problem, ...]


def parse(text: str, filename: str = "<schema>") -> Schema:
    """The schema in `text`; raises SchemaError with all problems."""
    read = _read(text, filename, {})
    problems = [*read.problems, *check(read.schema)]
    if problems:
        raise SchemaError(sorted(problems))
    return read.schema


def load(
    paths: Iterable[str | os.PathLike[str]], read: Callable[[str], str] | None = None
) -> Schema:
    """The schema of several files together (a file named twice counts once).

    read: reads a file instead of read_text(). Raises FileError, or SchemaError with the problems of
    all files.
    """
    partial = load_partly(paths, read)
    if partial.problems:
        raise SchemaError(partial.problems)
    return partial.schema


def load_partly(
    paths: Iterable[str | os.PathLike[str]], read: Callable[[str], str] | None = None
) -> Partial:
    """As `load`, but returns the problems (ordered by file), so that the caller can continue."""
    files: dict[str, str] = {}
    for path in paths:
        files.setdefault(os.path.realpath(path), os.fspath(path))
    schemata: list[Schema] = []
    groups: dict[str, tuple[Field, ...]] = {}
    problems: list[Problem] = []
    for name in files.values():
        try:
            one = _read((read or read_text)(name), name, groups)
        except SchemaError as error:
            problems += error.problems
            continue
        schemata.append(one.schema)
        problems += one.problems
    extended, found = extend(schemata)
    merged = merge(extended)
    problems += [*found, *check(merged)]
    order = {name: number for number, name in enumerate(files.values())}
    problems.sort(key=lambda problem: (order[problem.file], problem))
    return Partial(merged, tuple(problems))


def extended_by(text: str, filename: str = "<schema>") -> str:
    """The schema that this text extends, or ''."""
    return _read(text, filename, {}).schema.extends


def schema_name(path: str) -> str:
    """The name of the schema in a file ``NAME.conf`` or ``.klogger.conf.NAME``."""
    base = os.path.basename(path)
    if base.startswith(".klogger.conf."):
        return base.removeprefix(".klogger.conf.")
    return base.removesuffix(".conf")


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a schema file; raises FileError, or SchemaError if it is not UTF-8."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_SCHEMA_BYTES + 1)
    except OSError as error:
        raise FileError(f"cannot read schema {path}: {error.strerror}") from error
    return decode_text(data, path)


def decode_text(data: bytes, path: str | os.PathLike[str]) -> str:
    """The text of a file's bytes; raises SchemaError if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = error.start - before.rfind(b"\n")
        line = before.count(b"\n") + 1
        problem = Problem(os.fspath(path), line, column, "expected text in UTF-8")
        raise SchemaError([problem]) from error


def _read(text: str, file: str, groups: dict[str, tuple[Field, ...]]) -> Partial:
    """What one text declares, with the problems that this text alone shows, in no order."""
    if len(text) > MOST_SCHEMA_BYTES:
        raise SchemaError([Problem(file, 1, 1, f"expected at most {MOST_SCHEMA_BYTES} characters")])
    grammar = Grammar(text, file, groups)
    schema = grammar.schema(schema_name(file))
    return Partial(schema, tuple(grammar.problems))
