# SPDX-License-Identifier: Apache-2.0
"""--where: a condition on the columns of connections, or of requests, chooses among them, the same
in all commands.
"""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis import why
from tcpkmon.formats.analysis.check.capture import CONNECTION_KINDS, REQUEST_KINDS, in_ms, share_of
from tcpkmon.formats.analysis.check.names import REQUEST
from tcpkmon.formats.analysis.check.scope import Table, TableScope
from tcpkmon.formats.base.expressions import parse_assertion, read_all
from tcpkmon.formats.base.ports import match_ports
from tcpkmon.formats.conditions import Array, Value

_OF_BOTH = {
    name: kind for name, kind in CONNECTION_KINDS.items() if f"{REQUEST}{name}" in REQUEST_KINDS
}
_KINDS = {"connection": CONNECTION_KINDS, "request": _OF_BOTH | REQUEST_KINDS}


def parse_where(text: str, what: str = "connection") -> Value:
    """A condition, as in `tcpkmon check`. what: connection, or request. ExpressionError."""

    def read(text: str) -> Value:
        scope = TableScope(_KINDS[what], {}, what)
        value = scope.want("bool", parse_assertion(text).node)
        scope.end()
        return value

    return read_all([text], read)[0]


def fulfil(table: why.Table, where: Value, what: str = "connection") -> Array:
    """(n,) which rows fulfil it. A condition on null holds for none."""
    count = len(table["conn_id"])
    columns = dict(table) if what == "connection" else {**table, **in_ms(table)}
    rows = Table(what, columns, count, 0, {}, lambda limit: share_of(table, limit))
    return np.broadcast_to(where.holds(rows), count)


def choose(
    table: why.Table, where: Value | None, ports: tuple[tuple[int, int], ...] = (),
    what: str = "connection",
) -> why.Table:  # fmt: skip
    """The rows that fulfil the condition, and have these pairs of ports, see base.ports."""
    kept = np.ones(len(table["conn_id"]), np.bool_)
    if where is not None:
        kept &= fulfil(table, where, what)
    if ports:
        kept &= match_ports(ports, table["lport"], table["rport"])
    if kept.all():
        return table
    return {name: values[kept] for name, values in table.items()}
