# SPDX-License-Identifier: Apache-2.0
"""Writes a Schema as text in the Klogger language, for files; `parse` reads it back."""

from __future__ import annotations

from collections.abc import Sequence

from tcpkmon.formats.schema.comments import join_doc
from tcpkmon.formats.schema.model import Arch, Enum, Event, Include, LogLevel, Omit, Schema

_INDENT = "    "


def format_schema(schema: Schema) -> str:
    """The text of `schema`: ``parse`` of it equals `schema` (documentation in single spaces)."""
    blocks: list[list[str]] = []
    if schema.extends:
        blocks.append([f"extends {schema.extends};"])
    if schema.using:
        blocks.append([f"using {', '.join(schema.using)}"])
    blocks += [_arch(arch) for arch in schema.arches]
    blocks += [_enum(enum) for enum in schema.enums]
    # Events and levels in an order from which `parse` makes the same schema.events.
    free = {event.name: event for event in schema.events}
    for level in schema.loglevels:
        for event in level.events():
            free.pop(event.name, None)
    printed: set[str] = set()
    rest = iter(schema.events)
    for level in schema.loglevels:
        if level.events():
            for event in rest:
                if event.name in free:
                    blocks.append(_event(event))
                elif event.name not in printed:
                    break
        printed.update(event.name for event in level.events())
        blocks.append(_level(level))
    blocks += [_event(event) for event in rest if event.name in free]
    return "\n".join("\n".join(block) + "\n" for block in blocks)


def _comments(lines: Sequence[str]) -> list[str]:
    return [f"// {line}".rstrip() for line in lines]


def _body(rows: Sequence[tuple[str, list[str]]]) -> list[str]:
    """Declarations with their comments: one line behind, several lines above."""
    width = max((len(text) for text, comments in rows if len(comments) == 1), default=0)
    lines: list[str] = []
    for text, comments in rows:
        if len(comments) == 1:
            lines.append(f"{_INDENT}{text:{width}}  // {comments[0]}")
        else:
            lines += [_INDENT + line for line in (*_comments(comments), text)]
    return lines


def _event(event: Event) -> list[str]:
    rows = [
        (f"{field.type} {field.name};", join_doc(field.doc, field.unit, field.tags))
        for field in event.fields
    ]
    docs = _comments(join_doc(event.doc, None, event.tags))
    return [*docs, f"event {event.name} {{", *_body(rows), "}"]


def _enum(enum: Enum) -> list[str]:
    rows = [
        (f"{member.name} = {member.value},", join_doc(member.doc, None, member.tags))
        for member in enum.members
    ]
    return [*_plain(enum.doc), f"enum {enum.name} {{", *_body(rows), "}"]


def _arch(arch: Arch) -> list[str]:
    rows = [(f"{counter} {name};", list[str]()) for counter, name in arch.counters]
    return [*_plain(arch.doc), f"arch {arch.name} {{", *_body(rows), "}"]


def _level(level: LogLevel) -> list[str]:
    lines = [*_plain(level.doc), f"loglevel {level.name} <"]
    for item in level.items:
        if isinstance(item, Event):
            lines += [_INDENT + line for line in _event(item)]
        elif isinstance(item, Include):
            lines.append(f"{_INDENT}include {item.name}")
        elif isinstance(item, Omit):
            lines.append(f"{_INDENT}omit {item.name}")
    return [*lines, ">"]


def _plain(doc: str) -> list[str]:
    return _comments(doc.split("\n")) if doc else []
