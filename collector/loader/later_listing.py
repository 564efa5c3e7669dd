# SPDX-License-Identifier: Apache-2.0
"""Lists connections by sock_diag after the privileges to enter namespaces were given up."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.linux.netns import run_inside
from tcpkmon.collector.loader.sock_diag import Answer, ask, cgroups_of, cookie_or_0, open_socket
from tcpkmon.collector.loader.socket_table import SOCKET, choose_sockets, decode
from tcpkmon.collector.plan.filters import Filters

Wire = tuple[int, socket.socket]
"""The cookie of a namespace, or 0, and a socket of sock_diag there."""
AT_ONCE = 32
"""Datagrams that are decoded at once: 2,500 sockets, 2 ms."""


def open_wire(namespace: int) -> Wire:
    """Make it while this process may enter the namespace (a descriptor). OSError, KernelError."""
    return cookie_or_0(namespace), run_inside(namespace, open_socket)


def list_by(wires: Iterable[Wire], filters: Filters) -> Iterator[NDArray[Any]]:
    """The open connections that pass the filters: (n,) of SOCKET, piece by piece.

    A datagram, about 80 sockets, may give an empty piece, so that the caller can do something else
    meanwhile. A socket may be in two pieces if others are opened meanwhile. OSError where the
    kernel refuses.
    """
    nothing, cgroups = np.empty(0, SOCKET), cgroups_of(filters)
    for netns, wire in wires:
        waiting: list[Answer] = []
        for answer in ask(wire):
            waiting.append(answer)
            if len(waiting) < AT_ONCE:
                yield nothing
                continue
            yield choose_sockets(decode(waiting, netns), filters, cgroups)
            waiting = []
        yield choose_sockets(decode(waiting, netns), filters, cgroups)
