# SPDX-License-Identifier: Apache-2.0
"""The Klogger configuration language: schema text to Schema and back, for all that is generated.

`parse` and `load` read it, `format_schema` writes it, `field_type` gives widths and C types.
"""

from __future__ import annotations

from formats.base.errors import Problem, SchemaError
from formats.schema.model import (
    Arch,
    Enum,
    Event,
    Field,
    Include,
    LogLevel,
    Member,
    Omit,
    Position,
    Schema,
)
from formats.schema.parser import Partial, load, load_partly, parse, read_text, schema_name
from formats.schema.printer import format_schema
from formats.schema.types import FieldType, field_type

__all__ = [
    "Arch",
    "Enum",
    "Event",
    "Field",
    "FieldType",
    "Include",
    "LogLevel",
    "Member",
    "Omit",
    "Partial",
    "Position",
    "Problem",
    "Schema",
    "SchemaError",
    "field_type",
    "format_schema",
    "load",
    "load_partly",
    "parse",
    "read_text",
    "schema_name",
]
