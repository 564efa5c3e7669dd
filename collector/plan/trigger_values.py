# SPDX-License-Identifier: Apache-2.0
"""The values of a trigger's expressions: functions of records, with their units."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.plan.recorder import STALL
from formats.base.expressions import Name, Node, Operation

Rows = NDArray[Any]

MOST_CONSTANT = 10**100
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """An expression. get: its values of records. kind: bool, number, time (in units of `scale` ns).

    constant: its value, of a time in ns. event: it is true at single records.
    """

    get: Callable[[Rows], Any]
    kind: str
    scale: int = 1
    constant: Fraction | None = None
    event: bool = False
    locations: frozenset[int] = frozenset()
    """Of an event: it is true at no record of another location."""
    plain: bool = False
    """A column itself, so that numpy compares integers."""


def _divide(one: Any, other: Any) -> Any:
    """A quotient by zero is nan: no comparison with it holds, but !=."""
    return np.divide(one, np.where(np.equal(other, 0), np.nan, other))


ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": _divide,
}  # fmt: skip
EXACT: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
_ARRIVED = (1, 21)
WRONG = Value(lambda rows: np.zeros(len(rows), np.bool_), "wrong")


def constant_of(value: Fraction, kind: str) -> Value:
    """A constant; a time's `value` is in ns."""
    number: int | float = int(value) if value.denominator == 1 else float(value)
    return Value(lambda rows: number, kind, constant=value)


def same_scale(one: Value, other: Value) -> tuple[Value, Value]:
    """Both in the coarser unit of the two; a constant in that of the column."""
    if one.kind != "time" and other.kind != "time":
        return one, other
    if one.constant is not None and other.constant is not None:
        return one, other
    if one.constant is not None:
        return _converted(one, other.scale), other
    if other.constant is not None:
        return one, _converted(other, one.scale)
    scale = max(one.scale, other.scale)
    return _converted(one, scale), _converted(other, scale)


def _converted(value: Value, scale: int) -> Value:
    if value.constant is not None:
        constant = value.constant if value.kind == "number" else value.constant / scale
        made = constant_of(constant, "time")
        return Value(made.get, "time", scale, constant)
    if value.scale == scale:
        return value
    factor = value.scale / scale
    return Value(lambda rows: as_float(value, rows) * factor, "time", scale)


def as_float(value: Value, rows: Rows) -> Any:
    """As float64: unsigned columns would wrap."""
    return np.asarray(value.get(rows)).astype(np.float64)


def conjuncts(node: Node) -> list[Node]:
    """The parts that `and` joins."""
    if isinstance(node, Operation) and node.operator == "and":
        return [part for operand in node.operands for part in conjuncts(operand)]
    return [node]


def is_stall(node: Node) -> bool:
    """Whether it is `stall > TIME`."""
    return (
        isinstance(node, Operation)
        and node.operator in (">", ">=")
        and isinstance(node.operands[0], Name)
        and node.operands[0].text == STALL
    )


def is_waiting(rows: Rows) -> NDArray[np.bool_]:
    """(n,) whether something is unacknowledged when the record's segment has counted."""
    left = rows["snd_una"] + rows["snd_sb_cc"] - rows["seg_ack"]  # modulo 2^32
    found: NDArray[np.bool_] = ~np.isin(rows["location"], _ARRIVED) | (left != 0)
    return found
