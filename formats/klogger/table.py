# SPDX-License-Identifier: Apache-2.0
"""The event table in the header of a Klogger log, checked for readers; describe.py makes it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.errors import DamagedError, TcpkmonError, UsageError
from tcpkmon.formats.base.limits import MOST_FIELDS, MOST_NAME_CHARACTERS, MOST_PAYLOAD_BYTES
from tcpkmon.formats.base.text import address_of, suggest, text_of
from tcpkmon.formats.schema import Schema, parse

FORMAT = 1
RECORD_HEAD_BYTES = 24
NUMBERS = 256
"""Event numbers are 0 to 255, as in the kernel's control map."""
PLACED = "losses_placed"
"""The setting of logs whose serials skip, before the final ledger, what was lost at the end."""
SNAPSHOT = "SNAPSHOT"
"""The event of the schema tcp."""

KINDS = ("int", "enum", "string", "bytes", "address")
_ORDERS = {"little": "<", "big": ">"}
WIDTHS = {"int": (1, 2, 4, 8), "enum": (4,), "address": (4, 16)}


@dataclass(frozen=True)
class LogField:
    """A field of an event: `offset` in the payload and `length`, both in bytes.

    kind: int, enum (an int; `type` names the enum), string (text up to the first NUL), bytes (any),
    or address (in network order: 4 bytes IPv4, 16 bytes IPv6 or v4-mapped IPv4). network: an int in
    network order, for any byte order of the log. none: the int that means null; of other kinds 0,
    and means bytes that are all 0.
    """

    name: str
    kind: str
    signed: bool
    offset: int
    length: int
    type: str
    network: bool = False
    none: int | None = None

    def numpy_format(self, order: str) -> str:
        """The numpy format of the value in a log of this byte order ("<" or ">")."""
        if self.kind in ("int", "enum"):
            return f"{'>' if self.network else order}{'i' if self.signed else 'u'}{self.length}"
        return f"{'S' if self.kind == 'string' else 'V'}{self.length}"


@dataclass(frozen=True)
class LogEvent:
    """An event of a log; `size`: payload bytes, a multiple of 8."""

    number: int
    name: str
    size: int
    fields: tuple[LogField, ...]
    order: str = field(default="<", repr=False)

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """The structured dtype of the payload, in the byte order of the log."""
        return np.dtype(
            {
                "names": [one.name for one in self.fields],
                "formats": [one.numpy_format(self.order) for one in self.fields],
                "offsets": [one.offset for one in self.fields],
                "itemsize": self.size,
            }
        )

    def find_field(self, name: str) -> LogField | None:
        """The field called `name`, if there is one."""
        return next((one for one in self.fields if one.name == name), None)


class LogFormat:
    """The events that a log's header describes; LogFormat.of() makes and checks it.

    header: as read from the file. events: in the order of the table. order: "<" or ">". Text can
    hold any character: escape it before you print it.
    """

    def __init__(self, header: Mapping[str, Any], events: Sequence[LogEvent], order: str) -> None:
        self.header = dict(header)
        self.events = tuple(events)
        self.order = order
        self._by_name = {event.name: event for event in events}
        self._by_number = {event.number: event for event in events}

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> LogFormat:
        """The format that a header describes. Raises DamagedError if the header is invalid."""
        if header.get("format") != FORMAT:
            raise DamagedError(f"the log is of format {header.get('format')!r:.40}, not {FORMAT}")
        order = _ORDERS.get(_text(header, "byteorder", "the header"))
        if order is None:
            raise DamagedError("the header's byteorder is neither little nor big")
        listed = header.get("events")
        if not isinstance(listed, list) or not 0 < len(listed) <= NUMBERS:
            raise DamagedError(f"the header has no table of 1 to {NUMBERS} events")
        events = [_read_event(item, order) for item in listed]
        for what in ("number", "name"):
            values = [getattr(event, what) for event in events]
            if len(set(values)) < len(values):
                raise DamagedError(f"two events in the header have the same {what}")
        return cls(header, events, order)

    def event(self, key: int | str) -> LogEvent:
        """The event of this number or name; raises UsageError."""
        found = self._by_name.get(key) if isinstance(key, str) else self._by_number.get(key)
        if found is None:
            raise UsageError(f"the log has no event '{key}'{suggest(str(key), self._by_name)}")
        return found

    def find_event(self, name: str) -> LogEvent | None:
        """The event called `name`; None if the table lacks it."""
        return self._by_name.get(name)

    def require(self, name: str, *fields: str, kinds: Sequence[str] = ("int", "enum")) -> LogEvent:
        """The event of this name; UsageError unless it has these fields, of one of the kinds."""
        event = self.event(name)
        for wanted in fields:
            field = event.find_field(wanted)
            if field is None or field.kind not in kinds:
                raise UsageError(f"event {name} of the log has no field '{wanted}' ({kinds[0]})")
        return event

    @functools.cached_property
    def payload_sizes(self) -> NDArray[np.int64]:
        """(256,) payload bytes by event number; -1 for numbers that the table lacks."""
        sizes = np.full(NUMBERS, -1, np.int64)
        for event in self.events:
            sizes[event.number] = event.size
        return sizes

    @functools.cached_property
    def schema(self) -> Schema:
        """The schema in the header. Raises DamagedError if it cannot be parsed."""
        try:
            found: Schema = parse(_text(self.header, "schema", "the header"), "schema in the log")
        except TcpkmonError as error:
            first = str(error).split("\n", maxsplit=1)[0]
            raise DamagedError(f"the log's schema cannot be read: {first}") from error
        return found

    @functools.cached_property
    def enums(self) -> dict[str, dict[int, str]]:
        """The names of the values of each enum; empty if the schema cannot be parsed."""
        try:
            return {enum.name: enum.names() for enum in self.schema.enums}
        except DamagedError:
            return {}

    def converter(self, field: LogField) -> Callable[[Any], str | None] | None:
        """The function that converts a value of the field to text; None for plain numbers.

        Its argument is an int for an enum, otherwise bytes. It returns None for null.
        """
        text = self._converter(field)
        if text is None or field.none is None or field.kind == "enum":
            return text
        return lambda data: text(data) if any(data) else None

    def _converter(self, field: LogField) -> Callable[[Any], str] | None:
        if field.kind == "enum":
            names = self.enums.get(field.type, {})
            return lambda value: names.get(value, str(value))
        return {"int": None, "string": text_of, "bytes": bytes.hex, "address": address_of}[
            field.kind
        ]

    @property
    def cpu(self) -> int:
        """The CPU whose records the log holds."""
        return _integer(self.header, "cpu", "the header", 0, (1 << 16) - 1)

    @property
    def clock(self) -> tuple[int, int, int] | None:
        """(monotonic ns, realtime ns, uncertainty ns) at the start, or None."""
        pair = self.header.get("clock")
        if not isinstance(pair, dict):
            return None
        names = ("mono_ns", "realtime_ns", "uncertainty_ns")
        try:
            mono, real, doubt = (
                _integer(pair, name, "the clock", 0, (1 << 63) - 1) for name in names
            )
        except DamagedError:
            return None
        return mono, real, doubt

    def need_clock(self) -> tuple[int, int, int]:
        """The clock pair; UsageError if the header has none."""
        if self.clock is None:
            raise UsageError("the log has no clock pair", "give and print times by --time mono")
        return self.clock


def native(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers in the machine's byte order, contiguous."""
    return np.ascontiguousarray(values, values.dtype.newbyteorder("="))


def _read_event(item: Any, order: str) -> LogEvent:
    if not isinstance(item, dict):
        raise DamagedError("an event in the header is no object")
    name = _text(item, "name", "an event in the header", MOST_NAME_CHARACTERS)
    where = f"event {name!r} in the header"
    number = _integer(item, "number", where, 0, NUMBERS - 1)
    size = _integer(item, "size", where, 0, MOST_PAYLOAD_BYTES)
    listed = item.get("fields")
    if size % 8 or not isinstance(listed, list) or len(listed) > MOST_FIELDS:
        raise DamagedError(f"{where} has no good size or fields")
    fields = tuple(_read_field(one, size, where) for one in listed)
    if len({one.name for one in fields}) < len(fields):
        raise DamagedError(f"{where} has two fields of one name")
    if sum(one.length for one in fields) > size:  # otherwise a small record is a large text
        raise DamagedError(f"{where} has fields that overlap")
    return LogEvent(number, name, size, fields, order)


def _read_field(item: Any, size: int, where: str) -> LogField:
    if not isinstance(item, dict):
        raise DamagedError(f"a field of {where} is no object")
    name = _text(item, "name", where, MOST_NAME_CHARACTERS)
    where = f"field {name!r} of {where}"
    kind = _text(item, "kind", where)
    length = _integer(item, "length", where, 1, max(size, 1))
    offset = _integer(item, "offset", where, 0, size)
    if kind not in KINDS or length not in WIDTHS.get(kind, (length,)) or offset + length > size:
        raise DamagedError(f"{where} has no good kind, offset or length")
    type_name = _text(item, "type", where, MOST_NAME_CHARACTERS)
    signed, network = item.get("signed") is True, item.get("network") is True
    none = _integer(item, "none", where, -(1 << 63), (1 << 64) - 1) if "none" in item else None
    return LogField(name, kind, signed, offset, length, type_name, network, none)


def _text(item: Mapping[str, Any], key: str, where: str, most: int = 1 << 24) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise DamagedError(f"{where} has no good {key}")
    return value


def _integer(item: Mapping[str, Any], key: str, where: str, least: int, most: int) -> int:
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise DamagedError(f"{where} has no good {key}")
    return value
