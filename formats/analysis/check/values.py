# SPDX-License-Identifier: Apache-2.0
"""Computes an assertion on one table: numbers as float64, with what is null beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.analysis.check.names import unit_of
from formats.base.expressions import COMPARISONS, Call, Name, Node, Number, Operation, Text

Array = NDArray[Any]

SUMMARIES: dict[str, Callable[[Array], Any]] = {
    "sum": np.sum, "min": np.min, "max": np.max, "mean": np.mean,
    "p50": lambda values: np.percentile(values, 50),
    "p95": lambda values: np.percentile(values, 95),
    "p99": lambda values: np.percentile(values, 99),
}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
    "==": np.equal, "!=": np.not_equal,
}  # fmt: skip
_JOIN: dict[str, Callable[[Any, Any], Any]] = {
    "and": np.logical_and, "or": np.logical_or,
    "+": np.add, "-": np.subtract, "*": np.multiply,
    "/": lambda one, other: np.divide(one, np.where(np.equal(other, 0), np.nan, other)),
}  # fmt: skip


class NoDataError(Exception):
    """There is no value to compute from. The message is for people."""


@dataclass(frozen=True)
class Value:
    """data: a scalar, or an array with one for each row. has: where it is not null.

    kind: bool, number or text. unit: of a time, ns in its unit. constant: a number of the text.
    """

    data: Any
    kind: str
    has: Any = True
    unit: int | None = None
    constant: bool = False

    @property
    def each(self) -> bool:
        """Whether it has one for each row."""
        return isinstance(self.data, np.ndarray)


@dataclass(frozen=True)
class Table:
    """n rows. what: connection, record or interval. columns: those that the assertions name."""

    what: str
    columns: dict[str, Array]
    count: int
    lost: int
    holds: dict[str, bool]
    """no_loss and proven."""
    share: Callable[[str], Array]
    constants: dict[str, int]
    aliases: dict[str, str]

    def take(self, kept: Array) -> Table:
        """The rows in a mask."""
        columns = {name: values[kept] for name, values in self.columns.items()}
        share = self.share
        return replace(
            self, columns=columns, count=int(kept.sum()), share=lambda limit: share(limit)[kept]
        )

    def value(self, node: Node) -> Value:
        """NoDataError where a summary has no value."""
        with np.errstate(all="ignore"):
            return self._value(node)

    def _value(self, node: Node) -> Value:
        if isinstance(node, Number):
            unit = 1 if node.is_time else None
            return Value(float(node.value), "number", unit=unit, constant=True)
        if isinstance(node, Text):
            return Value(node.text, "text", constant=True)
        if isinstance(node, Name):
            return self._name(node.text)
        if isinstance(node, Call):
            return self._call(node)
        values = [self._value(operand) for operand in node.operands]
        if node.operator == "neg":
            return replace(values[0], data=-values[0].data)
        if node.operator == "not":
            return replace(values[0], data=np.logical_not(values[0].data))
        one, other = values
        has = np.logical_and(one.has, other.has)
        if node.operator in ("and", "or"):
            return Value(_JOIN[node.operator](one.data, other.data), "bool", has)
        if node.operator in COMPARISONS:
            one, other = _same_unit(one, other)
            return Value(_COMPARE[node.operator](one.data, other.data), "bool", has)
        return _arithmetic(node, one, other, has)

    def _name(self, name: str) -> Value:
        if name in self.holds:
            return Value(self.holds[name], "bool")
        column = self.aliases.get(name, name) if name not in self.columns else name
        if column not in self.columns:
            return Value(float(self.constants[name]), "number")
        values = self.columns[column]
        if values.dtype == object:
            return Value(values, "text", np.array([one is not None for one in values], np.bool_))
        if values.dtype == np.bool_:
            return Value(values, "bool")
        numbers = values.astype(np.float64)
        return Value(numbers, "number", ~np.isnan(numbers), unit_of(column))

    def _call(self, node: Call) -> Value:
        if node.name == "lost":
            return Value(float(self.lost), "number")
        if node.name == "count":
            return Value(float(self.count), "number")
        argument = node.arguments[0]
        if node.name == "limit_share" and isinstance(argument, Text):
            share = self.share(argument.text)
            return Value(share, "number", ~np.isnan(share))
        value = self._value(argument)
        has = np.broadcast_to(value.has, self.count)
        data = np.broadcast_to(value.data, self.count)
        if node.name in ("all", "any"):
            if not self.count:
                raise NoDataError(f"no {self.what} to hold it for")
            holds = data.astype(np.bool_) & has
            return Value(bool(holds.all() if node.name == "all" else holds.any()), "bool")
        if not has.any():
            raise NoDataError(f"no {self.what} with a value")
        return replace(value, data=float(SUMMARIES[node.name](data[has])), has=True)


def _arithmetic(node: Operation, one: Value, other: Value, has: Any) -> Value:
    units = [value.unit for value in (one, other) if value.unit is not None]
    unit = units[0] if units else None
    if node.operator in ("+", "-") or len(units) == 2:
        one, other = _same_unit(one, other)
        unit = one.unit or other.unit
        if node.operator == "/":
            unit = None
    data = _JOIN[node.operator](one.data, other.data)
    constant = one.constant and other.constant
    return Value(data, "number", np.logical_and(has, ~np.isnan(data)), unit, constant)


def _same_unit(one: Value, other: Value) -> tuple[Value, Value]:
    """Both in the finer unit. A number without one is in that of the other."""
    if one.unit is None or other.unit is None or one.unit == other.unit:
        return one, other
    unit = min(one.unit, other.unit)
    return _in(one, unit), _in(other, unit)


def _in(value: Value, unit: int) -> Value:
    assert value.unit is not None
    return replace(value, data=value.data * (value.unit / unit), unit=unit)
