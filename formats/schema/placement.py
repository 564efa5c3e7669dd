# SPDX-License-Identifier: Apache-2.0
"""The offsets of an event's fields in its payload, as a C compiler for 64 bits places them."""

from __future__ import annotations

from dataclasses import dataclass

from tcpkmon.formats.schema.model import Event, Field, Schema
from tcpkmon.formats.schema.types import FieldType, field_type

RAW_TAGS = frozenset({"raw", "address"})
"""Tags of string fields that hold any bytes, not text that ends at the first zero."""


@dataclass(frozen=True)
class Place:
    """A field, its type, and its offset in the payload in bytes."""

    field: Field
    type: FieldType
    offset: int

    @property
    def is_raw(self) -> bool:
        """Whether a string field holds bytes rather than text."""
        return self.type.kind == "string" and bool(RAW_TAGS & self.field.tags)


def place_fields(schema: Schema, event: Event) -> tuple[tuple[Place, ...], int]:
    """The fields in order, each at a multiple of its width (strings anywhere), and the size of the
    payload in bytes, a multiple of 8. UsageError for an unknown type."""
    places = []
    end = 0
    for field in event.fields:
        kind = field_type(schema, field)
        step = 1 if kind.kind == "string" else kind.width
        offset = (end + step - 1) // step * step
        places.append(Place(field, kind, offset))
        end = offset + kind.width
    return tuple(places), (end + 7) // 8 * 8
