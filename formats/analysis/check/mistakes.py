# SPDX-License-Identifier: Apache-2.0
"""Finds the mistakes of an assertion, all of them, before anything is computed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from formats.analysis.check.names import CONSTANTS, INTERVAL, LEDGER, unit_of
from formats.analysis.check.values import SUMMARIES
from formats.analysis.why import LIMITS
from formats.base.expressions import (
    COMPARISONS,
    Assertion,
    Call,
    Mistake,
    Name,
    Node,
    Number,
    Operation,
    Text,
)
from formats.schema import suggest

FUNCTIONS = ("all", "any", "count", "limit_share", "lost", *SUMMARIES)
_OF_LIMITS = (f"{INTERVAL}limit", f"{INTERVAL}family", "main_limit")
_WRONG = ("wrong", False, False)
Kind = tuple[str, bool, bool]
"""bool, number, text or wrong; whether there is one for each row; whether it is a time."""


class Checker:
    """columns: of the table, with their kinds (number, text or bool). aliases: others' names."""

    def __init__(self, columns: Mapping[str, str], aliases: Mapping[str, str], what: str) -> None:
        self._columns = columns
        self._aliases = aliases
        self._what = what
        self.mistakes: list[Mistake] = []

    def check(self, parsed: Assertion, wanted: str = "bool") -> None:
        """Adds the mistakes. wanted: bool, or number for one that is no column."""
        found = self._want(wanted, parsed.node)
        if wanted == "number" and found[1]:
            self._add("this has one number for each row: take max() of it", parsed.node.at)
        if parsed.where is None:
            return
        kind = self._want("bool", parsed.where)
        if kind[0] == "bool" and not kind[1]:
            self._add("`where` takes a condition on a column", parsed.where.at)

    def _want(self, wanted: str, node: Node) -> Kind:
        kind = self._kind(node)
        if kind[0] not in (wanted, "wrong"):
            names = {"bool": "a condition", "number": "a number", "text": "a text"}
            more = ": compare it" if wanted == "bool" else ""
            self._add(f"expected {names[wanted]} here, found {names[kind[0]]}{more}", node.at)
            return _WRONG
        return kind

    def _kind(self, node: Node) -> Kind:
        if isinstance(node, Number):
            return "number", False, node.is_time
        if isinstance(node, Text):
            return "text", False, False
        if isinstance(node, Name):
            return self._name(node)
        if isinstance(node, Call):
            return self._call(node)
        if node.operator in COMPARISONS:
            return self._compare(node)
        wanted = "bool" if node.operator in ("and", "or", "not") else "number"
        kinds = [self._want(wanted, operand) for operand in node.operands]
        if any(kind[0] == "wrong" for kind in kinds):
            return _WRONG
        times = sum(kind[2] for kind in kinds)
        if wanted == "number":
            self._check_times(node, [kind[2] for kind in kinds])
        is_time = times > 0 and not (node.operator == "/" and times == 2)
        return wanted, any(kind[1] for kind in kinds), is_time

    def _check_times(self, node: Operation, times: list[bool]) -> None:
        if node.operator == "*" and sum(times) == 2:
            self._add("the product of two times is no time", node.at)
        if node.operator == "/" and times == [False, True]:
            self._add("a number divided by a time is no time", node.at)
        if node.operator in ("+", "-") and sum(times) == 1:
            self._check_mixed(node, times)

    def _check_mixed(self, node: Operation, times: list[bool]) -> None:
        """A plain constant is in the column's unit."""
        plain = node.operands[times.index(False)]
        constant = node.operands[times.index(True)]
        if not isinstance(plain, Number) or isinstance(constant, Number):
            self._add("one side is a time and the other is not", node.at)

    def _compare(self, node: Operation) -> Kind:
        one, other = (self._kind(operand) for operand in node.operands)
        if "wrong" in (one[0], other[0]):
            return _WRONG
        if one[0] != other[0] or "bool" in (one[0], other[0]):
            self._add("compare two numbers or two texts", node.at)
            return _WRONG
        if one[0] == "text" and node.operator not in ("==", "!="):
            self._add("texts are compared by == and !=", node.at)
        if one[2] != other[2]:
            self._check_mixed(node, [one[2], other[2]])
        self._check_limit(node)
        if all(isinstance(part, (Number, Text)) for part in node.operands):
            self._add("this compares two constants", node.at)
        return "bool", one[1] or other[1], False

    def _check_limit(self, node: Operation) -> None:
        """A column of limits is compared with one that there is."""
        if any(isinstance(part, Name) and part.text in _OF_LIMITS for part in node.operands):
            for part in node.operands:
                if isinstance(part, Text) and part.text not in LIMITS:
                    more = suggest(part.text, LIMITS) or f": {', '.join(LIMITS)}"
                    self._add(f'there is no limit "{part.text}"{more}', part.at)

    def _name(self, node: Name) -> Kind:
        name = node.text
        if name in LEDGER:
            return "bool", False, False
        column = name if name in self._columns else self._aliases.get(name, name)
        if column in self._columns:
            return self._columns[column], True, unit_of(column) is not None
        if name in CONSTANTS:
            return "number", False, False
        if name in FUNCTIONS:
            self._add(f"{name} is a function: write {name}(...)", node.at)
        else:
            known = [*self._columns, *self._aliases, *LEDGER, *CONSTANTS]
            what = f"a{'n' * (self._what == 'interval')} {self._what}"
            self._add(f"no column '{name}' of {what}{suggest(name, known)}", node.at)
        return _WRONG

    def _call(self, node: Call) -> Kind:
        name, found = node.name, node.arguments
        if name not in FUNCTIONS:
            self._add(f"no function '{name}'{suggest(name, FUNCTIONS)}", node.at)
            return _WRONG
        takes = 0 if name in ("lost", "count") else 1
        if len(found) != takes:
            self._add(f"{name} takes {'one argument' if takes else 'no argument'}", node.at)
            return _WRONG
        if not takes:
            return "number", False, False
        if name == "limit_share":
            return self._limit_share(node)
        if name in ("all", "any"):
            kind = self._want("bool", found[0])
            kind = kind if kind[0] == "wrong" else ("bool", kind[1], False)
        else:
            kind = self._want("number", found[0])
        if kind[0] != "wrong" and not kind[1]:
            self._add(f"{name} takes what each {self._what} has: name a column", node.at)
        return kind[0], False, kind[2]

    def _limit_share(self, node: Call) -> Kind:
        (argument,) = node.arguments
        if self._what != "connection":
            what = f"limit_share is of connections: other names here are of {self._what}s"
            self._add(what, node.at)
        if not isinstance(argument, Text) or argument.text not in LIMITS:
            text = argument.text if isinstance(argument, Text) else ""
            more = suggest(text, LIMITS) or f": {', '.join(LIMITS)}"
            self._add(f'limit_share takes a limit, such as "rwnd"{more}', argument.at)
        return "number", True, False

    def _add(self, what: str, at: int) -> None:
        self.mistakes.append(Mistake(what, at))


def names_in(node: Node | None) -> Collection[str]:
    """The names that are used in an expression, without its functions."""
    if isinstance(node, Name):
        return {node.text}
    parts: tuple[Node, ...] = ()
    if isinstance(node, Operation):
        parts = node.operands
    elif isinstance(node, Call):
        parts = node.arguments
    return {name for part in parts for name in names_in(part)}
