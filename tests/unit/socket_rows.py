# SPDX-License-Identifier: Apache-2.0
"""Sockets as sock_diag's answers are decoded, of any addresses and ports."""

from __future__ import annotations

from typing import Any

import numpy as np

from tcpkmon.collector.loader.sock_diag import SOCKET, choose_sockets
from tcpkmon.collector.plan.filters import Address, Filters


def passes(
    filters: Filters, local: Address, local_port: int, remote: Address, remote_port: int
) -> bool:
    """Whether a connection passes the filters by port, address and family."""
    row: Any = np.zeros(1, SOCKET)
    ends = [(b"" if end.version == 6 else bytes(10) + b"\xff\xff") + end.packed
            for end in (local, remote)]  # fmt: skip
    row["ends"][0, :4] = np.frombuffer(b"".join(ends), "=u8")
    row["ends"][0, 4] = local_port << 16 | remote_port
    return len(choose_sockets(row, filters)) == 1
