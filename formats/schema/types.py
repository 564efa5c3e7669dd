# SPDX-License-Identifier: Apache-2.0
"""The types of Table 1 of the Klogger HOWTO, at the widths of a 64-bit machine."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.text import suggest
from tcpkmon.formats.schema.model import Field, Schema

MAX_STRING_BYTES = 4096
_STRING = re.compile(r"string([0-9]*)", re.ASCII)

# Type names of C and the kernel, and what this language calls them.
_FOREIGN_NAMES = {
    "char": "stringN, N bytes", "string": "stringN, N bytes", "unsigned": "uint", "signed": "int",
    "bool": "ushort", "u8": "ushort", "u16": "ushort", "u32": "uint", "u64": "ulonglong",
    "s8": "short", "s16": "short", "s32": "int", "s64": "longlong", "size_t": "ulong",
    "pid_t": "int",
}  # fmt: skip


@dataclass(frozen=True)
class FieldType:
    """How a field is stored: `width` in bytes; `dtype` is numpy's, in native byte order."""

    width: int
    signed: bool
    kind: Literal["int", "string", "enum"]
    c_type: str
    dtype: str


BASIC_TYPES: dict[str, FieldType] = {
    "short": FieldType(2, True, "int", "short", "i2"),
    "ushort": FieldType(2, False, "int", "unsigned short", "u2"),
    "int": FieldType(4, True, "int", "int", "i4"),
    "uint": FieldType(4, False, "int", "unsigned int", "u4"),
    "long": FieldType(8, True, "int", "long", "i8"),
    "ulong": FieldType(8, False, "int", "unsigned long", "u8"),
    "longlong": FieldType(8, True, "int", "long long", "i8"),
    "ulonglong": FieldType(8, False, "int", "unsigned long long", "u8"),
}
_ENUM = FieldType(4, True, "enum", "int", "i4")


def is_type_name(name: str) -> bool:
    """Whether `name` is a basic type, ``string`` or ``stringN``."""
    return name in BASIC_TYPES or _STRING.fullmatch(name) is not None


def basic_type(name: str) -> FieldType | None:
    """The basic type or stringN called `name`, if there is one."""
    match = _STRING.fullmatch(name)
    # At most four digits: a number of a million digits is not worth converting.
    if match is None or not 1 <= len(match[1]) <= 4 or match[1].startswith("0"):
        return BASIC_TYPES.get(name)
    width = int(match[1])
    if width > MAX_STRING_BYTES:
        return None
    return FieldType(width, False, "string", f"char[{width}]", f"S{width}")


def field_type(schema: Schema, field: Field) -> FieldType:
    """How `field` of an event of `schema` is stored; raises UsageError for an unknown type."""
    found = basic_type(field.type)
    if found is not None:
        return found
    if field.type in schema.enum_names:
        return _ENUM
    raise UsageError(explain_unknown_type(field.type, schema.enum_names))


def explain_unknown_type(
    name: str, enums: Iterable[str], suggest: Callable[[str, Iterable[str]], str] = suggest
) -> str:
    """The message for `name`, which is no type of a field, with a suggestion of `suggest`."""
    if _STRING.fullmatch(name) and name != "string":
        return f"expected a string of 1 to {MAX_STRING_BYTES} bytes, found '{name[:60]}'"
    meant = _FOREIGN_NAMES.get(name.strip("_").removesuffix("_t"), _FOREIGN_NAMES.get(name))
    names = itertools.chain(BASIC_TYPES, enums)
    near = f" (did you mean '{meant}'?)" if meant else suggest(name, names)
    return f"expected a type, found '{name[:60]}'{near}"
