# SPDX-License-Identifier: Apache-2.0
"""Chooses records of Klogger logs by event, by time and by the values of fields."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.expressions import (
    ExpressionError,
    Mistake,
    Name,
    Node,
    Number,
    Operation,
    Text,
    parse_assertion,
)
from tcpkmon.formats.base.text import suggest
from tcpkmon.formats.conditions import Found, Scope, Value, constant, names_in
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.clock import LogClock, Moment
from tcpkmon.formats.klogger.table import LogEvent, LogField, LogFormat, native

_COMPARISON = re.compile(r"\s*([^\s=<>!]+)\s*(!=|<=|>=|==|=|<|>)(.*)", re.DOTALL)
_NO_WORD = re.compile(r"[\s\"()]")


@dataclass(frozen=True)
class Condition:
    """A condition of --where: `node`; or where it is None, FIELD OPERATOR VALUE as they stand."""

    text: str
    node: Node | None
    field: str = ""
    sign: str = ""
    value: str = ""


def parse_condition(text: str) -> Condition:
    """FIELD=VALUE, or !=, <, <=, > or >=, of which a text VALUE has no quotes; or a condition in
    the language of docs/conditions.md. UsageError."""
    match = _COMPARISON.fullmatch(text)
    plain = None
    if match is not None:
        sign = "==" if match[2] == "=" else match[2]
        plain = Condition(text, None, match[1], sign, match[3].strip())
        if not _NO_WORD.search(plain.value):
            return plain
    try:
        return Condition(text, parse_assertion(text).node)
    except Mistake as mistake:
        if plain is None:
            raise ExpressionError([(text, mistake)]) from None
        return plain


@dataclass(frozen=True)
class Choice:
    """The wanted records: those that fulfil all conditions. events: None for all. without: no
    events of these processes."""

    events: tuple[str, ...] | None = None
    since: Moment | None = None
    until: Moment | None = None
    conditions: tuple[Condition, ...] = ()
    without: tuple[int, ...] = ()

    @property
    def needs_real_time(self) -> bool:
        """Whether --since or --until was given in real time."""
        return any(moment is not None and moment.is_real for moment in (self.since, self.until))

    def check(self, logs: Sequence[LogFormat]) -> None:
        """Raise UsageError for a name that no log has, or a value that no such field can have."""
        known = {event.name for log in logs for event in log.events}
        for name in self.events or ():
            if name not in known:
                raise UsageError(f"no event '{name}' in the log{suggest(name, known)}")
        for condition in self.conditions:
            _check(condition, [(log, event) for log in logs for event in self.events_of(log)])

    def events_of(self, log: LogFormat) -> tuple[LogEvent, ...]:
        """The events of a log that may be chosen."""
        return tuple(e for e in log.events if self.events is None or e.name in self.events)

    def places(self, batch: LogBatch, clock: LogClock) -> NDArray[np.int64] | None:
        """The indices of the chosen records in a batch, ascending; None: all of them."""
        if self == ALL:
            return None
        chosen = np.ones(len(batch), np.bool_)
        for moment, keep in ((self.since, np.greater_equal), (self.until, np.less_equal)):
            if moment is not None:
                chosen &= keep(clock.times(batch, moment.is_real), moment.ns)
        if self.events is None and not self.conditions and not self.without:
            return np.flatnonzero(chosen)
        for event in batch.events():
            at = batch.where(event)
            if self.events is not None and event.name not in self.events:
                chosen[at] = False
                continue
            for condition in self.conditions:
                chosen[at] &= _test(condition, batch, event, at)
            process = event.find_field("tgid") or event.find_field("pid")
            if self.without and process is not None and process.kind == "int":
                chosen[at] &= ~np.isin(batch.rows(event, at)[process.name], self.without)
        return np.flatnonzero(chosen)


ALL = Choice()


class _Records(NamedTuple):
    """An event's records at these places of a batch."""

    batch: LogBatch
    event: LogEvent
    at: NDArray[np.int64]


class _EventScope(Scope):
    """The fields of an event, and the names of its log's enums."""

    what = "an event"

    def __init__(self, log: LogFormat, event: LogEvent) -> None:
        super().__init__()
        self._log, self._event = log, event

    def name(self, node: Name) -> Value:
        name, field = node.text, self._event.find_field(node.text)
        if field is None:
            enums = self._log.enums.values()
            numbers = {n for values in enums for n, value in values.items() if value == name}
            if len(numbers) == 1:
                return constant(Fraction(numbers.pop()))
            return self.add(f"'{name}' is a value of several enums: write its number", node.at)
        text = None if field.kind in ("int", "enum") else self._log.converter(field)

        def get(rows: _Records) -> Found:
            values = rows.batch.rows(rows.event, rows.at)[name]
            if text is None:
                numbers = native(values)
                return numbers, field.none is None or numbers != field.none
            listed = values.tolist()
            texts = {value: text(value) for value in set(listed)}
            found = np.array([texts[value] for value in listed], object)
            return found, np.array([one is not None for one in found.tolist()], np.bool_)

        return Value("number" if text is None else "text", get)


def _check(condition: Condition, among: Sequence[tuple[LogFormat, LogEvent]]) -> None:
    """Raise UsageError unless an event has the fields and these can have the values."""
    known = {field.name for _, event in among for field in event.fields}
    values = {name for log, _ in among for enum in log.enums.values() for name in enum.values()}
    for name in _names(condition):
        if name not in known | values:
            near = suggest(name, known)
            raise UsageError(f"'{condition.text}': no event has a field '{name}'{near}")
    why = UsageError(f"'{condition.text}': no event has all of these fields")
    for log, event in among:
        try:
            if _compile(condition, log, event) is not None:
                return
        except UsageError as error:
            why = error
    raise why


def _names(condition: Condition) -> list[str]:
    if condition.node is None:
        return [condition.field]
    return [name.text for name in names_in(condition.node)]


def _compile(condition: Condition, log: LogFormat, event: LogEvent) -> Value | None:
    """None: the event lacks a field. UsageError where it cannot have the value."""
    values = {name for enum in log.enums.values() for name in enum.values()}
    if any(event.find_field(name) is None and name not in values for name in _names(condition)):
        return None
    scope, node = _EventScope(log, event), condition.node
    if node is None:
        field = event.find_field(condition.field)
        if field is None:
            return None
        node = Operation(0, condition.sign, (Name(0, field.name), _wanted(log, field, condition)))
    value = scope.want("bool", node)
    if scope.mistakes:
        raise ExpressionError([(condition.text, mistake) for mistake in scope.mistakes])
    return value


def _test(
    condition: Condition, batch: LogBatch, event: LogEvent, at: NDArray[np.int64]
) -> NDArray[np.bool_] | bool:
    try:
        value = _compile(condition, batch.format, event)
    except UsageError:  # another event has a field of this name that can have the value
        return False
    found: NDArray[np.bool_] | bool = value is not None and value.holds(_Records(batch, event, at))
    return found


def _wanted(log: LogFormat, field: LogField, condition: Condition) -> Number | Text:
    """The value to compare with: a number, or the text that decoding prints."""
    value = condition.value
    if field.kind in ("int", "enum"):
        if field.kind == "enum":
            for number, name in log.enums.get(field.type, {}).items():
                if name == value:
                    return Number(0, Fraction(number), False)
        return Number(0, Fraction(_number(condition, field)), False)
    if condition.sign not in ("==", "!="):
        raise UsageError(f"'{condition.text}': '{field.name}' can be = or != only")
    if field.kind == "address":
        try:
            address = ipaddress.ip_address(value)
        except ValueError as error:
            raise UsageError(f"'{condition.text}': '{value}' is no address") from error
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return Text(0, str(mapped or address))
    return Text(0, value.lower() if field.kind == "bytes" else value)


def _number(condition: Condition, field: LogField) -> int:
    try:
        number = int(condition.value[:40], 0)
    except ValueError as error:
        what = f"a value of enum {field.type}" if field.kind == "enum" else "a number"
        raise UsageError(f"'{condition.text}': expected {what}") from error
    if abs(number) >= 1 << 64:
        raise UsageError(f"'{condition.text}': the number is too large")
    return number
