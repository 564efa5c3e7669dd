# SPDX-License-Identifier: Apache-2.0
"""Servers of Python's asyncio that note when they had a request and when they answered.

A program of its own: answering.py KIND ADDRESS PORT LOG. In LOG each answer is a line: the client's
port, when its request was there, when the answer was written (CLOCK_MONOTONIC, ns). KIND:

plain     a request is `BODY THINK_US ANSWER PAUSE_US` and BODY bytes. The answer comes in two
          halves with a pause between them.
greeting  the same, and the server sends a line first.
pushing   the same, and 20 ms after the answer the server sends 100 bytes more, five times.
http      HTTP/1.1, `GET /THINK_US/BYTES`.
frames    many requests at a time: frames with a number, `NUMBER THINK_US ANSWER`, of 24 bytes. The
          answer is frames of `NUMBER LENGTH` (16 bytes) and data, at most 1000 bytes each, in any
          order.
ordered   the same requests, answered one after the other, by one frame without a head each.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from asyncio import StreamReader, StreamWriter

REQUEST, FRAME, GREETING = struct.Struct("!QQQ"), struct.Struct("!QQ"), b"220 ready\n"
clock = time.monotonic_ns


class Server:
    """Answers in one of the kinds."""

    def __init__(self, kind: str, path: str) -> None:
        self._kind, self._log = kind, open(path, "w", buffering=1)  # noqa: SIM115

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        port = writer.get_extra_info("peername")[1]
        try:
            if self._kind == "frames":
                await self._frames(reader, writer, port)
            elif self._kind == "ordered":
                await self._ordered(reader, writer, port)
            elif self._kind == "http":
                await self._http(reader, writer, port)
            else:
                await self._plain(reader, writer, port)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    def note(self, port: int, there: int, written: int) -> None:
        self._log.write(f"{port} {there} {written}\n")

    async def _plain(self, reader: StreamReader, writer: StreamWriter, port: int) -> None:
        if self._kind == "greeting":
            await asyncio.sleep(0.03)
            writer.write(GREETING)
        while line := await reader.readline():
            body, think_us, answer, pause_us = map(int, line.split())
            await reader.readexactly(body)
            there = clock()
            if think_us:
                await asyncio.sleep(think_us / 1e6)
            half = answer // 2 if pause_us else answer
            written = clock()
            writer.write(bytes(half))
            if pause_us:
                await asyncio.sleep(pause_us / 1e6)
                writer.write(bytes(answer - half))
            self.note(port, there, written)
            await writer.drain()
            if self._kind == "pushing":
                for _ in range(5):
                    await asyncio.sleep(0.02)
                    writer.write(bytes(100))

    async def _http(self, reader: StreamReader, writer: StreamWriter, port: int) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            there = clock()
            _, think_us, size = head.split(b" ")[1].split(b"/")
            await asyncio.sleep(int(think_us) / 1e6)
            written = clock()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % int(size)
                         + bytes(int(size)))  # fmt: skip
            self.note(port, there, written)
            await writer.drain()

    async def _frames(self, reader: StreamReader, writer: StreamWriter, port: int) -> None:
        tasks = set()
        while True:
            number, think_us, answer = REQUEST.unpack(await reader.readexactly(REQUEST.size))
            task = asyncio.create_task(self._frame(writer, port, number, think_us, answer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _frame(
        self, writer: StreamWriter, port: int, number: int, think_us: int, answer: int
    ) -> None:
        there = clock()
        await asyncio.sleep(think_us / 1e6)
        written = clock()
        while answer:
            part = min(answer, 1000)
            writer.write(FRAME.pack(number, part) + bytes(part))
            answer -= part
            await asyncio.sleep(0.0005)
        self.note(port, there, written)

    async def _ordered(self, reader: StreamReader, writer: StreamWriter, port: int) -> None:
        while True:
            _, think_us, answer = REQUEST.unpack(await reader.readexactly(REQUEST.size))
            there = clock()
            await asyncio.sleep(think_us / 1e6)
            self.note(port, there, clock())
            writer.write(bytes(answer))


async def main(kind: str, address: str, port: int, path: str) -> None:
    server = await asyncio.start_server(Server(kind, path).serve, address, port, limit=1 << 24)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
