# SPDX-License-Identifier: Apache-2.0
"""What ends do in the scenarios that were never seen: answers, closes, corks, quotas."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.link import Way
from tcpkmon.collector.lab.pair import Pair, connected, make_socket
from tests.truth.why import acts, net
from tests.truth.why.acts import Act, Clock

_FASTOPEN, _QUOTA = 23, Path("/sys/fs/cgroup/cpu")
_READER = """
import hashlib, socket, sys, time
end = socket.socket(fileno=int(sys.argv[1]))
while data := end.recv(16384):
    for _ in range(int(sys.argv[2])):
        hashlib.sha256(data)
"""
_WRITER = """
import os, socket, sys
end = socket.socket(fileno=int(sys.argv[1]))
end.sendall(bytes(int(sys.argv[2])))
os._exit(0)
"""


def closing(size: int, half: bool = False) -> Act:
    """Writes so many bytes and closes at once; half: shuts down its half only."""

    def send(pair: Pair, clock: Clock) -> None:
        pair.client.sendall(bytes(size))
        if half:
            pair.client.shutdown(socket.SHUT_WR)
            pair.client.recv(1)
        else:
            pair.client.close()

    return send


def exits(size: int) -> Act:
    """A process of its own writes so many bytes, and ends."""

    def send(pair: Pair, clock: Clock) -> None:
        with acts.program(pair.client, _WRITER, size):
            pair.client.close()

    return send


def serve(pair: Pair, clock: Clock) -> None:
    """b sends as fast as it can."""
    acts.bulk(Pair(pair.server, pair.client), clock)


def fetch_half_closed(pair: Pair, clock: Clock) -> None:
    """a ends its half, and reads all that comes."""
    pair.client.shutdown(socket.SHUT_WR)
    acts.drain(Pair(pair.server, pair.client), clock)


def answers(size: int, pause_s: float) -> Act:
    """Answers of so many bytes; each waits for a request, then for so long."""

    def send(pair: Pair, clock: Clock) -> None:
        while clock.goes_on:
            pair.client.sendall(bytes(size))
            pair.client.recv(100, socket.MSG_WAITALL)
            time.sleep(pause_s)

    return send


def slow_device_answers(size: int, pause_s: float) -> Act:
    """Answers through a device of its own: tsq while TCP has bytes that it did not hand over."""

    def send(pair: Pair, clock: Clock) -> None:
        for number in range(1_000):
            begin = time.monotonic()
            pair.client.sendall(bytes(size))
            acts.wait_until_sent(pair.client, clock, 0.0003)
            sent = time.monotonic()
            pair.client.recv(100, socket.MSG_WAITALL)
            time.sleep(pause_s)
            if number and clock.goes_on:
                clock.spans.append((begin + 0.001, sent - 0.001, ("tsq",)))
                # what the device still holds: its queue, or nothing to send
                idle = ("app", "idle", "tsq")
                clock.spans.append((sent + 0.001, time.monotonic() - 0.001, idle))

    return send


def blocked(size: int, pause_s: float, truth: tuple[str, ...]) -> Act:
    """Answers; truth while send() blocks, by the application's clock, then it waits and pauses."""

    def send(pair: Pair, clock: Clock) -> None:
        started = time.monotonic()
        while clock.goes_on:
            begin = time.monotonic()
            pair.client.sendall(bytes(size))
            written = time.monotonic()
            pair.client.recv(100, socket.MSG_WAITALL)
            asked = time.monotonic()
            time.sleep(pause_s)
            if begin - started > 0.3 and clock.goes_on:
                clock.spans.append((begin + 0.001, written - 0.001, truth))
                clock.spans.append((asked + 0.001, time.monotonic() - 0.001, ("app", "idle")))

    return send


def corked(size: int, wait_s: float, parts: int = 2, more: bool = False) -> Act:
    """Parts of an answer, with work in between, while a cork (or MSG_MORE) keeps them back."""

    def send(pair: Pair, clock: Clock) -> None:
        level, cork = socket.IPPROTO_TCP, socket.TCP_CORK
        while clock.goes_on:
            if not more:
                pair.client.setsockopt(level, cork, 1)
            begin = time.monotonic()
            for number in range(parts):
                last = number == parts - 1
                pair.client.send(bytes(size), socket.MSG_MORE if more and not last else 0)
                if not last:
                    time.sleep(wait_s)
            if not more:
                pair.client.setsockopt(level, cork, 0)
            sent = time.monotonic()
            pair.client.recv(100, socket.MSG_WAITALL)
            clock.spans.append((begin + 0.0005, sent - 0.0005, ("nagle",)))
            clock.spans.append((sent + 0.0005, time.monotonic() - 0.0005, ("app", "idle")))

    return send


def quota_reader(percent: float, work: int) -> Act:
    """A process reads, and hashes what it read, with so much of a CPU (a quota each 50 ms)."""

    def read(pair: Pair, clock: Clock) -> None:
        with quota(percent) as group, acts.program(pair.server, _READER, work) as process:
            time.sleep(0.1)  # it has started
            (group / "tasks").write_text(str(process.pid))
            time.sleep(max(0.0, clock.until - time.monotonic()))
            process.kill()

    return read


@contextmanager
def quota(percent: float) -> Iterator[Path]:
    """A control group with so much of a CPU."""
    group = _QUOTA / f"tcpkmon-why-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text("50000")
        (group / "cpu.cfs_quota_us").write_text(str(round(500 * percent)))
        yield group
    finally:
        for _ in range(50):
            with suppress(OSError):  # its process still ends
                group.rmdir()
                break
            time.sleep(0.02)


def hiccup(at_s: float, for_s: float) -> Act:
    """Reads all that comes, but once it does something else for so long."""

    def read(pair: Pair, clock: Clock) -> None:
        once = time.monotonic() + at_s
        while pair.server.recv(1 << 18):
            if time.monotonic() > once:
                time.sleep(for_s)
                once = float("inf")

    return read


def changes(way: int, path: Way, after_s: float, truth: tuple[str, ...] = ()) -> Act:
    """The link is different after so long; from 10 ms later on, this is true and judged."""

    def disturb(pair: Pair, clock: Clock) -> None:
        assert clock.lab.wire is not None
        clock.lab.wire.change(way, path, after_s)
        if truth:
            clock.spans.append((time.monotonic() + after_s + 0.01, clock.until, truth))

    return disturb


# Before the connection


def clamped(segments: int) -> Callable[[Lab], None]:
    """The route bounds the congestion window. The kernel takes it from what it remembers of the
    peer, and remembers a peer only once a connection has ended."""

    def prepare(lab: Lab) -> None:
        net.route("cwnd", "lock", str(segments))(lab)
        with connected(lab) as pair:
            for _ in range(5):
                pair.exchange()
        time.sleep(0.1)

    return prepare


def fast_open(size: int) -> Callable[[Lab, socket.socket], Pair]:
    """Connects with data in the SYN."""

    def dial(lab: Lab, listener: socket.socket) -> Pair:
        listener.setsockopt(socket.IPPROTO_TCP, _FASTOPEN, 5)
        client = make_socket(lab.a)
        client.setsockopt(*acts.CUBIC)
        client.sendto(bytes(size), socket.MSG_FASTOPEN, listener.getsockname())
        server, _ = listener.accept()
        return Pair(client, server)

    return dial
