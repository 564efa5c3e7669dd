# SPDX-License-Identifier: Apache-2.0
"""Conditions, typed once: triggers, assertions, --where. docs/conditions.md has the language.

A Scope says what names mean. It makes a Value of an expression, or finds all mistakes in it, before
anything is computed. A Value computes from rows: what holds the columns, whatever that is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.expressions import (
    COMPARISONS,
    Call,
    Mistake,
    Mistakes,
    Name,
    Node,
    Number,
    Operation,
    Text,
)
from tcpkmon.formats.base.text import suggest

Array = NDArray[Any]
Found = tuple[Any, Any]
"""Data, a scalar or an array with one for each row; and where it is not null, True for all."""
MOST_CONSTANT = 10**100
_EXACT: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_JOIN: dict[str, Callable[[Any, Any], Any]] = {"and": np.logical_and, "or": np.logical_or}


class NoDataError(Exception):
    """There is no value to compute from. The message is for people."""


@dataclass(frozen=True)
class Value:
    """An expression. kind: bool, number, text, or wrong. get: its values of rows.

    each: it has one for each row. unit: of a time, ns in its unit. constant: a number of the text,
    of a time in ns. event: it is true at single records, of `locations` alone: see triggers.
    """

    kind: str
    get: Callable[[Any], Found]
    each: bool = True
    unit: int | None = None
    constant: Fraction | None = None
    event: bool = False
    locations: frozenset[int] = frozenset()

    def holds(self, rows: Any) -> Any:
        """Where it is true, and not null: one, or one for each row."""
        with np.errstate(all="ignore"):
            data, has = self.get(rows)
            return np.logical_and(data, has)


WRONG = Value("wrong", lambda rows: (False, True), each=False)


def constant(number: Fraction, unit: int | None = None) -> Value:
    """A number of the text; of a time it is in ns."""
    exact = int(number) if number.denominator == 1 else float(number)
    return Value("number", lambda rows: (exact, True), False, unit, number)


@dataclass(frozen=True)
class Function:
    """takes: the kind of its argument, number or bool, which each row has; "" for none. get: its
    value, of the rows, and of the argument's values that are not null."""

    takes: str
    get: Callable[[Any, Array], Any]
    keeps_null: bool = False


def _all_of(rows: Any, values: Array) -> bool:
    return len(values) == rows.count and bool(values.all())


FUNCTIONS = {
    "sum": Function("number", lambda rows, values: np.sum(values)),
    "min": Function("number", lambda rows, values: np.min(values)),
    "max": Function("number", lambda rows, values: np.max(values)),
    "mean": Function("number", lambda rows, values: np.mean(values)),
    "p50": Function("number", lambda rows, values: np.percentile(values, 50)),
    "p95": Function("number", lambda rows, values: np.percentile(values, 95)),
    "p99": Function("number", lambda rows, values: np.percentile(values, 99)),
    "all": Function("bool", _all_of, keeps_null=True),
    "any": Function("bool", lambda rows, values: bool(values.any()), keeps_null=True),
    "count": Function("", lambda rows, values: rows.count),
    "lost": Function("", lambda rows, values: rows.lost),
}
"""What is computed over all rows; these have a count, and are of `what`."""


class Scope:
    """What the names of an expression mean. what: a row is, for people."""

    what = "record"
    functions: Mapping[str, Function] = {}

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []

    def name(self, node: Name) -> Value:
        """The value of a name."""
        raise NotImplementedError

    def end(self) -> None:
        """Raises Mistakes for all that were found."""
        if self.mistakes:
            raise Mistakes(self.mistakes)

    def add(self, what: str, at: int) -> Value:
        """Note a mistake."""
        self.mistakes.append(Mistake(what, at))
        return WRONG

    def unknown(self, what: str, node: Name, known: Iterable[str]) -> Value:
        """There is no such name."""
        return self.add(f"no {what}{suggest(node.text, [*known])}", node.at)

    def want(self, wanted: str, node: Node) -> Value:
        """The value of this kind; a mistake where it is of another one."""
        value = self.value(node)
        if value.kind in (wanted, "wrong"):
            return value
        names = {"bool": "a condition", "number": "a number", "text": "a text"}
        more = ": compare it" if wanted == "bool" else ""
        return self.add(
            f"expected {names[wanted]} here, found {names[value.kind]}{more}", node.at
        )

    def value(self, node: Node) -> Value:
        """The value of an expression."""
        if isinstance(node, Number):
            return constant(node.value, 1 if node.is_time else None)
        if isinstance(node, Text):
            return Value("text", lambda rows: (node.text, True), each=False)
        if isinstance(node, Name):
            return self.name(node)
        if isinstance(node, Call):
            return self.call(node)
        if node.operator in COMPARISONS:
            return self._compare(node)
        if node.operator in ("and", "or", "not"):
            return self.join(node, [self.want("bool", operand) for operand in node.operands])
        return self._arithmetic(node)

    def call(self, node: Call) -> Value:
        """The value of a function."""
        function = self.functions.get(node.name)
        if function is None:
            what = f"no function '{node.name}'{suggest(node.name, self.functions)}"
            return self.add(what if self.functions else f"{self.what} has no functions", node.at)
        if len(node.arguments) != bool(function.takes):
            takes = "one argument" if function.takes else "no argument"
            return self.add(f"{node.name} takes {takes}", node.at)
        if not function.takes:
            return Value("number", lambda rows: (float(function.get(rows, rows)), True), False)
        value = self.want(function.takes, node.arguments[0])
        if value.kind != "wrong" and not value.each:
            self.add(f"{node.name} takes what each {self.what} has: name a column", node.at)

        def get(rows: Any) -> Found:
            data, has = (np.broadcast_to(part, rows.count) for part in value.get(rows))
            if not rows.count or not (function.keeps_null or has.any()):
                more = "to hold it for" if function.keeps_null else "with a value"
                raise NoDataError(f"no {rows.what} {more}")
            return function.get(rows, data[has]), True

        return replace(value, get=get, each=False, constant=None)

    def join(self, node: Operation, values: list[Value]) -> Value:
        """`and`, `or` and `not` of conditions."""
        if any(value.kind == "wrong" for value in values):
            return WRONG
        each = any(value.each for value in values)
        if node.operator == "not":
            (value,) = values

            def negated(rows: Any) -> Found:
                data, has = value.get(rows)
                return np.logical_not(data), has

            return Value("bool", negated, each)
        one, other = values
        return Value("bool", _both(_JOIN[node.operator], one, other), each)

    def _compare(self, node: Operation) -> Value:
        one, other = (self.value(operand) for operand in node.operands)
        if "text" in (one.kind, other.kind) and "wrong" not in (one.kind, other.kind):
            if one.kind != other.kind:
                return self.add("compare two numbers or two texts", node.at)
            if node.operator not in ("==", "!="):
                return self.add("texts are compared by == and !=", node.at)
        else:
            for value, operand in zip((one, other), node.operands, strict=True):
                if value.kind == "bool":
                    self.add("expected a number here, found a condition", operand.at)
        if {one.kind, other.kind} & {"wrong", "bool"}:
            return WRONG
        if all(isinstance(part, (Number, Text)) for part in node.operands) or (
            one.constant is not None and other.constant is not None
        ):
            self.add("this compares two constants", node.at)
        found = self.same_unit(one, other, node)
        return Value("bool", _both(_COMPARE[node.operator], *found), one.each or other.each)

    def _arithmetic(self, node: Operation) -> Value:
        values = [self.want("number", operand) for operand in node.operands]
        if any(value.kind == "wrong" for value in values):
            return WRONG
        one, other = values[0], values[-1]
        if node.operator == "neg":
            one, other, sign = constant(Fraction(0), one.unit), one, "-"
        else:
            sign = node.operator
        times = [value.unit is not None for value in (one, other)]
        unit = one.unit or other.unit
        if sign == "*" and all(times):
            self.add("the product of two times is no time", node.at)
        elif sign == "/" and times == [False, True]:
            self.add("a number divided by a time is no time", node.at)
        elif sign in "+-" or all(times):
            one, other = self.same_unit(one, other, node)
            unit = None if sign == "/" else one.unit or other.unit
        if one.constant is not None and other.constant is not None:
            if sign == "/" and not other.constant:
                return self.add("a division by zero", node.at)
            exact = _EXACT[sign](one.constant, other.constant)
            if abs(exact) > MOST_CONSTANT:
                return self.add("this constant is too large", node.at)
            return constant(exact, unit)
        calculate = _divide if sign == "/" else _EXACT[sign]
        get = _both(calculate, _as_float(one), _as_float(other), may_fail=sign == "/")
        return Value("number", get, one.each or other.each, unit)

    def same_unit(self, one: Value, other: Value, node: Node) -> tuple[Value, Value]:
        """Both in the finer unit, a constant in that of the column. A constant without a unit is
        in it already."""
        units = [value.unit for value in (one, other) if value.unit is not None]
        if len(units) == 1:
            plain = one if one.unit is None else other
            if plain.constant is None:
                self.add("one side is a time and the other is not", node.at)
            return one, other
        if not units or (one.constant is not None and other.constant is not None):
            return one, other
        columns = [value.unit for value in (one, other) if value.constant is None]
        unit = min(part for part in columns if part is not None)
        return _in(one, unit), _in(other, unit)


def _both(
    call: Callable[[Any, Any], Any], one: Value, other: Value, may_fail: bool = False
) -> Callable[[Any], Found]:
    """call() of both, null where one is, and where it may fail and does."""

    def get(rows: Any) -> Found:
        (data, has), (more, also) = one.get(rows), other.get(rows)
        found = call(data, more)
        both = has if also is True else also if has is True else np.logical_and(has, also)
        return found, np.logical_and(both, ~np.isnan(found)) if may_fail else both

    return get


def _divide(one: Any, other: Any) -> Any:
    """A quotient by zero is nan: no comparison with it holds, but !=."""
    return np.divide(one, np.where(np.equal(other, 0), np.nan, other))


def _as_float(value: Value) -> Value:
    """As float64: unsigned columns would wrap."""

    def get(rows: Any) -> Found:
        data, has = value.get(rows)
        return np.asarray(data).astype(np.float64), has

    return replace(value, get=get)


def _in(value: Value, unit: int) -> Value:
    """A time in this unit."""
    assert value.unit is not None
    if value.constant is not None:
        return constant(value.constant / unit, unit)
    if value.unit == unit:
        return value
    made = _as_float(value)
    factor = value.unit / unit

    def get(rows: Any) -> Found:
        data, has = made.get(rows)
        return data * factor, has

    return replace(value, get=get, unit=unit)


def names_in(node: Node | None) -> Collection[Name]:
    """The names that are used in an expression, without its functions."""
    if isinstance(node, Name):
        return [node]
    parts: tuple[Node, ...] = ()
    if isinstance(node, Operation):
        parts = node.operands
    elif isinstance(node, Call):
        parts = node.arguments
    return [name for part in parts for name in names_in(part)]
