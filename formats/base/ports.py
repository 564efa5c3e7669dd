# SPDX-License-Identifier: Apache-2.0
"""-p LPORT.RPORT, or -p PORT: chooses connections by their ports, the same in all commands.

A connection is named by the ports of its two ends, in any order, and both ends are meant where the
capture has both: as `port A and port B` of tcpdump. (--where 'lport == A' chooses one end.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal

Pair = tuple[int, int]
ANY = -1
"""In a pair: whatever port the other end has."""
METAVAR = "LPORT.RPORT|PORT"
HELP = ("Only this connection: its local and remote port, in any order; both its ends. PORT: all "
        "connections with that port. More with more -p.")  # fmt: skip
"""Of the option -p."""


def parse_connection(text: str) -> Pair:
    """Return (lport, rport) of "lport.rport", (port, ANY) of "port"; raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,5})(?:\.([0-9]{1,5}))?", text, re.ASCII)
    ports = (int(match[1]), int(match[2] or ANY)) if match else (65536, 65536)
    if max(ports) > 65535:
        raise UsageError(
            f"-p '{for_terminal(text)}': not a connection",
            "write local and remote port with a dot between, as in -p 1055.5050, or one port",
        )
    return ports


def match_ports(pairs: Sequence[Pair], lport: Any, rport: Any) -> NDArray[np.bool_]:
    """(n,) whether an end with these ports is of one of the connections; without any all are.

    lport, rport: (n,) integers.
    """
    local = np.asarray(lport).astype(np.int64) & 0xFFFF
    if not pairs:
        return np.ones(len(local), np.bool_)
    remote = np.asarray(rport).astype(np.int64) & 0xFFFF
    alone = [port for port, other in pairs if other == ANY]
    found: NDArray[np.bool_] = np.isin(
        (local << 16) | remote, [left << 16 | right for left, right in _both(pairs)]
    )
    return found | np.isin(local, alone) | np.isin(remote, alone) if alone else found


def find_missing(pairs: Sequence[Pair], found: Iterable[Pair], where: object) -> str:
    """A note of the connections that are not among the ends that were found; empty: all are.

    UsageError where none is.
    """
    if not pairs:
        return ""
    ends = set(found)
    ends |= {(port, ANY) for end in ends for port in end}
    missing = [pair for pair in dict.fromkeys(pairs) if ends.isdisjoint(_both([pair]))]
    if not missing:
        return ""
    names = ", ".join(f"{left}" if right == ANY else f"{left}.{right}" for left, right in missing)
    text = f"{where}: no connection {names}"
    if len(missing) == len({*pairs}):
        raise UsageError(text, "tcpkmon connections, or the command without -p, lists them")
    return text


def _both(pairs: Iterable[Pair]) -> set[Pair]:
    return {end for left, right in pairs for end in ((left, right), (right, left))}
