# SPDX-License-Identifier: Apache-2.0
"""Schemata for the tests: generated ones (hypothesis), and the HOWTO's own examples."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from tcpkmon.formats.schema import Arch, Enum, Event, Field, LogLevel, Schema
from tcpkmon.formats.schema.comments import plain_doc
from tcpkmon.formats.schema.cursor import C_WORDS, KEYWORDS
from tcpkmon.formats.schema.model import Include, LevelItem, Member, Omit
from tcpkmon.formats.schema.types import BASIC_TYPES, is_type_name

HOWTO_LEVELS = """
using two

loglevel one <
   event ONE_DO {
   }

   event ONE_SIMPLE {
   }
>

loglevel two <
   include one

   omit ONE_SIMPLE

   event TWO_DETAILED {
   }
>
"""

_WORDS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
NAMES = _WORDS.filter(lambda name: name not in C_WORDS | KEYWORDS and not is_type_name(name))
TEXT = st.characters(exclude_categories=["Cs"])
DOCS = st.one_of(st.text("ab @[]*/#<>{};=,\\\"'\t\n", max_size=20), st.text(TEXT, max_size=20)).map(
    lambda text: plain_doc(text.split("\n"))
)
UNITS = st.text(TEXT, max_size=6).map(
    lambda text: " ".join(text.replace("[", "").replace("]", "").split())
)
TAGS = st.frozensets(st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,5}", fullmatch=True), max_size=3)


@st.composite
def schemata(draw: st.DrawFn) -> Schema:
    """Any schema that `check` accepts."""
    enum_names = draw(st.lists(NAMES, max_size=3, unique=True))
    enums = tuple(draw(_enums(name)) for name in enum_names)
    types = st.one_of(
        st.sampled_from([*BASIC_TYPES, *enum_names]),
        st.integers(1, 4096).map(lambda width: f"string{width}"),
    )
    free = draw(st.lists(NAMES, max_size=12, unique=True))
    level_names = draw(st.lists(NAMES, max_size=4, unique=True))
    events: list[Event] = []
    levels: list[LogLevel] = []
    recorded: dict[str, set[str]] = {}
    for level in [*level_names, None]:
        outside = draw(st.integers(0, min(2, len(free))))
        events += [draw(_events(free.pop(), types)) for _ in range(outside)]
        if level is None:
            break
        items: list[LevelItem] = []
        included: set[str] = set()
        if recorded:
            for name in draw(st.lists(st.sampled_from(sorted(recorded)), max_size=3)):
                items.append(Include(name))
                included |= recorded[name]
        if included:
            items += [Omit(name) for name in draw(st.sets(st.sampled_from(sorted(included))))]
        own = [
            draw(_events(free.pop(), types)) for _ in range(draw(st.integers(0, min(2, len(free)))))
        ]
        events += own
        items += own
        omitted = {item.name for item in items if isinstance(item, Omit)}
        recorded[level] = (included - omitted) | {event.name for event in own}
        levels.append(LogLevel(level, tuple(items), draw(DOCS)))
    using = draw(st.lists(st.sampled_from(level_names), unique=True)) if level_names else []
    arches = tuple(draw(_arches(name)) for name in draw(st.lists(NAMES, max_size=2, unique=True)))
    return Schema(tuple(events), enums, tuple(levels), arches, tuple(using))


def renamed(schema: Schema, prefix: str) -> Schema:
    """The same with a prefix before each name that several files share."""
    enums = {enum.name for enum in schema.enums}

    def event_of(event: Event) -> Event:
        fields = tuple(
            replace(field, type=prefix + field.type if field.type in enums else field.type)
            for field in event.fields
        )
        return replace(event, name=prefix + event.name, fields=fields)

    def item_of(item: LevelItem) -> LevelItem:
        return event_of(item) if isinstance(item, Event) else replace(item, name=prefix + item.name)

    return Schema(
        tuple(event_of(event) for event in schema.events),
        tuple(replace(enum, name=prefix + enum.name) for enum in schema.enums),
        tuple(
            replace(level, name=prefix + level.name, items=tuple(map(item_of, level.items)))
            for level in schema.loglevels
        ),
        tuple(replace(arch, name=prefix + arch.name) for arch in schema.arches),
        tuple(prefix + name for name in schema.using),
    )


@st.composite
def _events(draw: st.DrawFn, name: str, types: st.SearchStrategy[str]) -> Event:
    names = draw(
        st.lists(
            _WORDS.filter(lambda word: word not in C_WORDS and word != "header"),
            max_size=4,
            unique=True,
        )
    )
    fields = tuple(Field(one, draw(types), draw(DOCS), draw(UNITS), draw(TAGS)) for one in names)
    return Event(name, fields, draw(DOCS), draw(TAGS))


@st.composite
def _enums(draw: st.DrawFn, name: str) -> Enum:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    values = st.integers(-(1 << 31), (1 << 31) - 1)
    members = tuple(Member(one, draw(values), draw(DOCS), draw(TAGS)) for one in names)
    return Enum(name, members, draw(DOCS))


@st.composite
def _arches(draw: st.DrawFn, name: str) -> Arch:
    names = draw(st.lists(NAMES, max_size=3, unique=True))
    counters = tuple((f"counter{number + 1}", one) for number, one in enumerate(names))
    return Arch(name, counters, draw(DOCS))
