# SPDX-License-Identifier: Apache-2.0
"""Cases with a server of Python's asyncio: pauses, halves, greetings, many requests at a time."""

from __future__ import annotations

import random
import selectors
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.truth.requests import answering
from tests.truth.requests.clients import Talk, by_connection, clock, fixed, storm
from tests.truth.requests.stage import Stage
from tests.truth.requests.truth import Exchange

PORT = 7000
Found = list[Exchange]


@contextmanager
def server(stage: Stage, kind: str, port: int = PORT, address: str = "") -> Iterator[Path]:
    """A server of answering.py; its log."""
    log = stage.folder / f"{kind}.log"
    command = [sys.executable, "-I", answering.__file__, kind, address or stage.address, str(port),
               str(log)]  # fmt: skip
    with stage.serving(command, port):
        yield log


def read_log(log: Path) -> list[tuple[int, int]]:
    """Of each request the client's port, and what the server needed [ns]."""
    rows = (map(int, line.split()) for line in log.read_text().splitlines())
    return [(port, written - there) for port, there, written in rows]


def with_log(found: Found, log: Path) -> Found:
    """The exchanges with the server's times."""
    needed = defaultdict(list)
    for port, ns in read_log(log):
        needed[port].append(ns)
    for (client, _), each in by_connection(found).items():
        for one, think in zip(each, needed[client], strict=True):
            one.think = think
    return found


def request(size: int = 100, think_ms: float = 0, answer: int = 100, pause_ms: float = 0) -> bytes:
    """One of the plain kinds."""
    head = b"%d %d %d %d\n" % (size, think_ms * 1000, answer, pause_ms * 1000)
    return head + bytes(size)


def _captured(stage: Stage, kind: str, play: Callable[[], Found]) -> Found:
    """What is played against such a server under a capture, with the server's times."""
    with server(stage, kind) as log:
        with stage.capturing():
            found = stage.client(play)
        return with_log(found, log)


def talk(
    stage: Stage, kind: str, count: int, *, size: int = 100, answer: int = 100, wait_ms: float = 0,
    think_ms: float = 0, halves_ms: float = 0, parts_ms: float = 0, late_ms: float = 0,
    rest_ms: float = 0,
) -> Found:  # fmt: skip
    """One connection, so many requests. Each time is the longest of chosen ones, but rest_ms: of
    waiting before a request, of the server's thinking, between the halves of the answer and the
    parts of the request, until the answer is read, and between its pieces."""
    chance = random.Random(f"{kind} {count}")

    def some(most_ms: float) -> float:
        return chance.uniform(0.1, 1.0) * most_ms

    def play() -> Found:
        talk = Talk(stage.address, PORT)
        if kind == "greeting":
            talk.end.recv(100)
            talk.since = clock()
        for _ in range(count):
            time.sleep(some(wait_ms) / 1000)
            one = request(size, some(think_ms), answer, some(halves_ms))
            parts = (one[:40], one[40:]) if parts_ms else (one,)
            talk.ask(*parts, size=fixed(answer), pause_s=some(parts_ms) / 1000,
                     late_s=some(late_ms) / 1000, rest_s=rest_ms / 1000, piece=1 << 16)  # fmt: skip
        time.sleep(0.15 if kind == "pushing" else 0.0)
        return talk.close()

    return _captured(stage, kind, play)


def pushing(stage: Stage) -> Found:
    """Behind each answer there is more; the exchange lasts until the next request."""
    found = talk(stage, "pushing", 1)
    for one in found:
        one.answered, one.last = -1, 0
    return found


def half_closing(stage: Stage) -> Found:
    """Each connection has one request, after which the client's direction ends."""
    chance = random.Random("half")

    def play() -> Found:
        found = []
        for _ in range(40):
            talk = Talk(stage.address, PORT)
            talk.ask(request(think_ms=chance.uniform(3, 30)), size=fixed(100), ends=True)
            found += talk.close()
        return found

    return _captured(stage, "plain", play)


def crowd(stage: Stage) -> Found:
    """Sixteen connections at once."""
    chance = random.Random("crowd")
    requests = [[request(think_ms=chance.uniform(1, 20)) for _ in range(60)] for _ in range(16)]
    return _captured(stage, "plain", lambda: storm(stage.address, PORT, requests, fixed(100),
                                                   pause_s=0.002))  # fmt: skip


def in_order(stage: Stage) -> Found:
    """Four requests are on their way at a time, and answered in their order."""
    chance = random.Random("ordered")
    ask = answering.REQUEST.pack
    requests = [[ask(n, int(chance.uniform(2000, 20000)), 100) for n in range(150)]]
    return _captured(stage, "ordered", lambda: storm(stage.address, PORT, requests, fixed(100),
                                                     outstanding=4))  # fmt: skip


def frames(stage: Stage) -> Found:
    """Up to eight requests at a time, whose answers' frames are mixed."""
    with server(stage, "frames"), stage.capturing():
        return stage.client(lambda: _ask_in_frames(stage.address, 300))


def _ask_in_frames(address: str, count: int) -> Found:
    chance = random.Random("frames")
    end = socket.create_connection((address, PORT))
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found: Found = []
    missing: dict[int, int] = {}
    ports, data = (end.getsockname()[1], PORT), b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(end, selectors.EVENT_READ)
        while len(found) < count or missing:
            while len(found) < count and len(missing) < 8:
                number, size = len(found), chance.randint(100, 6000)
                asked = answering.REQUEST.pack(number, int(chance.uniform(1000, 30000)), size)
                one = Exchange(*ports, send=clock(), asked=len(asked))
                end.sendall(asked)
                one.sent, one.final, one.answered = clock(), one.send, 0
                found.append(one)
                missing[number] = size
                if chance.random() < 0.3:
                    break
            if not waiting.select(chance.uniform(0, 0.004)):
                continue
            came = end.recv(1 << 16)
            now = clock()
            if not came:
                raise ConnectionError("the server closed")
            data += came
            while len(data) >= 16:
                number, part = answering.FRAME.unpack(data[:16])
                if len(data) < 16 + part:
                    break
                data = data[16 + part :]
                one = found[number]
                one.first, one.last = one.first or now, now
                one.answered += 16 + part
                missing[number] -= part
                if not missing[number]:
                    del missing[number]
    end.close()
    return found
