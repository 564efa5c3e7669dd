# SPDX-License-Identifier: Apache-2.0
"""The names of the language that are neither columns nor functions."""

from __future__ import annotations

from tcpkmon.formats.base.expressions import TIMES
from tcpkmon.formats.base.tcp import CA_STATES, STATES
from tcpkmon.formats.base.tcp_info import FROM_INFO

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
