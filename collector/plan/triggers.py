# SPDX-License-Identifier: Apache-2.0
"""Triggers of the flight recorder: checked against the schema, made into masks of records.

docs/recorder.md describes the language. Each trigger is one mask, a function from records (a numpy
array of rows) to an array of bool. collector/plan/trigger_watch.py finds when one fires.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.plan.columns import Layout, locations_of
from collector.plan.recorder import STALL, STALL_COLUMNS
from collector.plan.trigger_values import (
    ARITHMETIC,
    COMPARE,
    EXACT,
    MOST_CONSTANT,
    WRONG,
    Rows,
    Value,
    as_float,
    conjuncts,
    constant_of,
    is_stall,
    is_waiting,
    same_scale,
)
from formats.base.control import EXISTING, FIRST_CONTROL
from formats.base.expressions import (
    COMPARISONS,
    TIMES,
    ExpressionError,
    Mistake,
    Name,
    Node,
    Number,
    Operation,
    Parsed,
    parse,
)
from formats.schema import field_type, suggest

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

class TriggerError(ExpressionError):
    """Mistakes in triggers: all of them, each with its text and a caret."""


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
    """The triggers of a capture with these columns and locations. TriggerError for all mistakes."""
    compiled, mistakes = [], []
    for number, text in enumerate(texts, 1):
        scope = TriggerScope(layout, locations)
        try:
            found = scope.trigger(number, parse(text))
        except Mistake as mistake:
            scope.mistakes.append(mistake)
        else:
            compiled.append(found)
        mistakes += [(text, mistake) for mistake in scope.mistakes]
    if mistakes:
        raise TriggerError(mistakes)
    return tuple(compiled)


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


class TriggerScope:
    """The names that a trigger can use; collects the mistakes of one trigger."""

    def __init__(self, layout: Layout, locations: Collection[str]) -> None:
        self._schema = layout.schema
        self._layout = layout
        self._fields = {field.name: field for field in layout.event.fields}
        self._stored = {c.name for c in layout.columns if c.length}
        self._numbers = locations_of(layout.schema)
        self._locations = {name.lower(): name for name in self._numbers}
        self._recorded = set(locations)
        self._members = {
            member.name: member.value
            for enum in layout.schema.enums
            if enum.name != "location"
            for member in enum.members
        }
        self.mistakes: list[Mistake] = []

    def trigger(self, number: int, parsed: Parsed) -> Trigger:
        node, stall_ns = self._split_stall(parsed)
        value = self._bool(node)
        for_ns = parsed.for_ns
        if stall_ns is not None:
            if for_ns is not None:
                self._add("a stall has its time already: leave out `for`", parsed.for_at)
            for_ns = stall_ns
        if value.event:
            if for_ns is not None:
                self._add("an event does not last: leave out `for` and stall", parsed.for_at)
        else:
            for_ns = for_ns or 0
            self._needs(STATE_COLUMNS if stall_ns is None else (*STATE_COLUMNS, *STALL_COLUMNS))
        get = value.get
        stalls = stall_ns is not None and self._stored.issuperset(STALL_COLUMNS)

        def mask(rows: Rows) -> Mask:
            with np.errstate(all="ignore"):
                found = np.broadcast_to(np.asarray(get(rows), np.bool_), len(rows))
            if found.any():  # perhaps at control entries
                location = rows["location"]
                found = found & ((location < FIRST_CONTROL) | (location == EXISTING))
                if stalls:
                    found &= is_waiting(rows)
            return found

        restarts = stall_ns is not None
        return Trigger(
            number, parsed.text, mask, for_ns, value.locations, restarts, parsed.all
        )

    def _needs(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._stored:
                self._add(f"this trigger needs the column {name}: add it to --columns", 0)

    def _split_stall(self, parsed: Parsed) -> tuple[Node, int | None]:
        """The condition without `stall > TIME`, which may be one part of an `and`; its time."""
        parts = conjuncts(parsed.node)
        stalls = [part for part in parts if is_stall(part)]
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

    def _bool(self, node: Node) -> Value:
        value = self._value(node)
        if value.kind not in ("bool", "wrong"):
            self._add("expected a condition here, found a number: compare it", node.at)
        return value

    def _number(self, node: Node) -> Value:
        value = self._value(node)
        if value.kind == "bool":
            self._add("expected a number here, found a condition", node.at)
            return WRONG
        return value

    def _value(self, node: Node) -> Value:
        if isinstance(node, Number):
            return constant_of(node.value, "time" if node.is_time else "number")
        if isinstance(node, Name):
            return self._name(node)
        if not isinstance(node, Operation):  # the parser has them in assertions only
            self._add("a trigger has no functions and texts", node.at)
            return WRONG
        if node.operator in ("and", "or"):
            one, other = (self._bool(operand) for operand in node.operands)
            join = np.logical_and if node.operator == "and" else np.logical_or
            event = one.event or other.event if join is np.logical_and else (
                one.event and other.event
            )
            if "wrong" in (one.kind, other.kind):
                return WRONG
            if one.event != other.event and node.operator == "or":
                self._add("an event or a state: give two triggers", node.at)
            locations = one.locations | other.locations
            if node.operator == "and":
                locations = one.locations or other.locations
            return Value(
                lambda rows: join(one.get(rows), other.get(rows)), "bool",
                event=event, locations=locations,
            )  # fmt: skip
        if node.operator == "not":
            inner = self._bool(node.operands[0])
            if inner.event:
                self._add("`not` works on states, not on events", node.at)
            return Value(lambda rows: np.logical_not(inner.get(rows)), "bool")
        if node.operator in COMPARISONS:
            return self._compare(node)
        return self._arithmetic(node)

    def _name(self, node: Name) -> Value:
        name = node.text
        if name in CONDITIONS:
            inner = TriggerScope(self._layout, self._recorded)
            value = inner._value(parse(CONDITIONS[name][1]).node)
            for mistake in inner.mistakes:
                self._add(f"{name}: {mistake.what}", node.at)
            return value
        if name == STALL:
            self._add("write stall > TIME, alone or joined by `and`", node.at)
            return WRONG
        if name in self._stored and field_type(self._schema, self._fields[name]).kind in (
            "int", "enum"
        ):  # fmt: skip
            return self._column(name)
        if name in self._members:
            return constant_of(Fraction(self._members[name]), "number")
        if name.lower() in self._locations:
            return self._event(self._locations[name.lower()], node)
        if name in self._fields and name not in self._stored:
            self._add(f"the column {name} is not recorded: add it to --columns", node.at)
        elif name in self._fields:
            self._add(f"{name} holds no number", node.at)
        else:
            known = [*CONDITIONS, STALL, *self._fields, *self._locations, *self._members]
            self._add(f"no column, event or condition '{name}'{suggest(name, known)}", node.at)
        return WRONG

    def _column(self, name: str) -> Value:
        field = self._fields[name]
        kind = field_type(self._schema, field)
        signed = np.dtype(f"i{kind.width}") if kind.signed else None

        def get(rows: Rows) -> Any:
            found = rows[name]
            return found if signed is None else found.view(signed)

        scale = TIMES.get(field.unit)
        return Value(get, "time" if scale else "number", scale or 1, plain=True)

    def _event(self, name: str, node: Name) -> Value:
        if name not in self._recorded:
            self._add(f"{name} is not recorded: add it to --locations", node.at)
        number = self._numbers[name]
        return Value(
            lambda rows: rows["location"] == number, "bool",
            event=True, locations=frozenset({number}),
        )  # fmt: skip

    def _compare(self, node: Operation) -> Value:
        one, other = (self._number(operand) for operand in node.operands)
        if "wrong" in (one.kind, other.kind):
            return WRONG
        if one.kind != other.kind and not self._may_mix(one, other):
            self._add("one side is a time and the other is not", node.at)
            return WRONG
        one, other = same_scale(one, other)
        if one.constant is not None and other.constant is not None:
            self._add("this compares two constants", node.at)
        compare = COMPARE[node.operator]
        return Value(lambda rows: compare(one.get(rows), other.get(rows)), "bool")

    def _may_mix(self, one: Value, other: Value) -> bool:
        """A plain constant is in the column's unit."""
        return any(value.constant is not None and value.kind == "number" for value in (one, other))

    def _arithmetic(self, node: Operation) -> Value:
        values = [self._number(operand) for operand in node.operands]
        if any(value.kind == "wrong" for value in values):
            return WRONG
        if node.operator == "neg":
            (value,) = values
            if value.constant is not None:
                return constant_of(-value.constant, value.kind)
            return Value(lambda rows: -as_float(value, rows), value.kind, value.scale)
        one, other = values
        times = [value.kind for value in values].count("time")
        kind, scale = "number", 1
        if node.operator in "+-":
            if times == 1 and not self._may_mix(one, other):
                self._add("one side is a time and the other is not", node.at)
            one, other = same_scale(one, other)
            kind, scale = ("time" if times else "number"), max(one.scale, other.scale)
        elif node.operator == "*":
            if times == 2:
                self._add("the product of two times is no time", node.at)
            kind, scale = ("time" if times else "number"), one.scale * other.scale
        elif times == 2:
            one, other = same_scale(one, other)
        elif other.kind == "time":
            self._add("a number divided by a time is no time", node.at)
        else:
            kind, scale = one.kind, one.scale
        call = ARITHMETIC[node.operator]
        if one.constant is not None and other.constant is not None:
            if node.operator == "/" and not other.constant:
                self._add("a division by zero", node.at)
                return WRONG
            constant = EXACT[node.operator](one.constant, other.constant)
            if abs(constant) > MOST_CONSTANT:
                self._add("this constant is too large", node.at)
            return constant_of(constant, kind)
        return Value(lambda rows: call(as_float(one, rows), as_float(other, rows)), kind, scale)

    def _add(self, what: str, at: int) -> None:
        self.mistakes.append(Mistake(what, at))
