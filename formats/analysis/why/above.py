# SPDX-License-Identifier: Apache-2.0
"""Adds up whose a socket is, and what is above its TCP: MPTCP, kTLS, signatures."""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.blocks import Block

MPTCP = "mptcp"
PROTOCOLS = (
    MPTCP, "ktls", "tcp-md5", "tcp-ao", "smc", "other-ulp", "mptcp-refused", "smc-fallback",
)  # fmt: skip
"""By bit of the column protocols."""
NO_USER = (1 << 32) - 1
"""In the column uid: the record is of no full socket."""
_LARGEST = ("mptcp_sent", "mptcp_received", "mptcp_retrans")


def add(values: dict[str, Array], block: Block) -> None:
    """values: gets (m,) arrays by name."""
    for name in _LARGEST:
        if name in block.rows:
            values[name] = np.maximum.reduceat(block[name], block.groups)
    if "protocols" in block.rows:
        values["protocols"] = np.bitwise_or.reduceat(block["protocols"], block.groups)
    for name, none in (("mptcp_token", 0), ("uid", NO_USER)):
        if name in block.rows:
            at = np.flatnonzero(block[name] != none)
            values[name] = np.full(len(block.groups), none, np.int64)
            values[name][block.of_row[at]] = block[name][at]  # the last one stays


def protocols_of(bits: int) -> str | None:
    """The names of some bits; None for none."""
    return " ".join(name for bit, name in enumerate(PROTOCOLS) if bits >> bit & 1) or None
