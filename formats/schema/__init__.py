# SPDX-License-Identifier: Apache-2.0
"""The Klogger configuration language: schema text to Schema and back, for all that is generated.

`parse` and `load` read it, `format_schema` writes it, `field_type` gives widths and C types.
"""

from tcpkmon.formats.schema.comments import comment_lines, split_doc
from tcpkmon.formats.schema.model import (
    Arch,
    Enum,
    Event,
    Field,
    LogLevel,
    Member,
    Schema,
    Suggestions,
)
from tcpkmon.formats.schema.parser import (
    decode_text,
    extended_by,
    load,
    load_partly,
    parse,
    read_text,
    schema_name,
)
from tcpkmon.formats.schema.placement import Place, place_fields
from tcpkmon.formats.schema.printer import format_schema
from tcpkmon.formats.schema.resolve import enabled_events
from tcpkmon.formats.schema.types import field_type

__all__ = [
    "Arch", "Enum", "Event", "Field", "LogLevel", "Member", "Place", "Schema", "Suggestions",
    "comment_lines", "decode_text", "enabled_events", "extended_by", "field_type", "format_schema",
    "load", "load_partly", "parse", "place_fields", "read_text", "schema_name", "split_doc",
]  # fmt: skip
