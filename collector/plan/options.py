# SPDX-License-Identifier: Apache-2.0
"""Options of a capture: each is declared once, as a field of the class that holds its value.

    force: bool = option("--force", FLAG, "Replace an existing file.")

The command line (collector/commands/capture_options.py), the man page, the daemon's TOML
(collector/daemon/config.py), what a reload may change in a running capture, and the request come
from that. Request has them all, some in groups: filters.py, rotation.py, recorder.py, budget.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.quantities import (
    parse_duration,
    parse_limit,
    parse_megabytes,
    parse_size,
)
from tcpkmon.formats.base.text import suggest

_MOST_PATH = 4096
"""PATH_MAX."""
_MOST_NAMES = 64
Convert = Callable[[Any], Any]
"""Makes a value, or raises UsageError."""


@dataclass(frozen=True)
class Kind:
    """What values an option takes. read: makes one of what click gives; toml: of what TOML has.

    number: click reads one, from least to most. choices: click takes these alone. many: the option
    may be given several times. flag: it takes no value. default: of the field. make(name, value):
    of a value that has to be looked up. spread: the fields that it is of, if they are several.
    """

    read: Convert
    toml: Convert
    number: type[int] | type[float] | None = None
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    many: bool = False
    flag: bool = False
    default: Any = None
    make: Callable[[str, Any], Any] = lambda name, value: value
    spread: tuple[str, ...] = ()


@dataclass(frozen=True)
class Option:
    """words: as the help shows it, "-o, --output FILE". key: in TOML, "" where it has none. live:
    whether it may change in a running capture. shown: the default, in the help. twins: others that
    give the same value."""

    words: str
    kind: Kind
    help: str
    key: str = ""
    live: bool = False
    shown: Any = None
    twins: tuple[Option, ...] = ()

    @property
    def names(self) -> list[str]:
        """On the command line, the long one last."""
        return [name.partition(" ")[0] for name in self.words.split(", ")]

    @property
    def metavar(self) -> str | None:
        """Of the value."""
        return self.words.rpartition(", ")[2].partition(" ")[2] or None


def option(
    words: str, kind: Kind, help: str, key: str | bool = False, *, default: Any = MISSING,
    live: bool = False, shown: Any = None, twins: Sequence[Option] = (),
) -> Any:  # fmt: skip
    """A field of a class of options; see Option. key: True for that of the command line."""
    found = Option(words, kind, help, "", live, default if shown is True else shown, tuple(twins))
    if key is True:
        key = found.names[-1].lstrip("-").replace("-", "_")
    found = replace(found, key=key or "")
    default = kind.default if default is MISSING else default
    return field(default=default, metadata={"option": found})


def group(of: type, is_table: bool = True) -> Any:
    """A field whose value is of a class of options of its own, which TOML has as a table of the
    field's name, if it is one; then there may be none."""
    return field(default=None if is_table else MISSING,
                 metadata={"group": of, "is_table": is_table})  # fmt: skip


def options_of(kind: type) -> dict[str, Option]:
    """The options that are declared in a class, by field."""
    return {
        each.name: each.metadata["option"] for each in fields(kind) if "option" in each.metadata
    }


def tables_of(kind: type) -> dict[str, type]:
    """The groups that are a table in TOML, by field."""
    return {
        each.name: each.metadata["group"] for each in fields(kind)
        if each.metadata.get("is_table")
    }  # fmt: skip


def all_options(kind: type, of: str = "") -> Iterator[tuple[str, str, Option]]:
    """Those of a class and of its groups, in order, each with the group's field, "" if it is in
    none, and its own."""
    for each in fields(kind):
        if "group" in each.metadata:
            yield from all_options(each.metadata["group"], each.name)
        elif "option" in each.metadata:
            yield of, each.name, each.metadata["option"]


# What makes a value of what TOML has


def _is_a(kind: type, what: str) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise UsageError(f"{value!r} is no {what}")
        return value

    return convert


def _words(value: Any) -> tuple[str, ...]:
    """Of a list, or of a text with commas; numbers are words too."""
    listed = value.split(",") if isinstance(value, str) else value
    if type(listed) is int:
        listed = [listed]
    if not isinstance(listed, list) or any(type(each) not in {str, int} for each in listed):
        raise UsageError(f"{value!r} is no list", 'write ["A", "B"]')
    return tuple(text for each in listed if (text := str(each).strip()))


def _names(value: Any) -> tuple[str, ...]:
    """Different words; a file is read for each."""
    names = tuple(dict.fromkeys(_words(value)))
    if len(names) > _MOST_NAMES:
        raise UsageError(f"{len(names):,} names", f"name {_MOST_NAMES} at most")
    return names


def _joined(value: Any) -> str:
    return ",".join(_words(value))


def _numbers(value: Any) -> tuple[int, ...]:
    words = _words(value)
    if not all(word.isascii() and word.isdigit() and len(word) < 11 for word in words):
        raise UsageError(f"{value!r} is no list of numbers", "write [1, 2]")
    return tuple(int(word) for word in words)


def _number_from(least: float, most: float) -> Convert:
    def convert(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise UsageError(f"{value!r} is no number from {least} to {most}")
        return value

    return convert


def _one_of(*choices: str) -> Convert:
    def convert(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            near = suggest(str(value), choices)
            raise UsageError(f"{value!r} is none of {', '.join(choices)}{near}")
        return value

    return convert


def _quantity(parse: Callable[[str], Any]) -> Convert:
    """A text that `parse` understands, or a number without a unit."""

    def convert(value: Any) -> Any:
        if type(value) not in {str, int, float}:
            raise UsageError(f"{value!r} is no text: write it in quotes")
        return parse(str(value))

    return convert


def _ring_size(value: Any) -> int:
    size: int = _quantity(parse_size)(value)
    if not 8 << 10 <= size <= 1 << 30:
        raise UsageError(f"a ring of {value}", "choose 8K to 1G")
    return size


def _limits(value: Any) -> tuple[tuple[str, int], ...]:
    """Of a table, EVENT = N, or a list, ["EVENT=N"]."""
    rows = [f"{k}={v}" for k, v in value.items()] if isinstance(value, dict) else _words(value)
    return tuple(parse_limit(row) for row in rows)


def _command(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(w, str) for w in value):
        raise UsageError(f"{value!r} is no command", 'write ["PROGRAM", "ARGUMENT"]')
    return tuple(value)


def path(value: Any) -> str:
    """An absolute path."""
    if not isinstance(value, str) or not Path(value).is_absolute() or len(value) >= _MOST_PATH:
        raise UsageError(f"{value!r} is no absolute path")
    return value


# Kinds


def number(least: int, most: int | None = None, checked: bool = True) -> Kind:
    """A whole number. checked: by click, not only in TOML."""
    limits = (least, most) if checked else (None, None)
    return Kind(int, _number_from(least, most or 1 << 31), int, *limits)


def choice(*names: str, checked: bool = True) -> Kind:
    """One of these names. checked: by click, not only in TOML."""
    return Kind(str, _one_of(*names), choices=names if checked else (), default=names[0])


def quantity(parse: Callable[[str], Any]) -> Kind:
    """A text with a unit, which `parse` reads."""
    return Kind(parse, _quantity(parse))


text = _is_a(str, "text: write it in quotes")
FLAG = Kind(bool, _is_a(bool, "truth value: write true or false"), flag=True, default=False)
UNSET = replace(FLAG, read=lambda given: not given, default=True)
"""A flag that sets a field that is true without it."""
TEXT, PATH = Kind(str, text), Kind(str, path)
JOINED = Kind(str, _joined)
"""A text with commas."""
WORDS = Kind(_words, _words, default=())
NAMES = Kind(lambda given: tuple(dict.fromkeys(given)), _names, many=True, default=())
SEVERAL = Kind(tuple, _words, many=True, default=())
EXPRESSIONS = replace(SEVERAL, toml=lambda given: _words([given] if type(given) is str else given))
"""Each may have commas."""
NUMBERS = replace(SEVERAL, toml=_numbers, number=int)
LIMITS = replace(SEVERAL, read=lambda given: tuple(map(parse_limit, given)), toml=_limits)
RING_SIZE = Kind(parse_megabytes, _ring_size, float, 0.008, 1024)
TIME, SIZE = quantity(parse_duration), quantity(parse_size)
LIMIT_TIME = replace(TIME, read=lambda given: parse_duration(given) if given else None)
"""A time; an empty text of the command line is no limit."""


def command(parse: Callable[[str], tuple[str, ...]]) -> Kind:
    """A program and its arguments; a list in TOML."""
    return Kind(parse, _command, default=())


def fields_of(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a class, made of the values of its options, and what else is given. UsageError.
    """
    found = {name: value for name, value in given.items() if value is not None}
    for name, each in options_of(kind).items():
        if name in found:
            value = each.kind.make(each.names[0], found.pop(name))
            spread = each.kind.spread
            found |= dict(zip(spread, value, strict=True)) if spread else {name: value}
    return found


def make_part(kind: type, given: Mapping[str, Any]) -> Any:
    """A group of the values of its options, by field. UsageError where they make no sense."""
    part = kind(**fields_of(kind, given))
    part.check()
    return part
