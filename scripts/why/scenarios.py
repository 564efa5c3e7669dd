# SPDX-License-Identifier: Apache-2.0
"""The scenarios: what is done to a connection, and what therefore limits it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from collector.lab.lab import Bottleneck, Lab
from collector.lab.pair import Pair, join, listening

CLIENT, SERVER = "10.77.0.1", "10.77.0.2"
SECONDS = 1.2
_CHUNK = 64 << 10
_PACING = 47  # SO_MAX_PACING_RATE
Act = Callable[[Pair, "Clock"], None]


@dataclass
class Clock:
    """until: when the scenario ends (time.monotonic)."""

    until: float

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.until


def bulk(pair: Pair, clock: Clock) -> None:
    """Sends as fast as it can."""
    data = bytes(_CHUNK)
    with suppress(OSError):
        while clock.goes_on:
            pair.client.send(data)


def trickle(size: int, every_s: float) -> Act:
    """Sends some bytes now and then."""

    def send(pair: Pair, clock: Clock) -> None:
        while clock.goes_on:
            pair.client.sendall(bytes(size))
            time.sleep(every_s)

    return send


def ping_pong(pause_s: float = 0.0) -> Act:
    """A request and its answer, one at a time."""

    def send(pair: Pair, clock: Clock) -> None:
        while clock.goes_on:
            pair.client.sendall(bytes(100))
            pair.client.recv(100)
            time.sleep(pause_s)

    return send


def echo(pair: Pair, clock: Clock) -> None:
    """Answers each message with as many bytes."""
    with suppress(OSError):
        while data := pair.server.recv(_CHUNK):
            pair.server.sendall(data)


def drain(pair: Pair, clock: Clock) -> None:
    """Reads all that comes."""
    with suppress(OSError):
        while pair.server.recv(1 << 20):
            pass


def sleepy(size: int, every_s: float) -> Act:
    """Reads so many bytes, then sleeps."""

    def read(pair: Pair, clock: Clock) -> None:
        with suppress(OSError):
            while clock.goes_on and pair.server.recv(size):
                time.sleep(every_s)

    return read


def no_reader(pair: Pair, clock: Clock) -> None:
    """Reads nothing."""
    while clock.goes_on:
        time.sleep(0.02)


@dataclass(frozen=True)
class Scenario:
    """truth: the limits that are right, as `tcpkmon why` names them. held_out: not used for tuning.

    from_s: the truth is sharp from then on; before, the connection opens or grows.
    """

    name: str
    truth: tuple[str, ...]
    send: Act = bulk
    read: Act = drain
    bottleneck: Bottleneck | None = None
    congestion: str = "cubic"
    sndbuf: int = 0
    rcvbuf: int = 0
    pacing: int = 0
    from_s: float = 0.3
    offloads: bool = True
    held_out: bool = False
    disturb: Callable[[Lab, Clock], None] | None = None


PATH = ("cwnd", "slow_start", "recovery", "rto_wait")
DEEP = Bottleneck(rate_mbit=40, queue_bytes=400_000)
SHALLOW = Bottleneck(rate_mbit=40, queue_bytes=20_000)
LOSSY = Bottleneck(rate_mbit=100, queue_bytes=200_000, loss_percent=2.0)


def blackout(lab: Lab, clock: Clock) -> None:
    """After a third of the time, nothing gets through any more."""
    time.sleep(max(0.0, (clock.until - time.monotonic()) / 3))
    lab.drop(99.99)


_ALGORITHMS = ("cubic", "reno", "bbr")
SCENARIOS = (
    *(Scenario(f"small receive buffer, {name}", ("rwnd", "zero_window"), rcvbuf=16_384,
               bottleneck=DEEP, congestion=name) for name in _ALGORITHMS),
    Scenario("small receive buffer, no bottleneck", ("rwnd", "zero_window"), rcvbuf=8_192),
    Scenario("reader sleeps 20 ms", ("rwnd", "zero_window"), read=sleepy(32_768, 0.02),
             rcvbuf=65_536),
    Scenario("reader sleeps 5 ms", ("rwnd", "zero_window"), read=sleepy(16_384, 0.005),
             rcvbuf=65_536, held_out=True),
    Scenario("reader reads nothing", ("zero_window", "rwnd"), read=no_reader, rcvbuf=65_536),
    *(Scenario(f"small send buffer, {name}", ("sndbuf",), sndbuf=8_192, bottleneck=DEEP,
               congestion=name) for name in ("cubic", "reno")),
    Scenario("small send buffer, bbr (its window follows the buffer)",
             ("sndbuf", "cwnd", "slow_start"), sndbuf=8_192, bottleneck=DEEP, congestion="bbr"),
    Scenario("small send buffer, fast path", ("sndbuf",), sndbuf=4_608,
             bottleneck=Bottleneck(rate_mbit=200, queue_bytes=500_000), held_out=True),
    *(Scenario(f"application pauses 20 ms, {name}", ("app", "idle"), send=trickle(2_000, 0.02),
               congestion=name) for name in _ALGORITHMS),
    Scenario("application pauses 5 ms", ("app", "idle"), send=trickle(20_000, 0.005)),
    Scenario("application pauses on a slow path", ("app", "idle"), send=trickle(2_000, 0.02),
             bottleneck=DEEP, held_out=True),
    Scenario("requests and answers", ("app", "idle"), send=ping_pong(), read=echo),
    Scenario("requests and answers, think time", ("app", "idle"), send=ping_pong(0.01), read=echo,
             held_out=True),
    *(Scenario(f"deep queue, {name}", PATH, bottleneck=DEEP, congestion=name)
      for name in ("cubic", "reno")),
    Scenario("deep queue, offloads off", PATH, bottleneck=DEEP, offloads=False),
    *(Scenario(f"shallow queue, {name}", PATH,
               bottleneck=SHALLOW, congestion=name) for name in ("cubic", "reno")),
    *(Scenario(f"lossy path, {name}", PATH,
               bottleneck=LOSSY, congestion=name) for name in ("cubic", "reno")),
    Scenario("deep queue, bbr", ("pacing", "cwnd", "slow_start"), bottleneck=DEEP,
             congestion="bbr"),
    Scenario("socket paced at 5 MB/s", ("pacing",), pacing=5_000_000),
    Scenario("socket paced at 1 MB/s, offloads off", ("pacing",), pacing=1_000_000, offloads=False),
    Scenario("socket paced at 2 MB/s, reno", ("pacing",), pacing=2_000_000, congestion="reno",
             held_out=True),
    Scenario("blackout", ("rto_wait", "recovery", "cwnd"), bottleneck=DEEP, disturb=blackout,
             from_s=0.7),
)  # fmt: skip


def run(lab: Lab, scenario: Scenario, seconds: float = SECONDS) -> tuple[int, float, float]:
    """Plays a scenario in a lab: the client's port, and from when until when the truth is sharp
    (CLOCK_MONOTONIC, s)."""
    if not scenario.offloads:
        lab.a.command(["ip", "link", "set", "dev", "veth0", "gso_max_segs", "1"])
    options = [(socket.IPPROTO_TCP, socket.TCP_CONGESTION, scenario.congestion.encode())]
    if scenario.sndbuf:
        options.append((socket.SOL_SOCKET, socket.SO_SNDBUF, scenario.sndbuf // 2))
    if scenario.pacing:
        options.append((socket.SOL_SOCKET, _PACING, scenario.pacing))
    with listening(lab.b, SERVER) as listener:
        if scenario.rcvbuf:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, scenario.rcvbuf // 2)
        pair = join(lab.a, listener, SERVER, options)
    port, start = pair.client_port, time.monotonic()
    clock = Clock(start + seconds)
    threads = [threading.Thread(target=scenario.read, args=(pair, clock))]
    if scenario.disturb is not None:
        threads.append(threading.Thread(target=scenario.disturb, args=(lab, clock)))
    sender = threading.Thread(target=scenario.send, args=(pair, clock), daemon=True)
    for thread in (*threads, sender):
        thread.start()
    time.sleep(max(0.0, clock.until - time.monotonic()))
    end = time.monotonic()
    for one in (pair.client, pair.server):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    for thread in (*threads, sender):
        thread.join(timeout=5)
    pair.close()
    return port, start + scenario.from_s, end
