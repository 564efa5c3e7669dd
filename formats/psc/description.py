# SPDX-License-Identifier: Apache-2.0
"""The parts of a PSC header that are parsed on demand: schema, settings, clock, location names."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcpkmon.formats.base import facts
from tcpkmon.formats.base.errors import DamagedError, TcpkmonError, UsageError
from tcpkmon.formats.base.limits import MOST_SCHEMA_BYTES
from tcpkmon.formats.base.text import suggest
from tcpkmon.formats.psc.columns import Column
from tcpkmon.formats.psc.header import KIND_CLOCK, KIND_SCHEMA, Header

if TYPE_CHECKING:
    from tcpkmon.formats.schema import Schema


class Description:
    """The header of the file at `path`.

    A part that cannot be parsed counts as missing, and `warnings` reports it. Text can hold any
    character: escape it before you print it.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header
        self.warnings: list[str] = []
        self._unreadable: list[str] = []
        self.columns_by_name = {
            one.name: one for one in header.columns if one.length and one.is_for(header.mods)
        }
        self.names = tuple(self.columns_by_name)

    def find_column(self, name: str) -> Column:
        """The column called `name`; UsageError if the file has none."""
        if name not in self.columns_by_name:
            raise UsageError(f"{self.path} has no column {name}{suggest(name, self.names)}",
                             f"it has {' '.join(self.names)}")
        return self.columns_by_name[name]

    def is_text(self, name: str) -> bool:
        """Whether a column is raw bytes that hold text (a name), not an address."""
        column = self.find_column(name)
        raw = not (column.is_integer or column.is_time)
        return raw and column.is_raw and not name.endswith("addr")

    def is_signed(self, column: Column) -> bool:
        """Whether the file's schema declares this column as signed."""
        return bool(self._signed) and (column.name, column.length) in self._signed

    def none_of(self, name: str) -> int | None:
        """The value of a number, or 0 of bytes, that means that there is none: null in tables.

        The file's schema declares it; None where it does not.
        """
        return self._nones.get(name)

    @functools.cached_property
    def _nones(self) -> dict[str, int]:
        events = self.schema.events if self.schema else ()
        fields = (field for event in events for field in event.fields)
        return {field.name: none for field in fields if (none := field.none) is not None}

    @functools.cached_property
    def _signed(self) -> frozenset[tuple[str, int]]:
        if self.schema is None:
            return frozenset()
        from tcpkmon.formats.schema import field_type

        fields = (field for event in self.schema.events for field in event.fields)
        kinds = ((field.name, field_type(self.schema, field)) for field in fields)
        return frozenset((name, kind.width) for name, kind in kinds if kind.signed)

    @functools.cached_property
    def clock(self) -> tuple[int, int, int] | None:
        """(monotonic ns, realtime ns, uncertainty ns) at the start, or None."""
        clock = self.header.clock()
        if clock is None and KIND_CLOCK in self.header.extras:
            self._complain("the header's clock record cannot be read")
        return clock

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """How the file was captured; empty if the header has no settings."""
        if self.header.settings is None:
            self._complain("the header's settings cannot be read")
        return self.header.settings or {}

    @functools.cached_property
    def schema(self) -> Schema | None:
        """The schema in the header, or None."""
        text = self.header.text(KIND_SCHEMA)
        if text is None:
            return None
        from tcpkmon.formats.schema import parse

        try:
            if len(text) > MOST_SCHEMA_BYTES:
                raise DamagedError(f"more than {MOST_SCHEMA_BYTES} characters")
            schema: Schema = parse(text, "schema")
            return schema
        except TcpkmonError as error:
            first = str(error).split("\n", maxsplit=1)[0]
            self._complain(f"the schema in the header cannot be read: {first}")
            return None

    def _complain(self, what: str) -> None:
        self._unreadable.append(what)
        self.warnings.append(what)

    def find_unreadable(self) -> list[str]:
        """Those of the `warnings` that are about parts of the header."""
        for part in (self.schema, self.settings, self.clock):
            del part  # it was parsed
        return self._unreadable

    def location_name(self, number: int) -> str:
        """A location's name: from the file's schema, else of a control entry, else its digits."""
        return self._location_names.get(number) or facts.NAMES.get(number) or str(number)

    @functools.cached_property
    def _location_names(self) -> dict[int, str]:
        enums = self.schema.enums if self.schema else ()
        members = (member for enum in enums if enum.name == "location" for member in enum.members)
        return {member.value: member.name for member in members}
