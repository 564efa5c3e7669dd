# SPDX-License-Identifier: Apache-2.0
"""The scenarios: what is done to a connection, and what therefore limits it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tcpkmon.collector.lab.lab import Bottleneck, Lab
from tcpkmon.collector.lab.link import Link, Way
from tcpkmon.collector.lab.pair import Pair
from tests.truth.why import acts, net
from tests.truth.why.acts import Act, Span, bulk, drain

SECONDS = 1.2


@dataclass(frozen=True)
class Scenario:
    """truth: the limits that are right, as `tcpkmon why` names them. held_out: not used for tuning.

    from_s: the truth is sharp from then on; before, the connection opens or grows. prepare: the
    network, before the connection. disturb: when it is open, before the first byte. opens: the
    truth is sharp while it opens, and only then. receiver: whose side is judged. sched: schema
    sched is recorded too. link: a test link in place of the bottleneck. witness: tells the spans of
    the truth from the link's trace, and when the connection was called. from_b: b sends, and is
    judged as a sender. unsaid: what the verdict must not say, as regular expressions. dial: makes
    the connection, in place of a plain connect.
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
    prepare: Callable[[Lab], None] | None = None
    disturb: Act | None = None
    link: Link | None = None
    opens: bool = False
    receiver: bool = False
    sched: bool = False
    witness: Callable[[Any, float], list[Span]] | None = None
    from_b: bool = False
    unsaid: tuple[str, ...] = ()
    dial: Callable[[Lab, socket.socket], Pair] | None = None
    seconds: float = SECONDS
    family: str = ""


PATH = ("cwnd", "slow_start", "recovery", "rto_wait")
WINDOW = ("rwnd", "zero_window")
APP = ("app", "idle")
DEEP = Bottleneck(rate_mbit=40, queue_bytes=400_000)
SHALLOW = Bottleneck(rate_mbit=40, queue_bytes=20_000)
LOSSY = Bottleneck(rate_mbit=100, queue_bytes=200_000, loss_percent=2.0)
SLOW = Bottleneck(rate_mbit=4, queue_bytes=400_000)
FAR = Link(Way(rate_mbit=50, delay_ms=15, queue_bytes=150_000), Way(delay_ms=15))
WIDE = Link(Way(delay_ms=15), Way(delay_ms=15))
# Of the reader: its buffer cannot grow beyond; its window is not scaled, so nobody's is.
SMALL_RMEM = net.settings("b", rmem="4096 24000 24000")
UNSCALED = net.settings("b", window_scaling="0")
_ALGORITHMS = ("cubic", "reno", "bbr")
_LOSS_BASED = ("cubic", "reno")

SCENARIOS = (
    Scenario("SYNs are lost", ("opening",), prepare=net.no_handshake(0.4), opens=True,
             send=acts.trickle(2_000, 0.02)),
    *(Scenario(f"small receive buffer, {name}", WINDOW, rcvbuf=16_384,
               bottleneck=DEEP, congestion=name) for name in _ALGORITHMS),
    Scenario("small receive buffer, no bottleneck", WINDOW, rcvbuf=8_192),
    Scenario("small tcp_rmem", WINDOW, prepare=SMALL_RMEM, bottleneck=DEEP,
             held_out=True),
    Scenario("reader sleeps 20 ms", WINDOW, read=acts.sleepy(32_768, 0.02), rcvbuf=65_536),
    Scenario("reader sleeps 5 ms", WINDOW, read=acts.sleepy(16_384, 0.005), rcvbuf=65_536,
             held_out=True),
    Scenario("reader reads nothing", ("zero_window", "rwnd"), read=acts.no_reader, rcvbuf=65_536),
    *(Scenario(f"small send buffer, {name}", ("sndbuf",), sndbuf=8_192, bottleneck=DEEP,
               congestion=name) for name in _LOSS_BASED),
    Scenario("small send buffer, bbr (its window follows the buffer)",
             ("sndbuf", "cwnd", "slow_start"), sndbuf=8_192, bottleneck=DEEP, congestion="bbr"),
    Scenario("small send buffer, fast path", ("sndbuf",), sndbuf=4_608,
             bottleneck=Bottleneck(rate_mbit=200, queue_bytes=500_000), held_out=True),
    *(Scenario(f"application pauses 20 ms, {name}", APP, send=acts.trickle(2_000, 0.02),
               congestion=name) for name in _ALGORITHMS),
    Scenario("application pauses 5 ms", APP, send=acts.trickle(20_000, 0.005)),
    Scenario("application pauses 50 ms, large writes", APP, send=acts.trickle(250_000, 0.05),
             held_out=True),
    Scenario("application pauses on a slow path", APP, send=acts.trickle(2_000, 0.02),
             bottleneck=DEEP, held_out=True),
    Scenario("requests and answers", APP, send=acts.ping_pong(), read=acts.answer(100)),
    Scenario("requests and answers, think time", APP, send=acts.ping_pong(0.01),
             read=acts.answer(100), held_out=True),
    Scenario("requests in two writes, delayed ACKs", ("nagle",), send=acts.ping_pong(parts=2),
             read=acts.answer(200)),
    Scenario("requests in three writes, delayed ACKs", ("nagle",), send=acts.ping_pong(parts=3),
             read=acts.answer(300), held_out=True),
    Scenario("the end of each message is corked", ("nagle",), send=acts.corked(15_000, 0.15)),
    # When TCP has sent it all the same, after 0.2 s, nothing is there until the next write.
    Scenario("each message has MSG_MORE", ("nagle", "idle"),
             send=acts.corked(200, 0.21, more=True)),
    Scenario("the last segment of each message is lost", ("rto_wait", "recovery"), offloads=False,
             send=acts.asking(14_480), read=acts.answer(14_480), prepare=net.each_nth(9, 11)),
    Scenario("small tcp_rmem, far away", WINDOW, link=WIDE, prepare=SMALL_RMEM),
    Scenario("no window scaling", WINDOW, link=WIDE, prepare=UNSCALED),
    Scenario("a path that serves in turns", PATH,
             link=Link(Way(delay_ms=5, rate_mbit=5, slot_ms=60, queue_bytes=50_000),
                       Way(delay_ms=5))),
    Scenario("a policer", PATH,
             link=Link(Way(delay_ms=10, police_mbit=10, police_bytes=30_000), Way(delay_ms=10))),
    *(Scenario(f"deep queue, {name}", PATH, bottleneck=DEEP, congestion=name)
      for name in _LOSS_BASED),
    Scenario("deep queue, offloads off", PATH, bottleneck=DEEP, offloads=False),
    *(Scenario(f"shallow queue, {name}", PATH,
               bottleneck=SHALLOW, congestion=name) for name in _LOSS_BASED),
    *(Scenario(f"lossy path, {name}", PATH,
               bottleneck=LOSSY, congestion=name) for name in _LOSS_BASED),
    Scenario("window locked to 4 segments by the route", ("cwnd", "slow_start"), bottleneck=DEEP,
             prepare=net.route("cwnd", "lock", "4"), held_out=True),
    Scenario("short transfer, reno", ("slow_start",), send=acts.once(60_000, ("slow_start",)),
             bottleneck=SLOW, congestion="reno", from_s=0.0),
    Scenario("short transfer, reno, offloads off", ("slow_start",),
             send=acts.once(50_000, ("slow_start",)), bottleneck=SLOW, congestion="reno",
             from_s=0.0, offloads=False, held_out=True),
    Scenario("deep queue, bbr", ("pacing", "cwnd", "slow_start"), bottleneck=DEEP,
             congestion="bbr"),
    Scenario("socket paced at 5 MB/s", ("pacing",), pacing=5_000_000),
    Scenario("socket paced at 1 MB/s, offloads off", ("pacing",), pacing=1_000_000, offloads=False),
    Scenario("socket paced at 2 MB/s, reno", ("pacing",), pacing=2_000_000, congestion="reno",
             held_out=True),
    Scenario("own device is slow, cubic", ("tsq",), prepare=net.local_queue(40, 2_000_000)),
    Scenario("own device is slow, reno, offloads off", ("tsq",), congestion="reno", offloads=False,
             prepare=net.local_queue(40, 2_000_000)),
    Scenario("own device is slower", ("tsq",), prepare=net.local_queue(10, 1_000_000),
             from_s=0.6, held_out=True),
    Scenario("own HTB at 20 Mbit/s", ("tsq",), prepare=net.local_htb(20), from_s=0.5),
    Scenario("own HTB at 5 Mbit/s, reno", ("tsq",), prepare=net.local_htb(5), from_s=0.6,
             congestion="reno", offloads=False),
    Scenario("own TBF at 50 Mbit/s", ("tsq",), prepare=net.local_queue(50, 2_000_000), from_s=0.5),
    Scenario("own TBF at 20 Mbit/s before a far path", ("tsq",), link=FAR, from_s=0.7,
             prepare=net.local_queue(20, 2_000_000)),
    Scenario("own HTB at 10 Mbit/s before a far path, reno", ("tsq",), link=FAR, from_s=0.7,
             prepare=net.local_htb(10), congestion="reno", held_out=True),
    Scenario("own device is slow, its queue full", ("tsq", *PATH),
             prepare=net.local_queue(40, 30_000)),
    Scenario("requests of 50 kB and answers", (*APP, *PATH), send=acts.ping_pong(size=50_000),
             read=acts.answer(50_000), bottleneck=DEEP),
    Scenario("requests of 35 kB and answers, reno", (*APP, *PATH), congestion="reno",
             send=acts.ping_pong(size=35_000), read=acts.answer(35_000), bottleneck=DEEP,
             held_out=True),
    Scenario("closes at once, deep queue", PATH, send=acts.closes(3 << 20), bottleneck=DEEP,
             from_s=0.05),
    Scenario("far path, cubic", PATH, link=FAR),
    Scenario("far path, reno, offloads off", PATH, link=FAR, congestion="reno", offloads=False,
             held_out=True),
    Scenario("closes at once, far path", PATH, send=acts.closes(3 << 20), link=FAR, from_s=0.05),
    Scenario("closes at once, far path, reno", PATH, send=acts.closes(2 << 20), link=FAR,
             congestion="reno", from_s=0.05, held_out=True),
    Scenario("closes at once, small receive buffer", WINDOW, send=acts.closes(3 << 20),
             rcvbuf=16_384, bottleneck=DEEP, from_s=0.05),
    Scenario("closes at once, reader sleeps 20 ms", WINDOW, send=acts.closes(1 << 20),
             read=acts.sleepy(32_768, 0.02), rcvbuf=65_536, from_s=0.05, held_out=True),
    Scenario("closes at once, paced at 5 MB/s", ("pacing",), send=acts.closes(3 << 20),
             pacing=5_000_000, from_s=0.05),
    Scenario("closes, own device is slow", ("tsq",), send=acts.closes(4 << 20, room=1 << 20),
             prepare=net.local_queue(40, 2_000_000), from_s=0.1),
    Scenario("closes at once, shallow queue, reno", PATH, send=acts.closes(3 << 20),
             bottleneck=SHALLOW, congestion="reno", from_s=0.05),
    Scenario("closes at once, lossy path", PATH, send=acts.closes(3 << 20), bottleneck=LOSSY,
             from_s=0.05, held_out=True),
    # A half-closed receiver does not raise its window: it is full from the middle on.
    Scenario("its peer ended its direction, deep queue", (*PATH, *WINDOW), read=acts.ended(drain),
             bottleneck=DEEP),
    Scenario("its peer ended its direction, small receive buffer", WINDOW, read=acts.ended(drain),
             rcvbuf=16_384, bottleneck=DEEP),
    Scenario("its peer ended its direction, shallow queue, reno", PATH, read=acts.ended(drain),
             bottleneck=SHALLOW, congestion="reno"),
    Scenario("its peer ended its direction, far path", PATH, read=acts.ended(drain), link=FAR,
             held_out=True),
    Scenario("one segment is missing", ("recovery", "rto_wait"), bottleneck=DEEP, offloads=False,
             disturb=acts.hole(100_000, 0.8)),
    Scenario("blackout", ("rto_wait", "recovery", "cwnd"), bottleneck=DEEP, disturb=acts.blackout,
             from_s=0.7),
    Scenario("blackout, reno", ("rto_wait", "recovery", "cwnd"), bottleneck=DEEP, congestion="reno",
             disturb=acts.blackout, from_s=0.7, held_out=True),
    Scenario("the sender computes", ("cpu",), send=acts.computing(20_000, 0.005), sched=True),
    Scenario("the sender computes for long", ("cpu",), send=acts.computing(100_000, 0.02),
             sched=True),
    Scenario("the sender computes for longer, bbr", ("cpu",), send=acts.computing(250_000, 0.05),
             congestion="bbr", sched=True, held_out=True),
    Scenario("the sender's CPU is busy", ("cpu",), send=acts.starved(200_000), sched=True),
    Scenario("receiver: reader sleeps 20 ms", ("rx_app",), read=acts.sleepy(32_768, 0.02),
             rcvbuf=65_536, receiver=True),
    Scenario("receiver: reader sleeps 5 ms", ("rx_app",), read=acts.sleepy(16_384, 0.005),
             rcvbuf=65_536, receiver=True, held_out=True),
    Scenario("receiver: reader reads nothing", ("rx_app",), read=acts.no_reader, rcvbuf=65_536,
             receiver=True),
    Scenario("receiver: small receive buffer", ("rx_autotune",), rcvbuf=16_384, bottleneck=DEEP,
             receiver=True),
    Scenario("receiver: small tcp_rmem, reno", ("rx_autotune",), bottleneck=DEEP, congestion="reno",
             prepare=SMALL_RMEM, receiver=True),
    Scenario("receiver: small receive buffer, bbr", ("rx_autotune",), bottleneck=DEEP,
             rcvbuf=32_768, congestion="bbr", receiver=True, held_out=True),
    Scenario("receiver: no window scaling", ("rx_autotune",), link=WIDE, receiver=True,
             prepare=UNSCALED, from_s=0.6),
    Scenario("receiver: a path that serves in turns", ("rx_none", "rx_reorder"), receiver=True,
             link=Link(Way(delay_ms=5, rate_mbit=5, slot_ms=60, queue_bytes=50_000),
                       Way(delay_ms=5))),
    Scenario("receiver: one segment is missing", ("rx_reorder",), bottleneck=DEEP, offloads=False,
             disturb=acts.hole(100_000, 0.8), receiver=True),
    Scenario("receiver: deep queue", ("rx_none",), bottleneck=DEEP, receiver=True),
    Scenario("receiver: application pauses", ("rx_none",), send=acts.trickle(2_000, 0.02),
             receiver=True, held_out=True),
)  # fmt: skip
