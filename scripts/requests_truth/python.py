# SPDX-License-Identifier: Apache-2.0
"""Cases with a server of Python's asyncio: pauses, halves, greetings, many requests at a time."""

from __future__ import annotations

import random
import selectors
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.requests_truth import answering
from scripts.requests_truth.clients import Talk, by_connection, clock, fixed, storm
from scripts.requests_truth.stage import Stage
from scripts.requests_truth.truth import Exchange

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


def _talk(stage: Stage, kind: str, count: int, **how: object) -> Found:
    """One connection, so many requests, with these ways of client and server."""
    chance = random.Random(f"{kind} {sorted(how)}")
    pauses, think, halves = (how.get(name) for name in ("wait_ms", "think_ms", "halves_ms"))

    def some(most: object) -> float:
        return chance.uniform(0.1, 1.0) * float(str(most)) if most else 0.0

    def play() -> Found:
        talk = Talk(stage.address, PORT)
        if kind == "greeting":
            talk.end.recv(100)
            talk.since = clock()
        for _ in range(count):
            time.sleep(some(pauses) / 1000)
            one = request(int(str(how.get("size", 100))), some(think),
                          int(str(how.get("answer", 100))), some(halves))  # fmt: skip
            parts = (one[:40], one[40:]) if how.get("parts_ms") else (one,)
            talk.ask(*parts, size=fixed(int(str(how.get("answer", 100)))),
                     pause_s=some(how.get("parts_ms")) / 1000,
                     late_s=some(how.get("late_ms")) / 1000,
                     rest_s=float(str(how.get("rest_ms", 0))) / 1000, piece=1 << 16)  # fmt: skip
        time.sleep(0.15 if kind == "pushing" else 0.0)
        return talk.close()

    with server(stage, kind) as log:
        with stage.capturing():
            found = stage.client(play)
        return with_log(found, log)


def client_pauses(stage: Stage) -> Found:
    return _talk(stage, "plain", 60, wait_ms=50)


def server_thinks(stage: Stage) -> Found:
    return _talk(stage, "plain", 60, think_ms=60, wait_ms=5)


def request_in_parts(stage: Stage) -> Found:
    return _talk(stage, "plain", 50, parts_ms=60)


def answer_in_halves(stage: Stage) -> Found:
    return _talk(stage, "plain", 50, halves_ms=60)


def late_reader(stage: Stage) -> Found:
    return _talk(stage, "plain", 50, late_ms=60)


def large_upload(stage: Stage) -> Found:
    return _talk(stage, "plain", 20, size=8_000_000, think_ms=5, wait_ms=5)


def slow_reader(stage: Stage) -> Found:
    return _talk(stage, "plain", 10, answer=5_000_000, rest_ms=3)


def far(stage: Stage) -> Found:
    return _talk(stage, "plain", 40, think_ms=30, wait_ms=20)


def greeting(stage: Stage) -> Found:
    return _talk(stage, "greeting", 40, think_ms=20, wait_ms=5)


def pushing(stage: Stage) -> Found:
    """Behind each answer there is more; the exchange lasts until the next request."""
    found = _talk(stage, "pushing", 1)
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

    with server(stage, "plain") as log:
        with stage.capturing():
            found = stage.client(play)
        return with_log(found, log)


def crowd(stage: Stage) -> Found:
    """Sixteen connections at once."""
    chance = random.Random("crowd")
    requests = [[request(think_ms=chance.uniform(1, 20)) for _ in range(60)] for _ in range(16)]
    with server(stage, "plain") as log:
        with stage.capturing():
            found = stage.client(lambda: storm(stage.address, PORT, requests, fixed(100),
                                               pause_s=0.002))  # fmt: skip
        return with_log(found, log)


def in_order(stage: Stage) -> Found:
    """Four requests are on their way at a time, and answered in their order."""
    chance = random.Random("ordered")
    ask = answering.REQUEST.pack
    requests = [[ask(n, int(chance.uniform(2000, 20000)), 100) for n in range(150)]]
    with server(stage, "ordered") as log:
        with stage.capturing():
            found = stage.client(lambda: storm(stage.address, PORT, requests, fixed(100),
                                               outstanding=4))  # fmt: skip
        return with_log(found, log)


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
