# SPDX-License-Identifier: Apache-2.0
"""More scenarios over a test link: what programs do, paths that change, who shares a path.

As those of unseen.py, they were written down with their truths before any verdict on them was seen,
by somebody who had not read the rules. Truths come from what was made, the link's trace, the
programs' own clocks and the kernel's chronographs (chronograph.py). What lies near the moment at
which a truth changes does not count, nor what no witness can tell.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tcpkmon.collector.lab.link import Link, Way
from tests.truth.why import acts, beside, chronograph, exchanges, net, programs, witness
from tests.truth.why.scenarios import APP, PATH, WINDOW, Scenario
from tests.truth.why.unseen import BBR, MARKED, NET, READER, REPAIR, SENDER, SNDBUF, line, way

_new = partial(Scenario, held_out=True, seconds=1.5)
# No buffer of the receiver bounds what a path holds.
ROOMY = net.settings(rmem="4096 2000000 8000000")
HOLES = ("rx_none", "rx_reorder")

RELAYS = (
    # The relay reads no more than it can write: 800 kB/s, of 12 MB/s that the line takes.
    _new("a relay whose backend reads slowly", WINDOW, read=beside.relay_to(16_384, 0.02),
         rcvbuf=65_536, link=line(100, 4, 400_000), from_s=0.5, unsaid=(SENDER, NET)),
    _new("receiver: a relay whose backend reads slowly", ("rx_app",), receiver=True,
         read=beside.relay_to(16_384, 0.02), rcvbuf=65_536, link=line(100, 4, 400_000), from_s=0.5),
    # Something is always in flight, and nothing is ever unsent: 250 kB/s, RTT 50 ms.
    _new("a relay sends what comes in, RTT 50 ms", APP,
         send=beside.relay_from(3_000, 900, 7_000, 500, every_s=0.011), link=line(40, 50, 200_000)),
)  # fmt: skip

STREAMS = (
    # 200 kB of window, 0.4 s of pause: the buffer fills in a fifth of it.
    _new("a player reads for 0.4 s, then its own buffer is full for 0.4 s", (*WINDOW, *PATH),
         read=programs.player(0.4, 0.4), rcvbuf=400_000, link=line(20, 20, 60_000), seconds=2.6,
         witness=witness.stalls(WINDOW, PATH), unsaid=(SENDER, SNDBUF)),
    _new("receiver: a player whose own buffer is full", ("rx_app",), receiver=True,
         read=programs.player(0.4, 0.4), rcvbuf=400_000, link=line(20, 20, 60_000), seconds=2.6,
         witness=witness.stalls(("rx_app",), received_s=0.025)),
    _new("a player asks for 250 kB each 400 ms", APP, send=programs.replies(250_000),
         read=programs.asks(250_000, every_s=0.4), link=line(15, 40, 120_000), seconds=2.4,
         witness=witness.messages(250_000, truth=PATH), unsaid=(READER, SNDBUF)),
    _new("live video: 25 frames a second, each tenth is large", APP, seconds=2.0,
         send=programs.timed(60_000, *[8_000] * 9, every_s=0.04), link=line(20, 30, 100_000),
         witness=witness.messages(60_000, *[8_000] * 9, truth=PATH, skip=10),
         unsaid=(NET, READER, SNDBUF)),
    # Two and a half writes are in flight at any time.
    _new("a shipper with a limit of its own, 500 kB/s, RTT 100 ms", APP, from_s=0.8, seconds=2.0,
         send=programs.timed(20_000, every_s=0.04), link=line(40, 100, 400_000), prepare=ROOMY,
         unsaid=(READER, SNDBUF)),
)  # fmt: skip

_GROWING = tuple(1000 << power for power in range(9))
DATABASES = (
    _new("answers that grow from 1 to 256 kB", (*APP, *PATH), send=programs.replies(*_GROWING),
         read=programs.asks(*_GROWING), link=line(40, 16, 200_000), prepare=ROOMY, seconds=2.0,
         witness=witness.messages(*_GROWING, truth=PATH, skip=0), unsaid=(READER, SNDBUF)),
    # 35 segments, each answer goes at once; then a round trip, then a pause.
    _new("first window of 40 segments, answers of 50 kB", APP, prepare=net.route("initcwnd", "40"),
         send=programs.replies(50_000), read=programs.asks(50_000, every_s=0.08), from_s=0.0,
         link=line(200, 30, 400_000), unsaid=(NET, READER, SNDBUF)),
    # No pause at all: the answer is what it waits for.
    _new("a replica confirms each 8 kB, RTT 12 ms", APP, send=acts.ping_pong(size=8_000),
         read=acts.answer(8_000), link=line(50, 12, 100_000), unsaid=(NET, READER, SNDBUF)),
    _new("long polls: 300 bytes each 0.4 s", APP, send=programs.timed(300, every_s=0.4),
         link=line(20, 30), seconds=2.0, unsaid=(NET, READER)),
    # Two full segments of the body go at once, its last 300 bytes when the header is acknowledged.
    _new("header and body in two writes, RTT 30 ms", ("nagle", *APP),
         send=programs.header_and_body(200, 3_196), read=acts.answer(3_396), link=line(20, 30),
         witness=witness.kept_back(3_096, 3_396), unsaid=(NET, READER), held_out=False),
    _new("a corked header, 35 ms of disk, a file of 30 kB", ("nagle", *APP),
         send=programs.header_and_file(300, 30_000, 0.035), read=acts.answer(30_300),
         link=line(50, 16), unsaid=(NET, READER)),
)  # fmt: skip

ENDS = (
    _new("sendfile of 1.2 MB and close at once, RTT 80 ms", PATH, prepare=ROOMY, seconds=2.2,
         send=programs.file_and_close(1_200_000), link=line(30, 80, 300_000),
         witness=witness.closes(1_200_000, PATH), unsaid=(SENDER, READER, SNDBUF)),
    _new("a client half-closes 400 kB, the reader starts after 0.5 s", WINDOW, rcvbuf=32_768,
         send=exchanges.closing(400_000, half=True), read=programs.starts_late(0.5),
         link=line(100, 20, 400_000), witness=witness.closes(400_000, WINDOW, 0.08),
         unsaid=(SENDER, NET)),
    _new("900 kB and close at once, bbr", BBR, congestion="bbr", send=exchanges.closing(900_000),
         link=line(25, 30, 300_000), witness=witness.closes(900_000, BBR),
         unsaid=(SENDER, READER), held_out=False),
    _new("close() lingers over 600 kB, 0.7 % are lost, reno", PATH, congestion="reno",
         send=programs.lingering_close(600_000), link=way(24, rate_mbit=20, loss_percent=0.7),
         witness=witness.closes(600_000, PATH), unsaid=(SENDER, READER)),
    _new("the twelfth short connection: 60 kB and close", PATH, dial=beside.after_many(11, 60_000),
         send=exchanges.closing(60_000), link=line(20, 40, 100_000), seconds=0.8,
         witness=witness.of_the_last(witness.closes(60_000, PATH))),
)  # fmt: skip

_HALF, _FAR = Way(rate_mbit=10, delay_ms=10, queue_bytes=100_000), 0.8
CHANGES = (
    _new("the rate halves in the middle, cubic", PATH, link=line(), seconds=1.8,
         disturb=exchanges.changes(0, _HALF, _FAR), unsaid=(SENDER, READER)),
    # 1.2 MB/s are 9.6 of 20 Mbit/s, then of 4: what is in flight grows until the window is full.
    _new("paced at 1.2 MB/s, then the path is slower", ("pacing",), pacing=1_200_000, seconds=2.0,
         link=line(20, 20, 60_000), unsaid=(SENDER, READER),
         disturb=beside.truth_changes(
             exchanges.changes(0, Way(rate_mbit=4, delay_ms=10, queue_bytes=60_000), 0.9),
             ("pacing",), PATH, at_s=0.9, settle_s=0.4)),
    _new("SO_MAX_PACING_RATE rises above the path", ("pacing",), pacing=400_000, seconds=2.0,
         link=line(10, 20, 60_000), unsaid=(SENDER, READER),
         disturb=beside.truth_changes(
             beside.new_pacing(4_000_000, 0.8), ("pacing",), PATH, at_s=0.8, settle_s=0.3)),
    _new("the path is gone for 0.5 s", REPAIR, link=line(20, 30, 90_000), seconds=2.4,
         disturb=beside.together(
             exchanges.changes(0, Way(rate_mbit=20, delay_ms=15, queue_bytes=90_000, down=True),
                               0.7),
             exchanges.changes(0, Way(rate_mbit=20, delay_ms=15, queue_bytes=90_000), 1.2)),
         witness=witness.outage(PATH), unsaid=(SENDER, READER)),
    _new("a new route is longer: RTT 20, then 70 ms, reno", PATH, congestion="reno", link=line(),
         seconds=1.8, unsaid=(SENDER, READER), prepare=ROOMY,
         disturb=exchanges.changes(0, Way(rate_mbit=20, delay_ms=60, queue_bytes=100_000), 0.8)),
    _new("receiver: the rate halves in the middle", HOLES, receiver=True, link=line(), seconds=1.8,
         disturb=exchanges.changes(0, _HALF, _FAR), witness=witness.holes(from_s=0.3),
         unsaid=(READER,)),
    _new("own HTB: 20, then 4 Mbit/s", ("tsq",), seconds=2.0, link=line(100, 10, 400_000),
         prepare=net.local_htb(20, "burst 5k"), unsaid=(SENDER, READER),
         disturb=beside.truth_changes(beside.new_htb(4, 1.0), ("tsq",), ("tsq",), 1.0, 0.3, 0.5)),
)  # fmt: skip

WINDOWS = (
    # The kernel raises the clamp again, but chose no scale by it: 64 kB in 40 ms, 13 of 50 Mbit/s.
    _new("TCP_WINDOW_CLAMP leaves no window scale", WINDOW, dial=programs.clamped(12_000),
         link=line(50, 40, 200_000), from_s=0.5, unsaid=(SENDER,)),
    _new("receiver: TCP_WINDOW_CLAMP leaves no window scale", ("rx_autotune",), receiver=True,
         dial=programs.clamped(12_000), link=line(50, 40, 200_000), from_s=0.5,
         unsaid=(READER,)),
    _new("receive buffer of 40 kB, RTT 150 ms, reno", WINDOW, congestion="reno", rcvbuf=40_000,
         link=line(20, 150, 400_000), from_s=0.6, seconds=2.4, unsaid=(SENDER,)),
    _new("receiver: receive buffer of 48 kB, RTT 120 ms", ("rx_autotune",), receiver=True,
         rcvbuf=48_000, link=line(20, 120, 400_000), from_s=0.8, seconds=2.4, unsaid=(READER,)),
    # It fills in some milliseconds; the rest of 350 is a zero window.
    _new("a reader gulps each 350 ms", WINDOW, read=programs.gulps(0.35), rcvbuf=65_536,
         link=line(100, 6, 400_000), from_s=0.4, seconds=2.0, unsaid=(SENDER, NET)),
    _new("a reader is fast for 0.35 s, slow for 0.35 s", (*WINDOW, *PATH), rcvbuf=300_000,
         read=programs.changing_reader(0.35, 16_384, 0.025, 0.35), link=line(20, 20, 60_000),
         seconds=2.6, disturb=chronograph.watched(WINDOW, PATH), unsaid=(SENDER, SNDBUF)),
    _new("receiver: its program is stopped for 0.6 s", ("rx_app",), receiver=True, seconds=2.0,
         read=programs.stopped(0.6, 0.6), rcvbuf=300_000, link=line(30, 16, 100_000),
         witness=witness.stalls(("rx_app",), received_s=0.02)),
    _new("receiver: half-closed, its program reads slowly", ("rx_app",), receiver=True,
         read=acts.ended(acts.sleepy(16_384, 0.02)), rcvbuf=65_536, link=line(100, 4, 400_000)),
)  # fmt: skip

SENDERS = (
    # The program writes when less than 8 kB are unsent: something always is.
    _new("TCP_NOTSENT_LOWAT of 16 kB and poll()", PATH, send=programs.low_water(16_384),
         link=line(), unsaid=(SENDER, READER, SNDBUF)),
    _new("send buffer of 24 kB, RTT 90 ms", ("sndbuf",), sndbuf=24_576, offloads=False,
         link=line(20, 90, 400_000), from_s=0.8, seconds=2.2, unsaid=(READER,)),
    _new("writes of 120 bytes, 4 Mbit/s", PATH, send=acts.writes(120),
         link=line(4, 20, 60_000), unsaid=(SENDER, READER)),
    _new("own TBF of 20 Mbit/s, the application needs 2", APP, send=acts.trickle(5_000, 0.02),
         prepare=net.local_queue(20, 500_000), link=line(100, 16, 400_000),
         unsaid=(NET, READER, "this host's queue")),
    _new("own TBF of 12 Mbit/s, three connections", ("tsq",), disturb=beside.others(2),
         prepare=net.local_queue(12, 1_000_000), link=line(100, 10, 400_000), from_s=0.6,
         seconds=1.8),
    # TCP has nothing to send while the program computes or waits for its share of a CPU.
    _new("a writer with 10 % of a CPU", APP, send=programs.quota_writer(10, 1_000), link=line(),
         from_s=0.4, unsaid=(NET, READER, SNDBUF)),
)  # fmt: skip

LOSSES = (
    _new("satellite, RTT 550 ms, 0.5 % are lost", PATH, prepare=ROOMY, from_s=0.05, seconds=4.0,
         link=way(550, rate_mbit=8, queue_bytes=600_000, loss_percent=0.5),
         unsaid=(SENDER, READER)),
    _new("4 % of segments come 9 ms late, bbr", (*BBR, *REPAIR), congestion="bbr",
         link=way(24, rate_mbit=25, queue_bytes=300_000, reorder_percent=4, reorder_ms=9),
         unsaid=(SENDER, READER)),
    _new("half of the ACKs are lost, the others come in slots, cubic", PATH,
         link=Link(Way(rate_mbit=16, delay_ms=12, queue_bytes=90_000),
                   Way(delay_ms=4, slot_ms=8, ack_loss_percent=50), 11),
         unsaid=(SENDER, READER)),
    _new("the path's MTU falls to 1300, with ICMP", PATH, link=line(), seconds=1.8,
         disturb=exchanges.changes(0, Way(rate_mbit=20, delay_ms=10, queue_bytes=100_000, mtu=1_300,
                                        icmp=True), 0.6),
         unsaid=(SENDER, READER)),
    _new("MTU black hole that tcp_mtu_probing gets over", PATH, from_s=0.05, seconds=3.0,
         prepare=net.settings(mtu_probing="1", retries1="1"),
         link=way(20, rate_mbit=20, queue_bytes=100_000, mtu=1_200), unsaid=(SENDER, READER)),
    _new("bursts of 200 kB through a policer of 12 Mbit/s", (*APP, *PATH), seconds=2.4,
         send=programs.timed(200_000, every_s=0.25), prepare=ROOMY,
         link=way(20, police_mbit=12, police_bytes=60_000),
         witness=witness.messages(200_000, truth=PATH, skip=0), unsaid=(READER, SNDBUF)),
    _new("the peer is gone while nobody sends", (*APP, *REPAIR), link=line(), seconds=2.4,
         send=programs.timed(3_000, every_s=0.06, until_s=0.5, again_s=1.0),
         disturb=exchanges.changes(0, Way(down=True), 0.75), witness=witness.dies(APP),
         unsaid=(READER, SNDBUF, NET)),
    _new("no ACK comes back any more", REPAIR, link=line(), seconds=2.2,
         disturb=exchanges.changes(1, Way(down=True), 0.5), witness=witness.resent(),
         unsaid=(SENDER, READER, SNDBUF)),
    _new("receiver: bursts of losses", HOLES, receiver=True,
         link=way(20, rate_mbit=30, queue_bytes=400_000, burst_percent=0.2, burst_packets=4),
         witness=witness.holes(from_s=0.3), unsaid=(READER,)),
)  # fmt: skip

# Nothing is lost where marks tell of a queue.
_ECN = net.settings(ecn="1")
MARKS = (
    _new("marks above 30 kB, then the rate halves, cubic", MARKED, prepare=_ECN, seconds=1.8,
         link=way(24, rate_mbit=24, ecn_above_bytes=30_000),
         disturb=exchanges.changes(0, Way(delay_ms=12, rate_mbit=12, ecn_above_bytes=30_000), 0.8),
         unsaid=(SENDER, READER, "lost|loss")),
    _new("receiver: marks above 30 kB", ("rx_none",), prepare=_ECN, receiver=True,
         link=way(24, rate_mbit=24, ecn_above_bytes=30_000), unsaid=(READER,)),
)  # fmt: skip

SHARED = (
    _new("one of four that share a line, cubic", PATH, disturb=beside.others(3), link=line(),
         seconds=2.0),
    # The others' windows fit into the queue: it stands at some 30 kB, and drops nothing.
    _new("a chat beside a full line", APP, send=programs.timed(2_000, every_s=0.1),
         disturb=beside.others(3, rcvbuf=16_384), link=line(20, 20, 200_000), seconds=2.0),
    _new("ACKs queue behind an upload the other way", PATH, disturb=beside.others(1, back=True),
         link=Link(Way(rate_mbit=20, delay_ms=8, queue_bytes=80_000),
                   Way(rate_mbit=2, delay_ms=8, queue_bytes=30_000), 7),
         prepare=ROOMY, seconds=2.0),
    _new("a chats while b sends all it can", APP, send=programs.timed(300, every_s=0.05),
         read=acts.duplex(acts.drain),
         link=Link(Way(rate_mbit=10, delay_ms=10, queue_bytes=50_000),
                   Way(rate_mbit=20, delay_ms=10, queue_bytes=80_000), 7),
         unsaid=(NET, READER, SNDBUF)),
    _new("receiver: a chat, RTT 60 ms", ("rx_none",), receiver=True, link=line(20, 60),
         send=programs.timed(4_000, every_s=0.03), unsaid=(READER,)),
    _new("the accept queue is full for 0.5 s", ("opening",), opens=True, seconds=0.3,
         dial=beside.full_queue(0.5), send=acts.trickle(2_000, 0.02), link=line()),
)  # fmt: skip

_AIR = Link(Way(rate_mbit=40, delay_ms=2, slot_ms=5, jitter_ms=3, queue_bytes=120_000),
            Way(delay_ms=2, slot_ms=4, ack_thin=True), 5)  # fmt: skip
AIR = (
    _new("Wi-Fi: aggregates of 5 ms, ACKs in aggregates, cubic", PATH, link=_AIR,
         unsaid=(SENDER, READER)),
    _new("Wi-Fi, a stream of 300 kB/s", APP, send=programs.timed(6_000, every_s=0.02), link=_AIR,
         unsaid=(NET, READER, SNDBUF)),
    _new("receiver: Wi-Fi, reno", HOLES, receiver=True, congestion="reno", link=_AIR,
         witness=witness.holes(from_s=0.3), unsaid=(READER,)),
)  # fmt: skip

FAMILIES = {
    "relays": RELAYS, "streams": STREAMS, "databases": DATABASES, "ends": ENDS,
    "changing paths": CHANGES, "windows": WINDOWS, "senders": SENDERS, "losses": LOSSES,
    "marks": MARKS, "shared lines": SHARED, "Wi-Fi": AIR,
}  # fmt: skip
UNSEEN_MORE = tuple(
    replace(one, family=name) for name, family in FAMILIES.items() for one in family
)
