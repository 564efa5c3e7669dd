# SPDX-License-Identifier: Apache-2.0
"""--where: a condition on the columns of connections chooses among them, the same in all commands.
"""

from __future__ import annotations

import numpy as np

from formats.analysis import why
from formats.analysis.check.capture import CONNECTION_KINDS, share_of
from formats.analysis.check.scope import Table, TableScope
from formats.base.expressions import parse_assertion, read_all
from formats.base.ports import match_ports
from formats.conditions import Array, Value

_WHAT = "connection"


def parse_where(text: str) -> Value:
    """A condition, as in `tcpkmon check`. ExpressionError."""

    def read(text: str) -> Value:
        scope = TableScope(CONNECTION_KINDS, {}, _WHAT)
        value = scope.want("bool", parse_assertion(text).node)
        scope.end()
        return value

    return read_all([text], read)[0]


def fulfil(table: why.Table, where: Value) -> Array:
    """(n,) which connections fulfil it. A condition on null holds for none."""
    count = len(table["conn_id"])
    rows = Table(_WHAT, dict(table), count, 0, {}, lambda limit: share_of(table, limit))
    return np.broadcast_to(where.holds(rows), count)


def choose(
    table: why.Table, where: Value | None, ports: tuple[tuple[int, int], ...] = ()
) -> why.Table:
    """The connections that fulfil the condition, and have these pairs of ports, see base.ports."""
    kept = np.ones(len(table["conn_id"]), np.bool_)
    if where is not None:
        kept &= fulfil(table, where)
    if ports:
        kept &= match_ports(ports, table["lport"], table["rport"])
    return {name: values[kept] for name, values in table.items()}
