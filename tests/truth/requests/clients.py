# SPDX-License-Identifier: Apache-2.0
"""Clients that note when they sent and received."""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from tests.truth.requests.truth import Exchange, chain

Size = Callable[[bytes], int]
"""How many bytes the answer has that begins so; 0: that is not known yet."""
clock = time.monotonic_ns


def fixed(size: int) -> Size:
    """All answers have so many bytes."""
    return lambda _: size


def resp(data: bytes) -> int:
    """One answer of redis."""
    head, found, _ = data.partition(b"\r\n")
    if not found:
        return 0
    body = int(head[1:]) if head[:1] == b"$" else -1  # -1: no such key
    return len(head) + 2 + (body + 2 if body >= 0 else 0)


def http(data: bytes) -> int:
    """One answer with a Content-Length."""
    head, found, _ = data.partition(b"\r\n\r\n")
    if not found:
        return 0
    (length,) = (line.split(b":")[1] for line in head.lower().split(b"\r\n")
                 if line.startswith(b"content-length:"))  # fmt: skip
    return len(head) + 4 + int(length)


def command(*words: bytes) -> bytes:
    """A command of redis."""
    parts = [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"*%d\r\n%s" % (len(words), b"".join(parts))


def get(path: str, close: bool = False) -> bytes:
    """A request of HTTP/1.1."""
    kept = "close" if close else "keep-alive"
    return f"GET {path} HTTP/1.1\r\nHost: truth\r\nConnection: {kept}\r\n\r\n".encode()


class Talk:
    """A connection on which one request follows the other; found: what it noted.

    since: from when on it may ask, 0: unknown.
    """

    def __init__(self, address: str, port: int, tls: bool = False) -> None:
        self.end = socket.create_connection((address, port))
        self.end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ports = (self.end.getsockname()[1], port)
        self.found: list[Exchange] = []
        self.since = clock()
        self._tls = tls
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            self.end = context.wrap_socket(self.end)
            # The hello and its answer; the client's Finished and the server's tickets.
            self.found += [Exchange(*self.ports), Exchange(*self.ports)]
            time.sleep(0.02)
            self.since = 0  # nobody has read the tickets yet

    def ask(
        self, *parts: bytes, size: Size = resp, pause_s: float = 0.0, late_s: float = 0.0,
        piece: int = 1 << 18, rest_s: float = 0.0, ends: bool = False,
    ) -> Exchange:  # fmt: skip
        """Sends the parts, with pauses between them, and receives the answer.

        late_s: so long after the answer arrived it is read. piece, rest_s: it is read so many bytes
        at a time, with rests. ends: nothing will be sent any more.
        """
        one = Exchange(*self.ports, send=clock())
        for number, part in enumerate(parts):
            if number:
                time.sleep(pause_s)
            one.final = clock()
            self.end.sendall(part)
        one.sent = clock()
        if ends:
            self.end.shutdown(socket.SHUT_WR)
        if late_s:
            self._wait_until_there()
            there = clock()
            time.sleep(late_s)
            asleep = clock()
        head, got, whole = b"", 0, 0
        while not whole or got < whole:
            if got and rest_s:
                time.sleep(rest_s)
            data = self.end.recv(piece)
            one.last = clock()
            if not data:
                raise ConnectionError(f"the server closed after {got} bytes")
            one.first = one.first or one.last
            got += len(data)
            if not whole:
                head += data
                whole = size(head)
        if late_s:
            one.read = (asleep - there, one.last - there)
        if not self._tls:
            one.asked, one.answered = sum(map(len, parts)), got
        one.idle = one.send - self.since if self.since else -1
        self.since = one.last
        self.found.append(one)
        return one

    def _wait_until_there(self) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.end, selectors.EVENT_READ)
            waiting.select()

    def close(self) -> list[Exchange]:
        self.end.close()
        return self.found


def storm(
    address: str, port: int, requests: Sequence[Iterable[bytes]], size: Size,
    ends: Sequence[socket.socket] = (), outstanding: int = 1, pause_s: float = 0.0,
) -> list[Exchange]:  # fmt: skip
    """Many connections in one thread; on each the next request follows the answer at once.

    requests: those of each connection, in one piece each. ends: connections that are open.
    outstanding: so many requests are on their way at a time, whose answers come in order.
    pause_s: before each request.
    """
    ends = ends or [socket.create_connection((address, port)) for _ in requests]
    lines = [_Line(end, port, iter(one), size) for end, one in zip(ends, requests, strict=True)]
    with selectors.DefaultSelector() as waiting:
        for line in lines:
            waiting.register(line.end, selectors.EVENT_READ, line)
            for _ in range(outstanding):
                line.send()
        busy = len(lines)
        later: list[tuple[int, _Line]] = []
        while busy:
            timeout = max(0.0, (later[0][0] - clock()) / 1e9) if later else None
            for key, _ in waiting.select(timeout):
                for _ in range(key.data.receive()):
                    if pause_s:
                        later.append((clock() + int(1e9 * pause_s), key.data))
                    else:
                        key.data.send()
                if key.data.done:
                    waiting.unregister(key.data.end)
                    busy -= 1
            while later and later[0][0] <= clock():
                line = later.pop(0)[1]
                line.send()
                if line.done:
                    waiting.unregister(line.end)
                    busy -= 1
    for line in lines:
        line.end.close()
        if outstanding == 1:
            chain(line.found)
    return [one for line in lines for one in line.found]


class _Line:
    """A connection of a storm."""

    def __init__(self, end: socket.socket, port: int, requests: Iterable[bytes], size: Size):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.end, self.found = end, list[Exchange]()
        self._requests, self._size = iter(requests), size
        self._ports = (end.getsockname()[1], port)
        self._data, self._answered, self._ended = b"", 0, False

    def send(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._ended = True
            return
        one = Exchange(*self._ports, send=clock(), asked=len(request))
        one.final = one.send
        self.end.sendall(request)
        one.sent = clock()
        self.found.append(one)

    def receive(self) -> int:
        """How many answers are complete now."""
        self._data += self.end.recv(1 << 16)
        now, count = clock(), 0
        while self._data:
            one = self.found[self._answered]
            one.first = one.first or now
            whole = self._size(self._data)
            if not whole or len(self._data) < whole:
                break
            one.last, one.answered = now, whole
            self._data = self._data[whole:]
            self._answered += 1
            count += 1
        return count

    @property
    def done(self) -> bool:
        return self._ended and self._answered == len(self.found)


def by_connection(found: Iterable[Exchange]) -> dict[tuple[int, int], list[Exchange]]:
    """The exchanges of each pair of ports, in their order."""
    each: dict[tuple[int, int], list[Exchange]] = defaultdict(list)
    for one in found:
        each[one.client, one.server].append(one)
    return each
