# SPDX-License-Identifier: Apache-2.0
"""What names mean in an assertion on one table, and the rows that it is computed from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tcpkmon.formats.analysis.causes import NAMES as CAUSES
from tcpkmon.formats.analysis.why import LIMITS
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.expressions import TIMES, Call, Name, Node, Operation, Text
from tcpkmon.formats.base.tcp import CA_STATES, STATES
from tcpkmon.formats.base.tcp_info import FROM_INFO
from tcpkmon.formats.base.text import suggest
from tcpkmon.formats.conditions import FUNCTIONS, WRONG, Array, Found, Scope, Value

# The names of the language that are neither columns nor functions.

LEDGER = ("no_loss", "proven", "conforms")
"""Conditions on the whole capture."""
CONSTANTS = {
    prefix + name: number
    for prefix, first, names in (("TCP_CA_", 0, CA_STATES), ("TCP_", 1, STATES[1:]))
    for number, name in enumerate(names, first)
}
"""The kernel's names of values of ca_state and state (linux/tcp.h, net/tcp_states.h)."""
INTERVAL = "interval."
"""What the names of columns of intervals begin with."""
REQUEST = "request."
"""And those of exchanges, whose times are in ms."""
COLUMN_OF = {member: column for column, member in FROM_INFO.items()}
"""The column that holds a member of struct tcp_info."""


def unit_of(column: str) -> int | None:
    """ns in the unit of a column whose name ends in one: srtt_us has 1,000. None: no time."""
    return TIMES.get(column.rpartition("_")[2]) if "_" in column else None


_OF_LIMITS = (f"{INTERVAL}limit", f"{INTERVAL}family", "main_limit")
_SHARE, _CAUSE = "limit_share", "cause"


def _no_causes(name: str) -> Array:
    raise UsageError(f"{_CAUSE}() is for assertions", "tcpkmon check has it; tcpkmon sql the table")


@dataclass(frozen=True)
class Table:
    """n rows. what: connection, record or interval. columns: those that the assertions name."""

    what: str
    columns: dict[str, Array]
    count: int
    lost: int
    holds: Mapping[str, bool]
    """no_loss, proven and conforms."""
    share: Callable[[str], Array]
    causes: Callable[[str], Array] = _no_causes
    """(n,) how often a cause is of each connection."""

    def take(self, kept: Array) -> Table:
        """The rows in a mask."""
        columns = {name: values[kept] for name, values in self.columns.items()}
        share, causes = self.share, self.causes
        return replace(
            self, columns=columns, count=int(kept.sum()), share=lambda limit: share(limit)[kept],
            causes=lambda cause: causes(cause)[kept],
        )  # fmt: skip

    def column(self, name: str) -> Found:
        """Numbers as float64, texts as objects."""
        values = self.columns[name]
        if values.dtype == object:
            return values, np.array([one is not None for one in values], np.bool_)
        if values.dtype == np.bool_:
            return values, True
        numbers = values.astype(np.float64)
        return numbers, ~np.isnan(numbers)


class TableScope(Scope):
    """columns: of the table, with their kinds (number, text or bool). aliases: others' names."""

    functions = FUNCTIONS

    def __init__(self, columns: Mapping[str, str], aliases: Mapping[str, str], what: str) -> None:
        super().__init__()
        self._columns = columns
        self._aliases = aliases
        self.what = what

    def name(self, node: Name) -> Value:
        name = node.text
        if name in LEDGER:
            return Value("bool", lambda table: (table.holds[name], True), each=False)
        column = name if name in self._columns else self._aliases.get(name, name)
        if column in self._columns:
            kind = self._columns[column]
            unit = unit_of(column) if kind == "number" else None
            return Value(kind, lambda table: table.column(column), unit=unit)
        if name in CONSTANTS:
            return Value("number", lambda table: (CONSTANTS[name], True), each=False)
        if name in FUNCTIONS or name in (_SHARE, _CAUSE):
            return self.add(f"{name} is a function: write {name}(...)", node.at)
        known = [*self._columns, *self._aliases, *LEDGER, *CONSTANTS]
        return self.unknown(f"column '{name}' of a{'n' * (self.what == 'interval')} {self.what}",
                            node, known)  # fmt: skip

    def call(self, node: Call) -> Value:
        if node.name == _CAUSE and len(node.arguments) == 1:
            return self._cause(node)
        if node.name != _SHARE or len(node.arguments) != 1:
            return super().call(node)
        if self.what != "connection":
            what = f"{_SHARE} is of connections: other names here are of {self.what}s"
            self.add(what, node.at)
        (limit,) = node.arguments
        if not isinstance(limit, Text) or limit.text not in LIMITS:
            more = _limits_like(limit.text if isinstance(limit, Text) else "")
            return self.add(f'{_SHARE} takes a limit, such as "rwnd"{more}', limit.at)
        text = limit.text

        def get(table: Table) -> Found:
            share = table.share(text)
            return share, ~np.isnan(share)

        return Value("number", get)

    def _cause(self, node: Call) -> Value:
        if self.what != "connection":
            self.add(f"{_CAUSE} is of connections: other names here are of {self.what}s", node.at)
        (name,) = node.arguments
        if not isinstance(name, Text) or name.text not in CAUSES:
            wrong = name.text if isinstance(name, Text) else ""
            more = suggest(wrong, CAUSES) or f": {', '.join(CAUSES)}"
            return self.add(f'{_CAUSE} takes a cause, such as "keepalive"{more}', name.at)
        text = name.text
        return Value("number", lambda table: (table.causes(text), True))

    def value(self, node: Node) -> Value:
        """A column of limits is compared with one that there is."""
        found = super().value(node)
        parts = node.operands if isinstance(node, Operation) else ()
        if any(isinstance(part, Name) and part.text in _OF_LIMITS for part in parts):
            for part in parts:
                if isinstance(part, Text) and part.text not in LIMITS:
                    more = _limits_like(part.text)
                    self.add(f'there is no limit "{part.text}"{more}', part.at)
        return found


def _limits_like(text: str) -> str:
    return suggest(text, LIMITS) or f": {', '.join(LIMITS)}"


@dataclass(frozen=True)
class Compiled:
    """An assertion on a table. where: which rows; left: the left side, of a comparison."""

    text: str
    what: str
    value: Value
    where: Value | None = None
    comparison: str = ""
    left: Value = WRONG

    def rows(self, table: Table) -> Table:
        """The rows that `where` chooses."""
        if self.where is None:
            return table
        return table.take(np.broadcast_to(self.where.holds(table), table.count))
