# SPDX-License-Identifier: Apache-2.0
"""An assertion on connections, as `tcpkmon check` has it, as an expression of Ibis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tcpkmon.formats.analysis.check import (
    CONNECTION_KINDS,
    LEDGER,
    TableScope,
    compile_assertions,
)
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.expressions import (
    COMPARISONS,
    Call,
    Name,
    Node,
    Operation,
    Text,
    parse_assertion,
)
from tcpkmon.formats.conditions import Value
from tcpkmon.formats.dataset.asked import limited
from tcpkmon.formats.dataset.engines import ibis

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b, "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip
_CALCULATE: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": lambda a, b: a / b.nullif(0.0),
}  # fmt: skip
_INSTEAD = "a condition on the columns of a connection, such as 'retrans_ratio < 1e-3'"


class Asserted:
    """An assertion that every connection holds or breaks; what has no value breaks it.

    UsageError for mistakes, and for what is not of each connection alone.
    """

    def __init__(self, text: str) -> None:
        (compiled,), _ = compile_assertions([text], {})
        if compiled.what != "connection" or not compiled.value.each:
            raise UsageError(f"{text!r} is not about each connection", _INSTEAD)
        parsed = parse_assertion(text)
        self._node, self._where = parsed.node, parsed.where
        self._scope = TableScope(CONNECTION_KINDS, {}, "connection")

    def holds(self, of: Any) -> Any:
        """A boolean column, null where what it needs has no value."""
        return self._make(self._node, of)

    def where(self, of: Any) -> Any:
        """The connections that it is about; None: all."""
        return None if self._where is None else self._make(self._where, of).fill_null(False)

    def _make(self, node: Node, of: Any) -> Any:
        value = self._scope.value(node)
        if value.constant is not None:
            return ibis().literal(float(value.constant))
        if isinstance(node, Text):
            return ibis().literal(node.text)
        if isinstance(node, Name):
            if node.text in LEDGER or node.text not in of.columns:
                raise UsageError(f"{node.text} is no column of the dataset's connections", _INSTEAD)
            column = of[node.text]
            return column.cast("float64") if value.kind == "number" else column
        if isinstance(node, Call):
            return self._share(node, of)
        assert isinstance(node, Operation)
        parts = [self._make(one, of) for one in node.operands]
        if node.operator == "not":
            # Not ~parts[0]: Ibis writes its isnull() as NOT x IS NULL, which is NOT (x IS NULL).
            return parts[0] == ibis().literal(False)
        if node.operator in ("and", "or"):  # null where one is, not as in SQL
            one, other = parts
            both = one & other if node.operator == "and" else one | other
            return ibis().ifelse(one.isnull() | other.isnull(), None, both)
        if node.operator == "neg":
            return -parts[0]
        one, other = self._fitted(node, parts)
        table = _COMPARE if node.operator in COMPARISONS else _CALCULATE
        return table[node.operator](one, other)

    def _fitted(self, node: Operation, parts: list[Any]) -> list[Any]:
        """Both sides in the same unit of time."""
        values = [self._scope.value(one) for one in node.operands]
        if node.operator == "*" or any(value.kind == "text" for value in values):
            return parts
        if node.operator == "/" and not all(value.unit for value in values):
            return parts
        fitted = self._scope.same_unit(values[0], values[1], node)
        return [_in(*one) for one in zip(parts, values, fitted, strict=True)]

    def _share(self, node: Call, of: Any) -> Any:
        (limit,) = node.arguments
        if not isinstance(limit, Text):
            raise UsageError(f"{node.name} is not of each connection", _INSTEAD)
        return limited(of, limit.text)


def _in(part: Any, old: Value, new: Value) -> Any:
    if new.constant is not None:
        return ibis().literal(float(new.constant))
    if old.unit is None or old.unit == new.unit or new.unit is None:
        return part
    return part * (old.unit / new.unit)
