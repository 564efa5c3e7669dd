# SPDX-License-Identifier: Apache-2.0
"""Triggers of the flight recorder: checked against the schema, made into masks of records.

docs/conditions.md describes the language. Each trigger is one mask, a function from records (a
numpy array of rows) to an array of bool. collector/plan/trigger_watch.py finds when one fires.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.plan.columns import Layout, locations_of
from tcpkmon.collector.plan.recorder import STALL, STALL_COLUMNS
from tcpkmon.formats.base.control import EXISTING, FIRST_CONTROL
from tcpkmon.formats.base.expressions import (
    TIMES,
    Mistake,
    Name,
    Node,
    Number,
    Operation,
    Parsed,
    parse,
    read_all,
)
from tcpkmon.formats.base.tcp import ARRIVED
from tcpkmon.formats.conditions import WRONG, Found, Scope, Value, constant
from tcpkmon.formats.schema import Field, Schema, field_type

Rows = NDArray[Any]
Mask = NDArray[np.bool_]

CONDITIONS = {
    "rst": ("a reset was sent or arrived", "RESET_SENT or RESET_RECEIVED"),
    "zero_window": (
        "the peer offers no window to a connection that can send",
        "snd_wnd == 0 and (state == TCP_ESTABLISHED or state == TCP_CLOSE_WAIT)",
    ),
}
"""Names for conditions: what they mean, for people and in the language itself."""
STALLED = "packets_out > 0 or snd_sb_cc > 0"
"""`stall > TIME`: data is not acknowledged, and no record comes for so long."""
STATE_COLUMNS = ("conn_id", "time_ns")
"""What a trigger needs that follows connections."""


@dataclass(frozen=True)
class Trigger:
    """mask: the records that show it.

    for_ns: None for an event: each of its records fires. Else the mask must hold so long, from the
    record that shows it to the one that does not. restarts: each record begins it anew (stall).
    together: the records of all connections are one series.
    """

    number: int
    """From 1, in the order in which they were given."""
    text: str
    mask: Callable[[Rows], Mask]
    for_ns: int | None
    locations: frozenset[int] = frozenset()
    """Of an event: no record of another location fires."""
    restarts: bool = False
    together: bool = False


def compile_triggers(
    texts: Sequence[str], layout: Layout, locations: Collection[str]
) -> tuple[Trigger, ...]:
    """The triggers of a capture with these columns and locations. ExpressionError for all mistakes.
    """
    numbers = iter(range(1, len(texts) + 1))
    return tuple(read_all(texts, lambda text: scope_of(layout, locations).trigger(
        next(numbers), parse(text))))  # fmt: skip


def explain(layout: Layout, locations: Mapping[str, str]) -> list[tuple[str, str]]:
    """The names of the language, each with what it means, for people."""
    conditions = [(name, what) for name, (what, _) in CONDITIONS.items()]
    stall = [(f"{STALL} > TIME", "data is not acknowledged, and no record comes for so long")]
    events = [(name.lower(), what) for name, what in locations.items()]
    columns = [
        (field.name, f"{field.doc} [{field.unit}]" if field.unit else field.doc)
        for field in layout.event.fields
        if field_type(layout.schema, field).kind != "string"
    ]
    return [*conditions, *stall, *events, *columns]


def scope_of(layout: Layout, recorded: Iterable[str]) -> TriggerScope:
    """The names of the schema tcp."""
    stored = {column.name for column in layout.columns if column.length}
    fields = [(field, field.name in stored) for field in layout.event.fields]
    return TriggerScope(layout.schema, fields, locations_of(layout.schema), recorded)


class TriggerScope(Scope):
    """The names that a trigger can use. fields: each, and whether it is recorded. events: their
    numbers, by name; recorded: the names of those that are."""

    what = "a trigger"

    def __init__(
        self,
        schema: Schema,
        fields: Iterable[tuple[Field, bool]],
        events: Mapping[str, int],
        recorded: Iterable[str],
    ) -> None:
        super().__init__()
        self._schema = schema
        self._fields = {field.name: (field, stored) for field, stored in fields}
        self._events = {name.lower(): (name, number) for name, number in events.items()}
        self._recorded = set(recorded)
        self._members = {
            member.name: member.value
            for enum in schema.enums if enum.name != "location"
            for member in enum.members
        }  # fmt: skip

    def trigger(self, number: int, parsed: Parsed) -> Trigger:
        """Raises Mistake, Mistakes."""
        node, stall_ns = _split_stall(parsed)
        value = self.want("bool", node)
        if value is WRONG:
            self.end()
        for_ns = parsed.for_ns
        if stall_ns is not None:
            if for_ns is not None:
                self.add("a stall has its time already: leave out `for`", parsed.for_at)
            for_ns = stall_ns
        if value.event:
            if for_ns is not None:
                self.add("an event does not last: leave out `for` and stall", parsed.for_at)
        else:
            for_ns = for_ns or 0
            for name in (*STATE_COLUMNS, *(STALL_COLUMNS if stall_ns is not None else ())):
                if name not in self._fields or not self._fields[name][1]:
                    self.add(f"this trigger needs the column {name}: add it to --columns", 0)
        self.end()
        stalls = stall_ns is not None

        def mask(rows: Rows) -> Mask:
            found = np.broadcast_to(np.asarray(value.holds(rows), np.bool_), len(rows))
            if found.any():  # perhaps at control entries
                location = rows["location"]
                found = found & ((location < FIRST_CONTROL) | (location == EXISTING))
                if stalls:
                    found &= _is_waiting(rows)
            return found

        return Trigger(number, parsed.text, mask, for_ns, value.locations, stalls, parsed.all)

    def join(self, node: Operation, values: list[Value]) -> Value:
        """Also of events."""
        made = super().join(node, values)
        events = [value.event for value in values]
        locations = [value.locations for value in values]
        if made is WRONG or not any(events):
            return made
        if node.operator == "not":
            return self.add("`not` works on states, not on events", node.at)
        if node.operator == "or":
            if not all(events):
                self.add("an event or a state: give two triggers", node.at)
            return Value("bool", made.get, event=True, locations=locations[0] | locations[1])
        return Value("bool", made.get, event=True, locations=locations[0] or locations[1])

    def name(self, node: Name) -> Value:
        name = node.text
        if name in CONDITIONS:
            before = len(self.mistakes)
            value = self.value(parse(CONDITIONS[name][1]).node)
            self.mistakes[before:] = [
                Mistake(f"{name}: {mistake.what}", node.at) for mistake in self.mistakes[before:]
            ]
            return value
        if name == STALL:
            return self.add("write stall > TIME, alone or joined by `and`", node.at)
        field, stored = self._fields.get(name, (None, False))
        kind = field_type(self._schema, field) if field is not None else None
        if field is not None and kind is not None and stored and kind.kind in ("int", "enum"):
            return _column(field, f"i{kind.width}" if kind.signed else None)
        if name in self._members:
            return constant(Fraction(self._members[name]))
        if name.lower() in self._events:
            return self._event(*self._events[name.lower()], node)
        if field is not None:
            what = f"{name} holds no number"
            if not stored:
                what = f"the column {name} is not recorded: add it to --columns"
            return self.add(what, node.at)
        known = [*CONDITIONS, STALL, *self._fields, *self._events, *self._members]
        return self.unknown(f"column, event or condition '{name}'", node, known)

    def _event(self, name: str, number: int, node: Name) -> Value:
        if name not in self._recorded:
            self.add(f"{name} is not recorded: add it to --locations", node.at)
        return Value("bool", lambda rows: (rows["location"] == number, True), event=True,
                     locations=frozenset({number}))  # fmt: skip


def _column(field: Field, signed: str | None) -> Value:
    name, none = field.name, field.none

    def get(rows: Rows) -> Found:
        numbers = rows[name] if signed is None else rows[name].view(signed)
        return numbers, True if none is None else numbers != none

    return Value("number", get, unit=TIMES.get(field.unit))


def _split_stall(parsed: Parsed) -> tuple[Node, int | None]:
    """The condition without `stall > TIME`, which may be one part of an `and`; its time."""
    parts = _conjuncts(parsed.node)
    stalls = [part for part in parts if _is_stall(part)]
    if not stalls:
        return parsed.node, None
    limit = stalls[0].operands[1] if isinstance(stalls[0], Operation) else None
    if not isinstance(limit, Number) or not limit.is_time:
        raise Mistake("write stall > TIME, such as stall > 200ms", stalls[0].at)
    node: Node = parse(STALLED).node
    for part in parts:
        if part is not stalls[0]:
            node = Operation(part.at, "and", (node, part))
    return node, int(limit.value)


def _conjuncts(node: Node) -> list[Node]:
    """The parts that `and` joins."""
    if isinstance(node, Operation) and node.operator == "and":
        return [part for operand in node.operands for part in _conjuncts(operand)]
    return [node]


def _is_stall(node: Node) -> bool:
    """Whether it is `stall > TIME`."""
    return (
        isinstance(node, Operation)
        and node.operator in (">", ">=")
        and isinstance(node.operands[0], Name)
        and node.operands[0].text == STALL
    )


def _is_waiting(rows: Rows) -> Mask:
    """(n,) whether something is unacknowledged when the record's segment has counted."""
    left = rows["snd_una"] + rows["snd_sb_cc"] - rows["seg_ack"]  # modulo 2^32
    found: Mask = ~np.isin(rows["location"], ARRIVED) | (left != 0)
    return found
