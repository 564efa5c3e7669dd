# SPDX-License-Identifier: Apache-2.0
"""A connection on the loopback device whose state depends on what is sent, and on nothing else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

PORT = 5310


class Link:
    """A sender with reno and segments of 1,448 bytes, and its receiver."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", PORT))
        self._sender = socket.socket()
        self._sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        self._sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1448)
        self._ends = [self._sender, self._listener]

    def connect(self) -> None:
        """Connect, in a block that is captured."""
        self._sender.connect(("127.0.0.1", PORT))
        self._receiver, _ = self._listener.accept()
        self._ends.append(self._receiver)

    def send(self, size: int) -> None:
        """Send so many bytes; returns when the receiver has them."""
        reader = threading.Thread(target=self._receive, args=(size,))
        reader.start()
        self._sender.sendall(bytes(size))
        reader.join()

    def _receive(self, size: int) -> None:
        while size:
            size -= len(self._receiver.recv(min(size, 1 << 16)))

    def close(self) -> None:
        """Close all."""
        for end in self._ends:
            end.close()


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link()
    yield made
    made.close()
