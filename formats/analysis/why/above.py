# SPDX-License-Identifier: Apache-2.0
"""Adds up whose a socket is, and what is above its TCP: MPTCP, kTLS, signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.why.grouping import Grouped

MPTCP = "mptcp"
PROTOCOLS = (
    MPTCP, "ktls", "tcp-md5", "tcp-ao", "smc", "other-ulp", "mptcp-refused", "smc-fallback",
)  # fmt: skip
"""By bit of the column protocols."""
NO_USER = (1 << 32) - 1
"""In the column uid: the record is of no full socket."""
_LARGEST = ("mptcp_sent", "mptcp_received", "mptcp_retrans")


def add(of: Callable[..., Any], piece: Grouped) -> None:
    """of: gives an array of a name, as Fold.of() does."""
    places, firsts = piece.places, piece.firsts
    for name in _LARGEST:
        if name in piece.columns:
            mine, most = of(name, np.uint64), np.maximum.reduceat(piece[name], firsts)
            mine[places] = np.maximum(mine[places], most)
    if "protocols" in piece.columns:
        of("protocols", np.uint16)[places] |= np.bitwise_or.reduceat(piece["protocols"], firsts)
    for name, none in (("mptcp_token", 0), ("uid", NO_USER)):
        if name in piece.columns:
            at = np.flatnonzero(piece[name] != none)
            of(name, np.int64, none)[piece.of_row[at]] = piece[name][at]  # the last one stays


def protocols_of(bits: int) -> str | None:
    """The names of some bits; None for none."""
    return " ".join(name for bit, name in enumerate(PROTOCOLS) if bits >> bit & 1) or None
