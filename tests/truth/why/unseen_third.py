# SPDX-License-Identifier: Apache-2.0
"""A third set of scenarios over a test link: messages in several writes, kept connections, bursts.

As those of unseen.py and unseen_more.py, they were written down with their truths before any
verdict on them was seen, by somebody who had not read the rules. Where a message is written in
pieces, the kernel tells when TCP holds data back: SIOCOUTQNSD, asked every 0.3 ms.
"""

from __future__ import annotations

import itertools
import socket
import time
from dataclasses import replace
from functools import partial

from tcpkmon.collector.lab.link import Link, Way
from tcpkmon.collector.lab.pair import Pair, receive
from tests.truth.why import acts, programs, witness
from tests.truth.why.acts import Act, Clock
from tests.truth.why.scenarios import APP, PATH, WINDOW, Scenario
from tests.truth.why.unseen import NET, READER, SENDER, SNDBUF, line, way
from tests.truth.why.unseen_more import ROOMY

_new = partial(Scenario, held_out=True, seconds=2.5)
NAGLE = r"Nagle|[Cc]ork|MSG_MORE"
_ASK_S, _EDGE_S, _SETTLED = 0.0003, 0.0005, 3


def pieces(*sizes: int, gap_s: float = 0.0, hold: str = "", pause_s: float = 0.0) -> Act:
    """A message in writes of these sizes, so long between them; then its answer, and a pause.

    hold: what TCP is told: nothing (Nagle), "nodelay", "cork" until the last write, or "more"
    (MSG_MORE with all but the last one). Truths: nagle while the kernel says that bytes are
    unsent, else app. No message is larger than the first congestion window.
    """

    def send(pair: Pair, clock: Clock) -> None:
        end, level = pair.client, socket.IPPROTO_TCP
        if hold == "nodelay":
            end.setsockopt(level, socket.TCP_NODELAY, 1)
        for number in itertools.count():
            asked: list[tuple[float, bool]] = []
            if hold == "cork":
                end.setsockopt(level, socket.TCP_CORK, 1)
            for size in sizes[:-1]:
                end.send(bytes(size), socket.MSG_MORE if hold == "more" else 0)
                until = time.monotonic() + gap_s
                asked.append(_ask(end))
                while time.monotonic() < until:
                    time.sleep(_ASK_S)
                    asked.append(_ask(end))
            end.send(bytes(sizes[-1]))
            if hold == "cork":
                end.setsockopt(level, socket.TCP_CORK, 0)
            asked.append(_ask(end))
            while asked[-1][1] and clock.goes_on:
                time.sleep(_ASK_S)
                asked.append(_ask(end))
            receive(end, 100)
            time.sleep(pause_s)
            asked.append((time.monotonic(), False))
            if number >= _SETTLED and clock.goes_on:
                for held, group in itertools.groupby(asked, lambda one: one[1]):
                    times = [now for now, _ in group]
                    truth = ("nagle",) if held else APP
                    clock.spans.append((times[0] + _EDGE_S, times[-1] - _EDGE_S, truth))

    return send


def _ask(end: socket.socket) -> tuple[float, bool]:
    return time.monotonic(), acts.unsent(end) > 0


def calls(request: int, answer: int) -> Act:
    """A client that does nothing but ask and wait."""

    def send(pair: Pair, clock: Clock) -> None:
        while clock.goes_on:
            pair.client.sendall(bytes(request))
            receive(pair.client, answer)

    return send


def thinks(request: int, answer: int, think_s: float) -> Act:
    """Its server: computes or waits for so long before each answer."""

    def read(pair: Pair, clock: Clock) -> None:
        while clock.goes_on:
            receive(pair.server, request)
            time.sleep(think_s)
            pair.server.sendall(bytes(answer))

    return read


WRITES = (
    # The first write goes out whole: its last 552 bytes are the one small segment that may fly.
    # Of the second one a full segment goes, and 452 bytes wait for the ACK; so does the third one.
    _new("2.0, 1.9 and 0.6 kB in three writes, Nagle, RTT 60 ms", ("nagle", *APP),
         send=pieces(2_000, 1_900, 600, gap_s=0.004), read=acts.answer(4_500), link=line(40, 60),
         unsaid=(NET, READER, SNDBUF)),
    # Each goes out at once, five of ten that the window takes.
    _new("five writes of a segment, TCP_NODELAY, RTT 100 ms", APP,
         send=pieces(*[1_448] * 5, gap_s=0.002, hold="nodelay"), read=acts.answer(5 * 1_448),
         link=line(40, 100), unsaid=(NET, READER, SNDBUF, NAGLE)),
    # The body's end goes out at once: no small segment flies.
    _new("a header with MSG_MORE, 15 ms later its body of 4 kB, RTT 50 ms", ("nagle", *APP),
         send=pieces(200, 4_000, gap_s=0.015, hold="more", pause_s=0.01), read=acts.answer(4_200),
         link=line(40, 50), unsaid=(NET, READER, SNDBUF)),
    # A full segment leaves at the third write, the rest when the cork is pulled 9 ms later.
    _new("four corked writes of 700 bytes, 9 ms apart, RTT 5 ms", ("nagle", *APP),
         send=pieces(*[700] * 4, gap_s=0.009, hold="cork"), read=acts.answer(2_800),
         link=line(40, 5), unsaid=(NET, READER, SNDBUF), held_out=False),
)  # fmt: skip

KEPT = (
    # Whoever looks at the client's program looks at the wrong one.
    _new("its server thinks for 60 ms, answers 20 kB", APP, send=calls(300, 20_000),
         read=thinks(300, 20_000, 0.06), link=line(40, 20), unsaid=(SENDER, NET, READER, SNDBUF)),
    # Each pause is longer than the timeout: the window begins anew with ten segments.
    _new("answers of 120 kB, pauses of 0.4 s, RTT 40 ms", (*APP, *PATH), prepare=ROOMY,
         send=programs.replies(120_000), read=programs.asks(120_000, every_s=0.6),
         link=line(50, 40, 400_000), seconds=3.6, witness=witness.messages(120_000, truth=PATH),
         unsaid=(READER, SNDBUF)),
    _new("both ends send 30 kB each 100 ms, RTT 40 ms", (*APP, *PATH), prepare=ROOMY,
         send=programs.timed(30_000, every_s=0.1),
         read=acts.duplex(acts.drain, programs.timed(30_000, every_s=0.1)),
         link=Link(Way(rate_mbit=40, delay_ms=20, queue_bytes=200_000),
                   Way(rate_mbit=40, delay_ms=20, queue_bytes=200_000), 7),
         witness=witness.messages(30_000, truth=PATH), unsaid=(READER, SNDBUF)),
)  # fmt: skip

BURSTS = (
    _new("bursts of losses and a policer of 6 Mbit/s, cubic", PATH, seconds=4.0,
         link=way(24, police_mbit=6, police_bytes=40_000, burst_percent=0.2, burst_packets=4),
         unsaid=(SENDER, READER, SNDBUF)),
    _new("bursts of losses, answers of 60 kB each 0.3 s, RTT 50 ms", (*APP, *PATH), seconds=5.0,
         prepare=ROOMY, send=programs.replies(60_000), read=programs.asks(60_000, every_s=0.3),
         link=way(50, rate_mbit=60, queue_bytes=400_000, burst_percent=0.4, burst_packets=4),
         witness=witness.messages(60_000, truth=PATH), unsaid=(READER, SNDBUF)),
)  # fmt: skip

PATHS = (
    # 20 kB of window are sent within a millisecond of each 60: then it waits for the next read.
    _new("a reader empties a buffer of 40 kB each 60 ms, RTT 30 ms", WINDOW,
         read=programs.gulps(0.06), rcvbuf=40_000, link=line(50, 30, 400_000), from_s=0.5,
         unsaid=(SENDER, NET, SNDBUF)),
    # What is in flight is 12 kB at most: less than ten segments.
    _new("200 kB/s over slots of 25 ms", APP, send=programs.timed(4_000, every_s=0.02),
         link=way(16, rate_mbit=20, slot_ms=25, queue_bytes=100_000),
         unsaid=(NET, READER, SNDBUF)),
    _new("RTT 1 ms and up to 4 ms of jitter, reno", PATH, congestion="reno",
         link=Link(Way(rate_mbit=50, delay_ms=0.5, jitter_ms=3, queue_bytes=60_000),
                   Way(delay_ms=0.5, jitter_ms=1), 9), unsaid=(SENDER, READER, SNDBUF)),
)  # fmt: skip

FAMILIES = {
    "messages in pieces": WRITES, "kept, both ways": KEPT, "bursts of losses": BURSTS,
    "reads, slots, jitter": PATHS,
}  # fmt: skip
UNSEEN_THIRD = tuple(
    replace(one, family=name) for name, family in FAMILIES.items() for one in family
)
