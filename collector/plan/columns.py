# SPDX-License-Identifier: Apache-2.0
"""Which columns a capture stores, and at which offsets: for the C text and for the collector."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.formats.base.control import FIRST_CONTROL
from tcpkmon.formats.base.drops import REASONS, RESETS
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.text import suggest
from tcpkmon.formats.psc.columns import CLASSIC, Column, columns_of, entry_dtype
from tcpkmon.formats.schema import Event, Field, Member, Schema, field_type, load

SCHEMATA = Path(__file__).resolve().parents[2] / "bpf" / "schemata"
EVENT = "SNAPSHOT"
LOCATIONS = "location"
SETS = ("classic", "default", "full", "all")
"""The sets of columns; each holds those before it."""


@dataclass(frozen=True)
class Layout:
    """One capture's columns: `columns` in file order, `dtype` of an entry of `entry_size` bytes."""

    schema: Schema
    event: Event
    columns: tuple[Column, ...]
    entry_size: int
    absent: tuple[str, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        return entry_dtype(self.columns, self.entry_size)

    def field(self, name: str) -> Field:
        return next(field for field in self.event.fields if field.name == name)

    def width(self, name: str) -> int:
        """Bytes of the column's value."""
        return field_type(self.schema, self.field(name)).width

    def is_string(self, name: str) -> bool:
        return field_type(self.schema, self.field(name)).kind == "string"


@cache
def load_schema() -> Schema:
    """The schema tcp, as shipped."""
    return load([SCHEMATA / "tcp.conf"])


def with_kernel_names(schema: Schema, names_of: Callable[[str], Mapping[str, int]]) -> Schema:
    """The schema, whose REASONS and RESETS are those of this kernel. names_of: the constants of an
    enum of the kernel, without any where it has none."""
    kernel = {REASONS: "skb_drop_reason", RESETS: "sk_rst_reason"}
    made = []
    for enum in schema.enums:
        names = names_of(kernel[enum.name]) if enum.name in kernel else {}
        prefix = kernel.get(enum.name, "").upper() + "_"
        members = tuple(
            Member(name.removeprefix(prefix), number)
            for name, number in names.items()
            if number < 1 << 16 and not name.endswith("_MAX")
        )
        made.append(replace(enum, members=members) if members else enum)
    return replace(schema, enums=tuple(made))


def smallest_set(tags: Collection[str]) -> str:
    """The smallest set that holds a column with these tags."""
    return next((name for name in SETS if name in tags), SETS[-1])


def choose_columns(event: Event, text: str) -> tuple[str, ...]:
    """The columns that `--columns` names: one of SETS, or names (sets too) with commas.

    Raises UsageError for a name that is no column.
    """
    names = [field.name for field in event.fields]
    chosen: set[str] = set(CLASSIC)
    for word in (part.strip() for part in text.split(",")):
        if not word:
            continue
        if word in SETS:
            sets = SETS[: SETS.index(word) + 1]
            chosen.update(f.name for f in event.fields if smallest_set(f.tags) in sets)
        elif word in names:
            chosen.add(word)
        else:
            raise UsageError(
                f"no such column: {word}{suggest(word, [*names, *SETS])}",
                f"tcpkmon columns lists them; {', '.join(SETS)}",
            )
    return tuple(name for name in names if name in chosen)


def make_layout(schema: Schema, chosen: Sequence[str], absent: Collection[str]) -> Layout:
    """Places the chosen columns; those that this kernel lacks get length 0."""
    event = schema.event(EVENT)
    columns, size = columns_of(event, chosen, absent, schema)
    present = {column.name for column in columns}
    missing = tuple(name for name in absent if name in present)
    return Layout(schema, event, columns, size, missing)


def locations_of(schema: Schema) -> dict[str, int]:
    """The locations that can be asked for, by name."""
    members = schema.enum(LOCATIONS).members
    return {m.name: m.value for m in members if m.value < FIRST_CONTROL}


def choose_locations(schema: Schema, text: str | None) -> tuple[str, ...]:
    """The locations that `--locations` names: default, all, or names; a leading - removes one.

    Raises UsageError for a name that is no location.
    """
    members = [m for m in schema.enum(LOCATIONS).members if m.value < FIRST_CONTROL]
    default = [m.name for m in members if "extra" not in m.tags]
    words = [word.upper() for word in split_words(text)]
    return narrow(words, [m.name for m in members], default, "location")


def split_words(text: str | None) -> list[str]:
    """The words of --locations; none given is `default`."""
    return [word.strip() for word in (text or "default").split(",") if word.strip()]


def narrow(
    words: Sequence[str], names: Sequence[str], default: Collection[str], what: str
) -> tuple[str, ...]:
    """The names that the words select: default, all, or names; a leading - removes one.

    UsageError for an unknown name, and where nothing is left; what: the names' kind, for errors.
    """
    sets = {"default": set(default), "all": set(names)}
    chosen = set(default) if words and words[0].startswith("-") else set()
    for word in words:
        name = word.lstrip("-+")
        group = sets.get(name.lower(), {name})
        if not group <= set(names):
            near = suggest(name, [*names, *(one.upper() for one in sets)])
            raise UsageError(f"no such {what}: {name}{near}", "tcpkmon events lists them")
        chosen = chosen - group if word.startswith("-") else chosen | group
    if not chosen:
        raise UsageError(f"no {what} is left to record", "tcpkmon events lists them")
    return tuple(name for name in names if name in chosen)
