# SPDX-License-Identifier: Apache-2.0
"""Answers scrapes: HTTP for clients that may be slow, many or hostile, in one thread.

A client has CLIENT_S for its whole request and answer. MOST_CLIENTS are served at once: one more
drives out the one that has been there longest, so that who sends a request at once gets its answer.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from tcpkmon.collector.commands.metrics_file import TextFile

CLIENT_S = 10.0
MOST_CLIENTS = 64
_MOST_BYTES = 8 << 10
"""Of a request."""
_PATHS = ("/metrics", "/")
Answer = Callable[[str], tuple[bytes, str]]
"""From the header Accept: the body and its type. It runs in a thread, once at a time."""


async def serve(
    registry: CollectorRegistry,
    listener: socket.socket | None,
    file: TextFile | None,
    interval_s: float,
    until: int | None = None,
) -> None:
    """Serve, and write the file each interval_s, until Ctrl-C. FileError.

    until: it ends, with CancelledError, when this descriptor, a pipe's, has no writer any more.
    """
    from prometheus_client import generate_latest
    from prometheus_client.exposition import choose_encoder

    def answer(accept: str) -> tuple[bytes, str]:
        encoder, kind = choose_encoder(accept)
        return encoder(registry), kind

    async def keep_writing(file: TextFile) -> None:
        while True:
            next_s = time.monotonic() + interval_s
            await asyncio.to_thread(lambda: file.write(generate_latest(registry)))
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))

    this = asyncio.current_task()
    if until is not None and this is not None:
        asyncio.get_running_loop().add_reader(until, this.cancel)
    tasks = [keep_writing(file)] if file is not None else []
    if listener is not None:
        tasks.append(Server(listener, answer).run())
    await asyncio.gather(*tasks)


class Server:
    """Serves at a listening socket, until the coroutine run() is cancelled."""

    def __init__(self, listener: socket.socket, answer: Answer) -> None:
        self._listener = listener
        self._answer = answer
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._turn = asyncio.Semaphore(1)

    async def run(self) -> None:
        server = await asyncio.start_server(
            self._begin, sock=self._listener, limit=_MOST_BYTES
        )
        async with server:
            await server.serve_forever()

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= MOST_CLIENTS:
            oldest = next(iter(self._clients))
            self._clients.pop(oldest).transport.abort()
            oldest.cancel()
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._clients[task] = writer
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        writer = self._clients.pop(task, None)
        if writer is not None:
            writer.transport.abort()  # what was to be sent is sent, or is too late
        if not task.cancelled():
            task.exception()  # a client that goes away, or says what is no request, is no news

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def talk() -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(await self._reply(head))
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        with suppress(OSError, EOFError, asyncio.LimitOverrunError, asyncio.TimeoutError):
            await asyncio.wait_for(talk(), CLIENT_S)

    async def _reply(self, head: bytes) -> bytes:
        first, *rest = head.decode("latin-1").split("\r\n")
        method, _, target = first.partition(" ")
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"only GET is answered\n", "text/plain")
        if urlsplit(target.partition(" ")[0]).path not in _PATHS:
            return _response("404 Not Found", b"the metrics are at /metrics\n", "text/plain")
        fields = (line.partition(":") for line in rest)
        accept = next((value for name, _, value in fields if name.lower() == "accept"), "")
        async with self._turn:
            loop = asyncio.get_running_loop()
            body, kind = await loop.run_in_executor(None, self._answer, accept)
        return _response("200 OK", body, kind, with_body=method == "GET")


def _response(status: str, body: bytes, kind: str, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
