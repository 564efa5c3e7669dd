# SPDX-License-Identifier: Apache-2.0
"""--where: a condition on the columns of connections chooses among them, the same in all commands.
"""

from __future__ import annotations

import numpy as np

from formats.analysis import why
from formats.analysis.check.capture import CONNECTION_KINDS, share_of
from formats.analysis.check.mistakes import Checker
from formats.analysis.check.names import CONSTANTS
from formats.analysis.check.values import Array, Table
from formats.base.expressions import Assertion, ExpressionError, Mistake, parse_assertion
from formats.base.ports import match_ports

_WHAT = "connection"


def parse_where(text: str) -> Assertion:
    """A condition, as in `tcpkmon check`. ExpressionError."""
    try:
        parsed = parse_assertion(text)
    except Mistake as mistake:
        raise ExpressionError([(text, mistake)]) from mistake
    checker = Checker(CONNECTION_KINDS, {}, _WHAT)
    checker.check(parsed)
    if checker.mistakes:
        raise ExpressionError([(text, mistake) for mistake in checker.mistakes])
    return parsed


def fulfil(table: why.Table, where: Assertion) -> Array:
    """(n,) which connections fulfil it. A condition on null holds for none."""
    count = len(table["conn_id"])
    share = lambda limit: share_of(table, limit)  # noqa: E731
    rows = Table(_WHAT, dict(table), count, 0, {}, share, CONSTANTS, {})
    found = rows.value(where.node)
    return np.broadcast_to(np.logical_and(found.data, found.has), count)


def choose(
    table: why.Table, where: Assertion | None, ports: tuple[tuple[int, int], ...] = ()
) -> why.Table:
    """The connections that fulfil the condition, and have these pairs of ports, see base.ports."""
    kept = np.ones(len(table["conn_id"]), np.bool_)
    if where is not None:
        kept &= fulfil(table, where)
    if ports:
        kept &= match_ports(ports, table["lport"], table["rport"])
    return {name: values[kept] for name, values in table.items()}
