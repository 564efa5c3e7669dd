# SPDX-License-Identifier: Apache-2.0
"""Clients at a unix socket: each sends a line and gets a line, and the connection ends.

Nobody keeps others away. A line has one deadline, however many pieces it comes in, and so has the
answer. Root and the collector's user have places of their own. The others have as many together,
and each user some of them: where these are taken, who has waited longest without a whole line
gives way.
"""

from __future__ import annotations

import math
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tcpkmon.collector.control.access import Peer, peer_of
from tcpkmon.formats.base.errors import PrivilegeError, TcpkmonError, UsageError

REQUEST_BYTES = 1 << 16
CLIENTS, SHARE = 16, 4
"""At once, of the owners and of the others each; of a user among the others."""
TIME_LIMIT_S = 5.0
"""How long a client may take to send its line, and to read its answer."""


@dataclass(eq=False)
class Client:
    """A connection. deadline: infinite while its line is being answered."""

    socket: socket.socket
    peer: Peer
    deadline: float
    received: bytearray = field(default_factory=bytearray)
    answer: bytes = b""


class Lines:
    """The clients of listeners, whose sockets are in a selector with their Client as data.

    gid: the group that may ask beside root and the collector's user; members: who may, in words.
    take: called with a line; its answer goes to reply(). refuse: makes an answer of an error.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        gid: int | None,
        members: str,
        take: Callable[[Client, bytes], None],
        refuse: Callable[[TcpkmonError], bytes],
    ) -> None:
        self._selector = selector
        self._gid, self._members = gid, members
        self._take, self._refuse = take, refuse
        self._clients: dict[Client, None] = {}
        """In the order in which they came."""

    def accept(self, listener: socket.socket) -> None:
        """Somebody connects, or has left already."""
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # there may be no descriptor left
        connection.setblocking(False)
        try:
            peer = peer_of(connection)
        except OSError:
            connection.close()
            return
        has_room = self._make_room(peer)
        client = Client(connection, peer, time.monotonic() + TIME_LIMIT_S)
        self._clients[client] = None
        self._selector.register(connection, selectors.EVENT_READ, client)
        if not peer.may_control(self._gid):
            error = PrivilegeError(f"only {self._members} may ask this")
            self.reply(client, self._refuse(error))
        elif not has_room:
            self._turn_away(client)

    def _make_room(self, peer: Peer) -> bool:
        """Whether there is a place for it; the oldest one gives way that has sent no whole line."""
        crowd = [one for one in self._clients if one.peer.is_owner == peer.is_owner]
        most = CLIENTS
        if not peer.is_owner:
            own = [one for one in crowd if one.peer.uid == peer.uid]
            crowd, most = (own, SHARE) if len(own) >= SHARE else (crowd, CLIENTS)
        if len(crowd) < most:
            return True
        idle = [one for one in crowd if one.deadline < math.inf]
        if idle:
            self._turn_away(idle[0])
        return bool(idle)

    def _turn_away(self, client: Client) -> None:
        if not client.answer:
            self.reply(client, self._refuse(TcpkmonError("too many ask at once", "try again")))
        self._drop(client)

    def ready(self, client: Client) -> None:
        """The selector found that it can be read, or written to."""
        if client.answer:
            self._send(client)
        elif client in self._clients:
            self._receive(client)

    def _receive(self, client: Client) -> None:
        try:
            part = client.socket.recv(REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._drop(client)
            return
        client.received += part
        line, end, _ = client.received.partition(b"\n")
        if len(line) > REQUEST_BYTES:
            error = UsageError(f"a request has at most {REQUEST_BYTES} bytes")
            self.reply(client, self._refuse(error))
        elif end:
            client.deadline = math.inf
            self._selector.unregister(client.socket)
            self._take(client, bytes(line))

    def reply(self, client: Client, answer: bytes) -> None:
        """Send an answer, as far as its buffer takes it now; the rest when ready()."""
        if client not in self._clients:
            return  # it has left
        client.answer += answer
        client.deadline = time.monotonic() + TIME_LIMIT_S
        try:
            self._selector.modify(client.socket, selectors.EVENT_WRITE, client)
        except KeyError:
            self._selector.register(client.socket, selectors.EVENT_WRITE, client)
        self._send(client)

    def _send(self, client: Client) -> None:
        try:
            sent = client.socket.send(client.answer)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        client.answer = client.answer[sent:]
        if not client.answer:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        if client in self._clients:
            del self._clients[client]
            with suppress(KeyError):
                self._selector.unregister(client.socket)
            client.socket.close()

    def wait_s(self) -> float:
        """How long until somebody is late."""
        first = min((client.deadline for client in self._clients), default=math.inf)
        return max(0.0, first - time.monotonic())

    def drop_late(self) -> None:
        now_s = time.monotonic()
        for client in [one for one in self._clients if one.deadline <= now_s]:
            self._drop(client)

    def end(self, error: TcpkmonError) -> None:
        """Tell all who wait, as far as they read it at once."""
        for client in list(self._clients):
            if not client.answer:
                self.reply(client, self._refuse(error))
            self._drop(client)
