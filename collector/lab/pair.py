# SPDX-License-Identifier: Apache-2.0
"""Connections across a lab whose two ends this process holds."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tcpkmon.collector.lab.endpoint import bound_waits, family_of, listen_at
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.namespaces import Side

WAIT_S = 240.0
"""An emulated CPU is slow."""


@dataclass(frozen=True)
class Pair:
    """Both ends of a connection, held by this process: the client in a, the server in b."""

    client: socket.socket
    server: socket.socket

    @property
    def client_port(self) -> int:
        return int(self.client.getsockname()[1])

    @property
    def server_port(self) -> int:
        return int(self.server.getsockname()[1])

    def close(self) -> None:
        self.client.close()
        self.server.close()

    def exchange(self, size: int = 100) -> None:
        """Some bytes there, and some back."""
        for sender, receiver in ((self.client, self.server), (self.server, self.client)):
            sender.sendall(bytes(size))
            receive(receiver, size)


def make_socket(side: Side, family: int = socket.AF_INET) -> socket.socket:
    """A TCP socket of that namespace, with bounded waits."""
    made = side.run(lambda: socket.socket(family, socket.SOCK_STREAM))
    bound_waits(made, WAIT_S)
    return made


def listening(side: Side, address: str, port: int = 0) -> socket.socket:
    listener = make_socket(side, family_of(address))
    listen_at(listener, address, port, 64)
    return listener


def join(
    side: Side, listener: socket.socket, address: str,
    options: Sequence[tuple[int, int, int | bytes]] = (),
) -> Pair:  # fmt: skip
    """Connects from `side` to the listener at `address`. options: for setsockopt(), before it."""
    client = make_socket(side, family_of(address))
    for level, name, value in options:
        client.setsockopt(level, name, value)
    client.connect((address, listener.getsockname()[1]))
    server, _ = listener.accept()
    return Pair(client, server)


def drain(end: socket.socket) -> threading.Thread:
    """Read all that comes, and forget it, in a thread that has begun."""

    def read() -> None:
        with suppress(OSError):
            while end.recv(1 << 16):
                pass

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    return reading


@contextmanager
def connected(lab: Lab, address: str = "10.77.0.2", listen: str = "") -> Iterator[Pair]:
    """One connection from a to b."""
    with listening(lab.b, listen or address) as listener:
        pair = join(lab.a, listener, address)
    try:
        yield pair
    finally:
        pair.close()


def receive(end: socket.socket, size: int) -> None:
    while size:
        got = len(end.recv(min(size, 1 << 16)))
        if not got:
            raise ConnectionResetError(f"the connection ended with {size} bytes to come")
        size -= got


def look(end: socket.socket) -> None:
    """A receive call that finds nothing: a capture has the state, which it does not change."""
    with suppress(BlockingIOError):
        if end.recv(1, socket.MSG_DONTWAIT):
            raise ConnectionError("there was a byte to read")
