# SPDX-License-Identifier: Apache-2.0
"""Chooses records of Klogger logs by event, by time and by the values of fields."""

from __future__ import annotations

import ipaddress
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.base.errors import UsageError
from formats.klogger.batch import LogBatch
from formats.klogger.clock import LogClock, Moment
from formats.klogger.table import LogEvent, LogField, LogFormat, native
from formats.schema import suggest

_CONDITION = re.compile(r"\s*([^\s=<>!]+)\s*(!=|<=|>=|==|=|<|>)(.*)", re.DOTALL)
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Condition:
    """FIELD OPERATOR VALUE of --where; `text` is the whole of it."""

    text: str
    field: str
    sign: str
    value: str


def parse_condition(text: str) -> Condition:
    """A condition of --where, as FIELD=VALUE, !=, <, <=, > or >=. Raises UsageError."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(f"no condition: '{text}'", "give FIELD=VALUE, or !=, <, <=, >, >=")
    return Condition(text, match[1], match[2], match[3].strip())


@dataclass(frozen=True)
class Choice:
    """The wanted records: those that fulfil all conditions. events: None for all."""

    events: tuple[str, ...] | None = None
    since: Moment | None = None
    until: Moment | None = None
    conditions: tuple[Condition, ...] = ()

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
        if self.events is None and not self.conditions:
            return np.flatnonzero(chosen)
        for event in batch.events():
            at = batch.where(event)
            if self.events is not None and event.name not in self.events:
                chosen[at] = False
                continue
            for condition in self.conditions:
                chosen[at] &= _test(condition, batch, event, at)
        return np.flatnonzero(chosen)


ALL = Choice()


def _check(condition: Condition, among: Sequence[tuple[LogFormat, LogEvent]]) -> None:
    """Raise UsageError unless an event has the field and the field can have the value."""
    why = ""
    for log, event in among:
        field = event.find_field(condition.field)
        if field is None:
            continue
        try:
            _wanted(log, field, condition)
            return
        except UsageError as error:
            why = error.message
    if why:
        raise UsageError(why)
    names = {field.name for _, event in among for field in event.fields}
    raise UsageError(
        f"'{condition.text}': no event has a field '{condition.field}'"
        f"{suggest(condition.field, names)}"
    )


def _test(
    condition: Condition, batch: LogBatch, event: LogEvent, at: NDArray[np.int64]
) -> NDArray[np.bool_] | bool:
    field = event.find_field(condition.field)
    if field is None:
        return False
    try:
        wanted = _wanted(batch.format, field, condition)
    except UsageError:  # another event has a field of this name that can have the value
        return False
    compare = _OPERATORS[condition.sign]
    values = batch.rows(event, at)[field.name]
    if isinstance(wanted, int):
        found: NDArray[np.bool_] = compare(native(values), wanted)
        return found
    text = batch.format.converter(field)
    assert text is not None
    listed = values.tolist()
    right = {value: compare(text(value), wanted) for value in set(listed)}
    return np.array([right[value] for value in listed], np.bool_)


def _wanted(log: LogFormat, field: LogField, condition: Condition) -> int | str:
    """The value to compare with: a number, or the text that decoding prints."""
    value = condition.value
    if field.kind in ("int", "enum"):
        if field.kind == "enum":
            for number, name in log.enums.get(field.type, {}).items():
                if name == value:
                    return number
        return _number(condition, field)
    if condition.sign not in ("=", "==", "!="):
        raise UsageError(f"'{condition.text}': '{field.name}' can be = or != only")
    if field.kind == "address":
        try:
            address = ipaddress.ip_address(value)
        except ValueError as error:
            raise UsageError(f"'{condition.text}': '{value}' is no address") from error
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address)
    return value.lower() if field.kind == "bytes" else value


def _number(condition: Condition, field: LogField) -> int:
    try:
        number = int(condition.value[:40], 0)
    except ValueError as error:
        what = f"a value of enum {field.type}" if field.kind == "enum" else "a number"
        raise UsageError(f"'{condition.text}': expected {what}") from error
    if abs(number) >= 1 << 64:
        raise UsageError(f"'{condition.text}': the number is too large")
    return number
