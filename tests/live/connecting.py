# SPDX-License-Identifier: Apache-2.0
"""Run as a program by Program of test_many_connections.py: opens and closes counted connections.

    python connecting.py   <- lines, -> "PORT" at the start and "done" for each line:
    hold N      opens N connections and keeps them
    churn N     N short ones: half end in order, half by a reset, and these have all the same ports
    work        one more has a request and its answer 1,000 times a second, from then on
    leave       closes what is held, and the listener
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from typing import NoReturn

_RESET = struct.pack("ii", 1, 0)
_ADDRESSES = 200
_EACH = 400
"""Connections that a process holds: the limit of open files may be 1024."""


class Ends:
    """A listener, and what is connected to it."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("0.0.0.0", 0), backlog=128)
        self.port = int(self.listener.getsockname()[1])
        self.holders: list[int] = []
        self._stay, self._leave = os.pipe()

    def connect(self, number: int, fixed: int = 0) -> tuple[socket.socket, socket.socket]:
        """A connection's two ends; many addresses, so that ports do not run out."""
        client = socket.socket()
        address = "127.0.0.1" if fixed else f"127.0.0.{1 + number % _ADDRESSES}"
        if fixed:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(("127.0.0.1", fixed))
        client.connect((address, self.port))
        server, _ = self.listener.accept()
        return client, server

    def hold(self, count: int) -> None:
        for first in range(0, count, _EACH):
            ready, told = os.pipe()
            pid = os.fork()
            if not pid:
                self._hold_here(range(first, min(first + _EACH, count)), told)
            self.holders.append(pid)
            os.close(told)
            if not os.read(ready, 1):
                raise SystemExit("a process could not hold its connections")
            os.close(ready)

    def _hold_here(self, numbers: range, told: int) -> NoReturn:
        """In a child: until leave(), or the end of the parent."""
        try:
            os.close(self._leave)
            _ends = [self.connect(number) for number in numbers]
            os.write(told, b"!")
            os.read(self._stay, 1)
        finally:
            os._exit(0)

    def churn(self, count: int) -> None:
        for number in range(count):
            resets = number % 2 == 1
            # A port outside the range that the kernel gives out by itself.
            client, server = self.connect(number, 20_000 if resets else 0)
            client.sendall(b"x")
            server.recv(1)
            if resets:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.close()
            if not resets:
                server.recv(1)
            server.close()

    def work(self) -> None:
        client, server = self.connect(0)

        def exchange() -> None:
            while True:
                client.sendall(b"?")
                server.sendall(server.recv(1))
                client.recv(1)
                time.sleep(0.001)

        threading.Thread(target=exchange, daemon=True).start()

    def leave(self) -> None:
        os.close(self._leave)
        while self.holders:
            os.waitpid(self.holders.pop(), 0)
        self.listener.close()


def main() -> None:
    """Obeys standard input until its end."""
    ends = Ends()
    print(ends.port, flush=True)
    while line := sys.stdin.readline():
        word, *numbers = line.split()
        getattr(ends, word)(*map(int, numbers))
        print("done", flush=True)


if __name__ == "__main__":
    main()
