# SPDX-License-Identifier: Apache-2.0
"""The socket at which everybody may read a collector's status, as /proc/net/magnet told it.

It reads nothing: who connects gets a line of JSON, and the connection ends. So a stranger sends
nothing to the collector, and cannot come near the control socket.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tcpkmon.collector.control.access import listen_at, status_path

ONLOOKERS = 16
"""How many may wait."""
STATUS_S = 1.0
"""A status is no older. So onlookers cost the session one request a second, however many ask."""


class Onlookers:
    """Those who wait for the status. control: the control socket, which has its folder already.

    ask: called when a status is wanted; tell() gets it. All but the constructor and close() run in
    the server's thread. FileError when it cannot listen.
    """

    def __init__(self, control: Path, ask: Callable[[], None]) -> None:
        self.path = status_path(control)
        self.listener = listen_at(self.path, 0o666)  # everybody may connect
        self._ask = ask
        self._waiting: list[socket.socket] = []
        self._status, self._since_s = b"", -math.inf

    def accept(self) -> None:
        """Somebody connects; where too many wait, the connection ends without a status."""
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return  # it has left already, or there is no descriptor
        if len(self._waiting) >= ONLOOKERS:
            connection.close()
            return
        connection.setblocking(False)
        self._waiting.append(connection)
        if time.monotonic() - self._since_s < STATUS_S:
            self.send(self._status)
        elif len(self._waiting) == 1:
            self._ask()

    def tell(self, status: bytes) -> None:
        """The status that was asked for."""
        self._status, self._since_s = status, time.monotonic()
        self.send(status)

    def send(self, line: bytes) -> None:
        """Answer all who wait."""
        for connection in self._waiting:
            with suppress(OSError):  # who asked has left, or does not read what the buffer holds
                connection.send(line)
            connection.close()
        self._waiting.clear()

    def close(self) -> None:
        with suppress(OSError):
            self.path.unlink()
        self.listener.close()
