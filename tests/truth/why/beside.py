# SPDX-License-Identifier: Apache-2.0
"""What is beside a connection in the scenarios of unseen_more.py: relays, other connections, and
what changes while it sends."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tcpkmon.collector.lab.lab import DEVICE, Lab
from tcpkmon.collector.lab.namespaces import Side
from tcpkmon.collector.lab.pair import Pair, join, listening, make_socket, receive
from tests.truth.why import acts
from tests.truth.why.acts import CUBIC, Act, Clock

_MAX_PACING = 47


# Other connections


@contextmanager
def _inside(side: Side, rcvbuf: int = 0) -> Iterator[Pair]:
    """A connection within a host."""
    with listening(side, "127.0.0.1") as listener:
        if rcvbuf:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        pair = join(side, listener, "127.0.0.1", [(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)])
    try:
        yield pair
    finally:
        pair.close()


def relay_to(size: int, every_s: float) -> Act:
    """b relays to a program of its own host that reads slowly."""

    def read(pair: Pair, clock: Clock) -> None:
        with _inside(clock.lab.b, 16_384) as inner:

            def backend() -> None:
                acts.sleepy(size, every_s)(inner, clock)
                inner.server.close()  # the relay does not wait any more

            acts.background(backend)
            while data := pair.server.recv(acts.CHUNK):
                inner.client.sendall(data)

    return read


def relay_from(*sizes: int, every_s: float) -> Act:
    """a relays what a program of its own host writes by the clock."""

    def send(pair: Pair, clock: Clock) -> None:
        pair.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with _inside(clock.lab.a) as inner:

            def source() -> None:
                for size in itertools.cycle(sizes):
                    if not clock.goes_on:
                        break
                    inner.client.sendall(bytes(size))
                    time.sleep(every_s)
                inner.client.shutdown(socket.SHUT_WR)

            acts.background(source)
            while data := inner.server.recv(acts.CHUNK):
                pair.client.sendall(data)

    return send


def others(count: int, back: bool = False, rcvbuf: int = 0) -> Act:
    """So many connections more send as fast as they can, there or back."""

    def disturb(pair: Pair, clock: Clock) -> None:
        source, target = (clock.lab.b, clock.lab.a) if back else (clock.lab.a, clock.lab.b)
        for _ in range(count):
            with listening(target, target.address4) as listener:
                if rcvbuf:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
                other = join(source, listener, target.address4, [CUBIC])
            for act in (_bulk_and_close, acts.drain):
                acts.background(partial(act, other, clock))

    return disturb


def _bulk_and_close(pair: Pair, clock: Clock) -> None:
    acts.bulk(pair, clock)
    pair.client.close()


def after_many(count: int, size: int) -> Callable[[Lab, socket.socket], Pair]:
    """Dials; before, there were so many short connections, one after another."""

    def dial(lab: Lab, listener: socket.socket) -> Pair:
        for _ in range(count):
            pair = join(lab.a, listener, lab.b.address4, [CUBIC])
            pair.client.sendall(bytes(size))
            pair.client.close()
            receive(pair.server, size)
            pair.server.close()
        time.sleep(0.1)  # the last FIN's ACK has come
        return join(lab.a, listener, lab.b.address4, [CUBIC])

    return dial


def full_queue(for_s: float) -> Callable[[Lab, socket.socket], Pair]:
    """Dials while the server's accept queue is full: its host drops the SYN."""

    def dial(lab: Lab, listener: socket.socket) -> Pair:
        listener.listen(0)

        def accept() -> None:
            listener.accept()[0].close()

        first, client = make_socket(lab.a), make_socket(lab.a)
        first.connect(listener.getsockname())
        acts.later(for_s, accept)
        client.setsockopt(*CUBIC)
        client.connect(listener.getsockname())
        first.close()
        server, _ = listener.accept()
        return Pair(client, server)

    return dial


# Changes


def truth_changes(
    change: Act, before: tuple[str, ...], after: tuple[str, ...], at_s: float, settle_s: float,
    from_s: float = 0.3,
) -> Act:  # fmt: skip
    """At this time it changes what is true; so much later the new truth is sharp."""

    def disturb(pair: Pair, clock: Clock) -> None:
        now = time.monotonic()
        change(pair, clock)
        clock.spans += [(now + from_s, now + at_s, before),
                        (now + at_s + settle_s, clock.until, after)]  # fmt: skip

    return disturb


def new_pacing(rate: int, at_s: float) -> Act:
    """The socket's SO_MAX_PACING_RATE is different after so long."""

    def disturb(pair: Pair, clock: Clock) -> None:
        acts.later(
            at_s, lambda: pair.client.setsockopt(socket.SOL_SOCKET, _MAX_PACING, rate)
        )  # fmt: skip

    return disturb


def new_htb(rate_mbit: float, at_s: float) -> Act:
    """The sender's own HTB (net.local_htb) has another rate after so long."""

    def disturb(pair: Pair, clock: Clock) -> None:
        words = f"class change dev {DEVICE} parent 1: classid 1:1 htb rate {rate_mbit}mbit burst 5k"
        acts.later(at_s, lambda: clock.lab.a.command(["tc", *words.split()]))

    return disturb


def together(*calls: Act) -> Act:
    """Several changes."""

    def disturb(pair: Pair, clock: Clock) -> None:
        for call in calls:
            call(pair, clock)

    return disturb
