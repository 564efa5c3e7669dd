# SPDX-License-Identifier: Apache-2.0
"""What a sender, a reader and the network do in a scenario."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.pair import Pair

CHUNK = 64 << 10
CUBIC = (socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
_UNSENT = 0x894B  # SIOCOUTQNSD
_SNDBUFFORCE = 32
_REPAIR, _REPAIR_QUEUE, _QUEUE_SEQ, _SEND_QUEUE = 19, 20, 21, 2


Span = tuple[float, float, tuple[str, ...]]
"""From when until when (CLOCK_MONOTONIC, s) which limits are true."""


@dataclass
class Clock:
    """until: when the scenario ends (time.monotonic). sharp_until: when its truth does, if before.

    lab: where it is played. spans: where its truth changes, what an act knows of it.
    """

    until: float
    lab: Lab
    sharp_until: float = float("inf")
    spans: list[Span] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.until


Act = Callable[[Pair, Clock], None]


def writes(size: int) -> Act:
    """Sends as fast as it can, so many bytes a call."""

    def send(pair: Pair, clock: Clock) -> None:
        data = bytes(size)
        while clock.goes_on:
            pair.client.send(data)

    return send


bulk = writes(CHUNK)


def trickle(size: int, every_s: float) -> Act:
    """Sends some bytes now and then."""

    def send(pair: Pair, clock: Clock) -> None:
        while clock.goes_on:
            pair.client.sendall(bytes(size))
            time.sleep(every_s)

    return send


def once(size: int, truth: Sequence[str] = ()) -> Act:
    """Sends so many bytes; the truth is sharp until TCP has sent the last one. truth: from the
    write on, where the time before it does not count."""

    def send(pair: Pair, clock: Clock) -> None:
        begin = time.monotonic()
        pair.client.sendall(bytes(size))
        wait_until_sent(pair.client, clock)
        clock.sharp_until = time.monotonic() - 0.005
        if truth:
            clock.spans.append((begin, clock.sharp_until, tuple(truth)))

    return send


def closes(size: int, room: int = 4 << 20) -> Act:
    """Writes so many bytes and ends its direction; the truth is sharp as in once().

    room: that the send buffer has, with its overhead.
    """

    def send(pair: Pair, clock: Clock) -> None:
        pair.client.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, room)
        pair.client.sendall(bytes(size))
        pair.client.shutdown(socket.SHUT_WR)
        wait_until_sent(pair.client, clock)
        clock.sharp_until = time.monotonic() - 0.005

    return send


def unsent(end: socket.socket) -> int:
    """Bytes that were written, and that TCP has not sent yet."""
    return int(struct.unpack("i", fcntl.ioctl(end, _UNSENT, bytes(4)))[0])


def wait_until_sent(end: socket.socket, clock: Clock, step_s: float = 0.0005) -> None:
    while unsent(end) and clock.goes_on:
        time.sleep(step_s)


def ping_pong(pause_s: float = 0.0, parts: int = 1, size: int = 100) -> Act:
    """A request, written in parts of this size, and its answer, one at a time."""

    def send(pair: Pair, clock: Clock) -> None:
        while clock.goes_on:
            for _ in range(parts):
                pair.client.sendall(bytes(size))
            pair.client.recv(100)
            time.sleep(pause_s)

    return send


def corked(size: int, pause_s: float, more: bool = False) -> Act:
    """Requests of so many bytes whose end is corked: by TCP_CORK, or (more) by MSG_MORE."""

    def send(pair: Pair, clock: Clock) -> None:
        end = pair.client
        if not more:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        while clock.goes_on:
            end.send(bytes(size), socket.MSG_MORE if more else 0)
            time.sleep(pause_s)

    return send


def asking(*sizes: int) -> Act:
    """Requests in writes of so many bytes, each after the answer of 100 bytes to the last one."""

    def send(pair: Pair, clock: Clock) -> None:
        while clock.goes_on:
            for size in sizes:
                pair.client.sendall(bytes(size))
            pair.client.recv(100)
            clock.sharp_until = time.monotonic()

    return send


def computing(size: int, work_s: float) -> Act:
    """Computes for so long, then sends some bytes.

    It computes without Python's lock: the reader, a thread of the same process, must not wait for
    it, since a kernel delays the ACKs of what nobody reads.
    """

    def send(pair: Pair, clock: Clock) -> None:
        block = bytes(CHUNK)
        while clock.goes_on:
            until = time.thread_time() + work_s
            while time.thread_time() < until:
                hashlib.sha256(block)
            pair.client.sendall(bytes(size))

    return send


def starved(size: int) -> Act:
    """Sends as fast as it can, on a CPU that another program has: it runs when that does not."""

    def send(pair: Pair, clock: Clock) -> None:
        cpu = max(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpu})  # this thread alone
        code = (f"import os\nos.sched_setaffinity(0, {{{cpu}}})\n"
                f"while os.getppid() == {os.getpid()}: pass")  # fmt: skip
        with subprocess.Popen([sys.executable, "-I", "-c", code]) as other:
            try:
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
                data = bytes(size)
                while clock.goes_on:
                    pair.client.sendall(data)
            finally:
                other.kill()

    return send


def answer(size: int) -> Act:
    """Answers each request of so many bytes with 100 bytes."""

    def read(pair: Pair, clock: Clock) -> None:
        waiting = 0
        while data := pair.server.recv(CHUNK):
            waiting += len(data)
            for _ in range(waiting // size):
                pair.server.sendall(bytes(100))
            waiting %= size

    return read


def drain(pair: Pair, clock: Clock) -> None:
    """Reads all that comes."""
    while pair.server.recv(1 << 20):
        pass


def ended(read: Act) -> Act:
    """Ends the direction in which it sends nothing, then reads."""

    def shut(pair: Pair, clock: Clock) -> None:
        pair.server.shutdown(socket.SHUT_WR)
        read(pair, clock)

    return shut


def sleepy(size: int, every_s: float) -> Act:
    """Reads so many bytes, then sleeps."""

    def read(pair: Pair, clock: Clock) -> None:
        while clock.goes_on and pair.server.recv(size):
            time.sleep(every_s)

    return read


def no_reader(pair: Pair, clock: Clock) -> None:
    """Reads nothing."""
    while clock.goes_on:
        time.sleep(0.02)


def background(call: Callable[[], object]) -> None:
    """Call it in a thread; at the end its connection is shut down."""

    def quiet() -> None:
        with suppress(OSError):
            call()

    threading.Thread(target=quiet, daemon=True).start()


def duplex(read: Act, back: Act = bulk) -> Act:
    """b reads so, and sends back too; a reads all that comes."""

    def both(pair: Pair, clock: Clock) -> None:
        other = Pair(pair.server, pair.client)
        for act in (back, drain):
            background(partial(act, other, clock))
        read(pair, clock)

    return both


def program(end: socket.socket, code: str, *arguments: object) -> subprocess.Popen[bytes]:
    """A program of Python that has this end: its descriptor is the first argument."""
    words = [str(end.fileno()), *map(str, arguments)]
    return subprocess.Popen([sys.executable, "-I", "-c", code, *words], pass_fds=[end.fileno()])


def later(delay_s: float, call: Callable[[], object]) -> None:
    """Call it after so long, in a thread."""
    timer = threading.Timer(delay_s, call)
    timer.daemon = True
    timer.start()


def blackout(pair: Pair, clock: Clock) -> None:
    """After a third of the time, nothing gets through any more."""
    later((clock.until - time.monotonic()) / 3, lambda: clock.lab.drop(99.99))


def hole(after: int, for_s: float) -> Act:
    """One segment, so many bytes after the begin, does not arrive for so long; all others do.

    The connection sends with segments that the sender's device does not put together.
    """

    def disturb(pair: Pair, clock: Clock) -> None:
        low = _next_sequence(pair.client) + after
        ends = f"{low % 2**32}-{(low + 1447) % 2**32}"
        clock.lab.drop_all(f"meta length > 200 tcp sequence {ends}")
        later(for_s, lambda: clock.lab.drop(0))
        clock.sharp_until = time.monotonic() + for_s

    return disturb


def _next_sequence(end: socket.socket) -> int:
    """The number of the next byte to be written (TCP_REPAIR tells it)."""
    level = socket.IPPROTO_TCP
    end.setsockopt(level, _REPAIR, 1)
    end.setsockopt(level, _REPAIR_QUEUE, _SEND_QUEUE)
    found = struct.unpack("I", end.getsockopt(level, _QUEUE_SEQ, 4))[0]
    end.setsockopt(level, _REPAIR, -1)  # off, without a window probe
    return int(found)
