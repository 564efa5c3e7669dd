# SPDX-License-Identifier: Apache-2.0
"""Cases with redis, whose SLOWLOG tells how long each command took."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.truth.requests.clients import (
    Size,
    Talk,
    by_connection,
    command,
    fixed,
    resp,
    storm,
)
from tests.truth.requests.stage import Stage
from tests.truth.requests.truth import Exchange

PORT, MOST = 6379, 300_000
Found = list[Exchange]


@contextmanager
def server(stage: Stage) -> Iterator[str]:
    """A server that logs each command; the path of a socket that no capture sees."""
    path = str(stage.folder / "redis.sock")
    options = {
        "port": PORT, "bind": stage.address, "unixsocket": path, "dir": str(stage.folder),
        "save": "", "enable-debug-command": "yes", "slowlog-log-slower-than": 0,
        "slowlog-max-len": MOST, "daemonize": "no",
    }  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with stage.serving(["redis-server", *words], PORT):
        yield path


def read_log(path: str) -> dict[int, list[int]]:
    """How long each command of a client's port took [ns], in their order."""
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(path)
        file = end.makefile("rb")
        end.sendall(command(b"SLOWLOG", b"GET", b"-1"))

        def read() -> object:
            line = file.readline()
            if line[:1] == b"*":
                return [read() for _ in range(int(line[1:]))]
            if line[:1] == b"$":
                return file.read(int(line[1:]) + 2)[:-2]
            return int(line[1:])

        rows = read()
    took: dict[int, list[int]] = defaultdict(list)
    assert isinstance(rows, list)
    for _, _, us, _, address, *_ in reversed(rows):
        took[int(address.rpartition(b":")[2]) if b"/" not in address else 0].append(us * 1000)
    return took


def with_log(found: Found, path: str, batch: int = 1) -> Found:
    """The exchanges with what redis logged; batch: so many commands are one request."""
    took = read_log(path)
    for (client, _), each in by_connection(found).items():
        every = took[client]
        sums = [sum(every[n : n + batch]) for n in range(0, len(every), batch)]
        for one, think in zip(each, sums, strict=True):
            one.think = think
    return found


def sleep(ms: float) -> bytes:
    return command(b"DEBUG", b"SLEEP", b"%.4f" % (ms / 1000))


def _captured(stage: Stage, play: Callable[[], Found], batch: int = 1) -> Found:
    """What is played against a server under a capture, with the server's log."""
    with server(stage) as log:
        with stage.capturing():
            found = stage.client(play)
        return with_log(found, log, batch)


def _storm(stage: Stage, requests: Sequence[Sequence[bytes]], size: Size = resp, batch: int = 1,
           outstanding: int = 1, pause_s: float = 0.0) -> Found:  # fmt: skip
    """Connections with these requests, as clients.storm() has them."""

    def play() -> Found:
        return storm(stage.address, PORT, requests, size, outstanding=outstanding, pause_s=pause_s)

    return _captured(stage, play, batch)


def _talking(stage: Stage, act: Callable[[Talk], object]) -> Callable[[], Found]:
    """One connection on which this happens."""

    def play() -> Found:
        talk = Talk(stage.address, PORT)
        act(talk)
        return talk.close()

    return play


def _sleeping(talk: Talk, count: int, most_ms: float = 100) -> None:
    chance = random.Random("sleep")
    for _ in range(count):
        time.sleep(chance.uniform(0, 0.02))
        talk.ask(sleep(chance.uniform(1, most_ms)))


def sleeps(stage: Stage, count: int = 60) -> Found:
    """DEBUG SLEEP of 1 to 100 ms, with pauses of up to 20 ms."""
    return _captured(stage, _talking(stage, lambda talk: _sleeping(talk, count)))


def long_sleeps(stage: Stage) -> Found:
    """What issue 24 saw: DEBUG SLEEP 0.4, again and again."""
    return _captured(stage, _talking(stage, lambda talk: [talk.ask(sleep(400)) for _ in range(8)]))


def open_before(stage: Stage) -> Found:
    """The connection is older than the capture, and had requests."""
    with server(stage) as log:
        talk = stage.client(lambda: Talk(stage.address, PORT))
        _sleeping(talk, 5, 5)
        with stage.capturing():
            stage.client(lambda: _sleeping(talk, 40))
        found = with_log(talk.close(), log)[5:]
        found[0].idle = -1
        return found


def one_blocks(stage: Stage) -> Found:
    """One connection lets redis sleep; the requests of fifteen others wait for that."""
    requests = [[command(b"PING")] * 120 for _ in range(15)]

    def block(talk: Talk) -> None:
        for _ in range(12):
            talk.ask(sleep(40))
            time.sleep(0.02)

    def play() -> Found:
        talk = Talk(stage.address, PORT)
        thread = threading.Thread(target=block, args=(talk,))
        thread.start()
        found = storm(stage.address, PORT, requests, resp, pause_s=0.004)
        thread.join()
        return found + talk.close()

    return _captured(stage, play)


def get_set(stage: Stage, count: int = 100_000) -> Found:
    """GET and SET, 16 connections, 100,000 requests."""
    chance = random.Random("get")
    requests = []
    for _ in range(16):
        words = [b"key:%d" % chance.randrange(1000) for _ in range(count // 16)]
        requests.append([
            command(b"GET", word) if n % 2 else command(b"SET", word, b"x" * (n % 300))
            for n, word in enumerate(words)
        ])  # fmt: skip
    return _storm(stage, requests)


def batches(stage: Stage, size: int = 50, count: int = 500) -> Found:
    """Batches of commands on 4 connections, each in one write, after the answer to the last one."""
    batch = b"".join(command(b"SET", b"key:%d" % n, b"x" * 10) for n in range(size))
    return _storm(stage, [[batch] * count] * 4, fixed(5 * size), size)


def sleeping_batches(stage: Stage) -> Found:
    """Batches in which redis sleeps between two answers."""
    batch = command(b"PING") + sleep(20) + command(b"PING") + sleep(10)
    return _storm(stage, [[batch] * 40], fixed(2 * 7 + 2 * 5), 4, pause_s=0.005)


def many_at_a_time(stage: Stage) -> Found:
    """Eight commands are on their way at a time, a new one follows each answer."""
    chance = random.Random("eight")
    return _storm(stage, [[sleep(chance.uniform(1, 12)) for _ in range(200)]], outstanding=8)


def large_answers(stage: Stage, rest_s: float = 0.0, count: int = 20) -> Found:
    """GET of 8 MB."""

    def get(talk: Talk) -> None:
        for _ in range(count):
            time.sleep(0.005)
            talk.ask(command(b"GET", b"large"), rest_s=rest_s)

    with server(stage) as log:
        stage.client(_talking(stage, lambda talk: talk.ask(_LARGE)))
        with stage.capturing():
            found = stage.client(_talking(stage, get))
        return with_log(found, log)


def slow_reader(stage: Stage) -> Found:
    """GET of 8 MB by a client that rests 3 ms before each 256 kB."""
    return large_answers(stage, 0.003, 10)


def large_requests(stage: Stage) -> Found:
    """SET of 8 MB."""

    def put(talk: Talk) -> None:
        for _ in range(20):
            time.sleep(0.005)
            talk.ask(_LARGE)

    return _captured(stage, _talking(stage, put))


_LARGE = command(b"SET", b"large", bytes(8_000_000))
