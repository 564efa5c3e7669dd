# SPDX-License-Identifier: Apache-2.0
"""Lists connections by sock_diag after the privileges to enter namespaces were given up."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator

from pyroute2.netlink.diag import DiagSocket

from collector.linux.netns import run_inside
from collector.loader.sock_diag import Connection, ask, choose, cookie_or_0
from collector.plan.filters import Filters

Wire = tuple[int, socket.socket]
"""The cookie of a namespace, or 0, and a socket of sock_diag there."""


def open_wire(namespace: int) -> Wire:
    """Make it while this process may enter the namespace (a descriptor). OSError, KernelError."""

    def open_here() -> socket.socket:
        with DiagSocket() as diag:
            diag.bind()
            return socket.socket(fileno=os.dup(diag.fileno()))

    return cookie_or_0(namespace), run_inside(namespace, open_here)


def list_by(
    wires: Iterable[Wire], filters: Filters, pause: Callable[[], None]
) -> list[Connection]:
    """The open connections that pass the filters. pause: called after each datagram, about 80.

    OSError where the kernel refuses.
    """

    def answers(wire: socket.socket) -> Iterator[tuple[bytes, list[int]]]:
        for answer in ask(wire):
            yield answer
            pause()

    found: dict[tuple[int, int], Connection] = {}
    for part in choose(((netns, wire.fileno(), answers(wire)) for netns, wire in wires), filters):
        found.update(part)
    return list(found.values())
