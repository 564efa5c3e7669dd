# SPDX-License-Identifier: Apache-2.0
"""What programs do in the scenarios of unseen_more.py: relays, players, databases, chats, ..."""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.pair import Pair, join, receive
from tests.truth.why import acts, exchanges
from tests.truth.why.acts import Act, Clock

REQUEST = 100
_NOTSENT_LOWAT, _WINDOW_CLAMP = 25, 10
_HASHING = """
import hashlib, socket, sys
end, block = socket.socket(fileno=int(sys.argv[1])), bytes(4096)
while True:
    for _ in range(int(sys.argv[2])):
        hashlib.sha256(block)
    end.sendall(block)
"""
_DRAINING = """
import contextlib, socket, sys
end = socket.socket(fileno=int(sys.argv[1]))
with contextlib.suppress(OSError):  # at the end it is reset
    while end.recv(1 << 20):
        pass
"""


def _nodelay(end: socket.socket) -> None:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


# Messages


def replies(*sizes: int) -> Act:
    """A server: to each request the next of these answers."""

    def send(pair: Pair, clock: Clock) -> None:
        _nodelay(pair.client)
        for size in itertools.cycle(sizes):
            receive(pair.client, REQUEST)
            pair.client.sendall(bytes(size))

    return send


def asks(*sizes: int, every_s: float = 0.0) -> Act:
    """Its client: a request when the last answer is complete, not more often than that."""

    def read(pair: Pair, clock: Clock) -> None:
        for size in itertools.cycle(sizes):
            begin = time.monotonic()
            pair.server.sendall(bytes(REQUEST))
            receive(pair.server, size)
            time.sleep(max(0.0, begin + every_s - time.monotonic()))

    return read


def timed(*sizes: int, every_s: float, until_s: float = 1e9, again_s: float = 1e9) -> Act:
    """Messages of these sizes in turn, by the clock; none between these two times."""

    def send(pair: Pair, clock: Clock) -> None:
        _nodelay(pair.client)
        begin = due = time.monotonic()
        for size in itertools.cycle(sizes):
            pair.client.sendall(bytes(size))
            due += every_s
            if begin + until_s < due < begin + again_s:
                due = begin + again_s
            time.sleep(max(0.0, due - time.monotonic()))

    return send


def header_and_body(header: int, body: int) -> Act:
    """Two writes, then the answer is waited for. Nagle holds back the body's last segment."""

    def send(pair: Pair, clock: Clock) -> None:
        while clock.goes_on:
            pair.client.sendall(bytes(header))
            pair.client.sendall(bytes(body))
            receive(pair.client, REQUEST)

    return send


def header_and_file(header: int, size: int, disk_s: float) -> Act:
    """Corks a header, waits for the disk, sends a file, uncorks. Truths by its own clock."""

    def send(pair: Pair, clock: Clock) -> None:
        end, level, cork = pair.client, socket.IPPROTO_TCP, socket.TCP_CORK
        with _file(size) as file:
            for number in itertools.count():
                end.setsockopt(level, cork, 1)
                begin = time.monotonic()
                end.sendall(bytes(header))
                time.sleep(disk_s)
                disk = time.monotonic()
                os.sendfile(end.fileno(), file, 0, size)
                end.setsockopt(level, cork, 0)
                acts.wait_until_sent(end, clock, 0.0003)
                sent = time.monotonic()
                receive(end, REQUEST)
                answered = time.monotonic()
                if number > 2 and clock.goes_on:
                    clock.spans.append((begin + 0.0005, disk - 0.0005, ("nagle",)))
                    clock.spans.append((sent + 0.0005, answered - 0.0005, ("app", "idle")))

    return send


@contextmanager
def _file(size: int) -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        yield file.fileno()


# Senders


def low_water(most_unsent: int) -> Act:
    """Writes a little when poll() says so, and TCP_NOTSENT_LOWAT bounds what is unsent."""

    def send(pair: Pair, clock: Clock) -> None:
        end = pair.client
        end.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, most_unsent)
        poll = select.poll()
        poll.register(end, select.POLLOUT)
        while clock.goes_on:
            if poll.poll(100):
                with suppress(BlockingIOError):
                    end.send(bytes(most_unsent), socket.MSG_DONTWAIT)

    return send


def file_and_close(size: int) -> Act:
    """A web server: sendfile(), and close at once."""

    def send(pair: Pair, clock: Clock) -> None:
        sent = 0
        with _file(size) as file:
            while sent < size:
                sent += os.sendfile(pair.client.fileno(), file, sent, size - sent)
        pair.client.close()

    return send


def lingering_close(size: int) -> Act:
    """Writes and closes; close() waits for the last ACK (SO_LINGER)."""

    def send(pair: Pair, clock: Clock) -> None:
        pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10))
        pair.client.sendall(bytes(size))
        pair.client.close()

    return send


def quota_writer(percent: float, work: int) -> Act:
    """A process hashes, then writes 4 kB, with so much of a CPU (a quota each 50 ms)."""

    def send(pair: Pair, clock: Clock) -> None:
        _nodelay(pair.client)
        with (
            exchanges.quota(percent) as group,
            acts.program(pair.client, _HASHING, work) as process,
        ):
            (group / "tasks").write_text(str(process.pid))
            time.sleep(max(0.0, clock.until - time.monotonic()))
            process.kill()

    return send


# Readers


def starts_late(after_s: float) -> Act:
    """Reads nothing for so long, then all that comes."""

    def read(pair: Pair, clock: Clock) -> None:
        time.sleep(after_s)
        acts.drain(pair, clock)

    return read


def player(reads_s: float, pauses_s: float) -> Act:
    """Reads all that comes for a while, then nothing for a while: its own buffer is full."""

    def read(pair: Pair, clock: Clock) -> None:
        while clock.goes_on:
            until = time.monotonic() + reads_s
            while time.monotonic() < until:
                if not pair.server.recv(1 << 20):
                    return
            time.sleep(pauses_s)

    return read


def gulps(every_s: float) -> Act:
    """Sleeps, then reads all that has come."""

    def read(pair: Pair, clock: Clock) -> None:
        while clock.goes_on:
            time.sleep(every_s)
            with suppress(BlockingIOError):
                while pair.server.recv(1 << 20, socket.MSG_DONTWAIT):
                    pass

    return read


def changing_reader(fast_s: float, size: int, every_s: float, slow_s: float) -> Act:
    """Reads all that comes for a while, then slowly for a while."""

    def read(pair: Pair, clock: Clock) -> None:
        while clock.goes_on:
            until = time.monotonic() + fast_s
            while time.monotonic() < until and pair.server.recv(1 << 20):
                pass
            until = time.monotonic() + slow_s
            while time.monotonic() < until and pair.server.recv(size):
                time.sleep(every_s)

    return read


def stopped(after_s: float, for_s: float) -> Act:
    """A process reads all that comes. Once it is stopped for so long, and goes on."""

    def read(pair: Pair, clock: Clock) -> None:
        with acts.program(pair.server, _DRAINING) as process:
            time.sleep(after_s)
            process.send_signal(signal.SIGSTOP)
            time.sleep(for_s)
            process.send_signal(signal.SIGCONT)
            time.sleep(max(0.0, clock.until - time.monotonic()))
            process.kill()

    return read


def clamped(most: int) -> Callable[[Lab, socket.socket], Pair]:
    """The reader's program bounds the window that it offers (TCP_WINDOW_CLAMP)."""

    def dial(lab: Lab, listener: socket.socket) -> Pair:
        listener.setsockopt(socket.IPPROTO_TCP, _WINDOW_CLAMP, most)
        return join(lab.a, listener, lab.b.address4, [acts.CUBIC])

    return dial
