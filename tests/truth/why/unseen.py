# SPDX-License-Identifier: Apache-2.0
"""Scenarios over a test link, with truths that were written down before any rule met them.

They were made without knowledge of the rules, from what the network, the application and the
kernel's settings do. Rules were mended by the families TUNED since; none is used to tune a rule
otherwise: whoever mends one by them names its family there, and holds out others.
Where the truth changes over time, a witness tells when: the link's trace, or the application's
clock. unsaid: what the verdict must not say, since it would send people to the wrong place.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tcpkmon.collector.lab.link import Link, Way
from tests.truth.why import acts, exchanges, net, witness
from tests.truth.why.scenarios import APP, PATH, WINDOW, Scenario

SENDER = r"nothing to send|look at the sender|sender's program"
READER = r"reads? (too )?slowly|look at the reader|reader's program|reader is"
SNDBUF = r"limited by the send buffer"
NET = r"limited by the congestion window"
# bbr paces, and bounds what is in flight: both are its model of the path.
BBR = ("pacing", "cwnd", "slow_start")
REPAIR = witness.REPAIR
SPEED = 1.5
"""The usual length [s]: of a round trip of 20 ms, 75."""


def line(rate_mbit: float = 20, rtt_ms: float = 20, queue: int = 100_000, seed: int = 7) -> Link:
    """A plain line: half of the delay there, half back."""
    there = Way(rate_mbit=rate_mbit, delay_ms=rtt_ms / 2, queue_bytes=queue)
    return Link(there, Way(delay_ms=rtt_ms / 2), seed)


def way(rtt_ms: float = 20, **more: object) -> Link:
    """A line whose way there does more."""
    return Link(Way(delay_ms=rtt_ms / 2, **more), Way(delay_ms=rtt_ms / 2), 7)  # type: ignore[arg-type]


_new = partial(Scenario, held_out=True, seconds=SPEED)

# (a) Who sends closes at once, or the peer has closed. Until the last byte is sent, what bounded it
# goes on to; then it waits for the last ACKs.
CLOSES = (
    _new("1.5 MB and close at once, cubic", PATH, send=exchanges.closing(1_500_000), link=line(),
         witness=witness.closes(1_500_000, PATH), unsaid=(SENDER,)),
    # Ten segments go at once, the next ones wait for the window: 50 kB take two to three flights.
    _new("50 kB and close at once, RTT 60 ms, reno", PATH, send=exchanges.closing(50_000),
         link=line(rtt_ms=60), congestion="reno", seconds=0.8,
         witness=witness.closes(50_000, PATH), unsaid=(SENDER, READER)),
    # 64 kB of receive buffer, read at 2 MB/s at most; the line takes 12 MB/s.
    _new("600 kB and close at once, slow reader", WINDOW, send=exchanges.closing(600_000),
         read=acts.sleepy(16_384, 0.01), rcvbuf=65_536, link=line(100, 4, 400_000),
         witness=witness.closes(600_000, WINDOW, 0.05), unsaid=(SENDER,)),
    _new("800 kB and close at once, paced at 1 MB/s", ("pacing",), pacing=1_000_000,
         send=exchanges.closing(800_000), congestion="reno", link=line(50, 10, 400_000),
         witness=witness.closes(800_000, ("pacing",), 0.05), unsaid=(SENDER,)),
    # What TCP gave to the device comes to the link only some ms later: then both are true.
    _new("1 MB and close at once, own device of 10 Mbit/s", ("tsq",),
         send=exchanges.closing(1_000_000), prepare=net.local_queue(10, 500_000),
         link=line(100, 4, 400_000), witness=witness.closes(1_000_000, ("tsq",), 0.2),
         unsaid=(SENDER, READER)),
    _new("700 kB and SHUT_WR, 10 Mbit/s, RTT 40 ms", PATH,
         send=exchanges.closing(700_000, half=True), link=line(10, 40, 40_000),
         witness=witness.closes(700_000, PATH), unsaid=(SENDER,)),
    _new("a process exits with 1 MB unsent", PATH, send=exchanges.exits(1_000_000),
         link=line(16, 30),
         witness=witness.closes(1_000_000, PATH), unsaid=(SENDER,)),
    _new("CLOSE_WAIT: the peer's FIN came first, cubic", PATH, read=acts.ended(acts.drain),
         link=line(), unsaid=(SENDER, READER)),
    _new("CLOSE_WAIT and a slow reader, reno", WINDOW, congestion="reno", rcvbuf=32_768,
         read=acts.ended(acts.sleepy(16_384, 0.01)), link=line(100, 4, 400_000), unsaid=(SENDER,)),
    _new("CLOSE_WAIT, bbr", BBR, congestion="bbr", read=acts.ended(acts.drain),
         link=line(30, 24, 300_000), unsaid=(SENDER, READER)),
    _new("download by a half-closed client, seen at the server", PATH, from_b=True,
         send=exchanges.serve, read=exchanges.fetch_half_closed,
         link=Link(Way(delay_ms=10), Way(rate_mbit=20, delay_ms=10, queue_bytes=60_000), 7),
         unsaid=(SENDER, READER)),
)  # fmt: skip

# (b) The last segments are lost. Judged is the time from the loss until the sender knows that it is
# repaired: what waits for a probe or a timeout waits for the loss, not for the application.
TAILS = (
    _new("tail of each answer of 30 kB is lost once", REPAIR, send=exchanges.answers(30_000, 0.05),
         read=acts.answer(30_000), link=way(40, rate_mbit=50, lose=(29_990, 30_000),
         lose_every=30_000), witness=witness.repairs(), unsaid=(READER, SNDBUF)),
    _new("tail of each answer of 12 kB is lost twice, reno", REPAIR, congestion="reno",
         send=exchanges.answers(12_000, 0.02), read=acts.answer(12_000),
         link=way(20, lose=(11_990, 12_000), lose_every=12_000, lose_times=2),
         witness=witness.repairs(), unsaid=(SENDER, READER, SNDBUF)),
    # closing would be said of any end; here a loss is what it waits for, and nothing else.
    _new("the last 5 segments before a close are lost", REPAIR, send=exchanges.closing(100_000),
         link=way(30, rate_mbit=20, lose=(93_000, 100_000)), witness=witness.repairs(),
         unsaid=(SENDER, READER)),
    _new("tail of each answer of 60 kB is lost once, bbr", REPAIR, congestion="bbr",
         send=exchanges.answers(60_000, 0.03), read=acts.answer(60_000),
         link=way(30, rate_mbit=30, lose=(59_990, 60_000), lose_every=60_000),
         witness=witness.repairs(), unsaid=(READER, SNDBUF)),
    # Nothing comes after the lost tail: no hole is seen, and the reader has all that came.
    _new("receiver: tail of each answer is lost", ("rx_none",), receiver=True,
         send=exchanges.answers(20_000, 0.04), read=acts.answer(20_000),
         link=way(40, lose=(19_990, 20_000), lose_every=20_000), unsaid=(READER,)),
)  # fmt: skip

# (c) Kept connections. From the first byte of an answer until its last one is sent the path bounds
# it, where the window is too small; after that there is nothing to send.
KEPT = (
    _new("answers of 20 kB, pauses of 50 ms", APP, send=exchanges.answers(20_000, 0.05),
         read=acts.answer(20_000), link=line(), unsaid=(NET, READER),
         witness=witness.messages(20_000, truth=PATH, least_s=0)),
    _new("answers of 100 kB, pauses of 80 ms", APP, send=exchanges.answers(100_000, 0.08),
         read=acts.answer(100_000), link=line(50, 30, 400_000),
         witness=witness.messages(100_000, truth=PATH, skip=0, least_s=0), unsaid=(READER,)),
    _new("answers of 50 kB, small send buffer", ("sndbuf", *APP), sndbuf=16_384, offloads=False,
         send=exchanges.blocked(50_000, 0.06, ("sndbuf",)), read=acts.answer(50_000),
         link=line(50, 20, 400_000), unsaid=(READER, NET)),
    _new("answers of 60 kB, pauses of 70 ms, bbr", APP, send=exchanges.answers(60_000, 0.07),
         congestion="bbr", read=acts.answer(60_000), link=line(30, 20, 400_000),
         witness=witness.messages(60_000, truth=BBR, least_s=0), unsaid=(READER,)),
)  # fmt: skip

# (d) The sender's own shaper
SHAPERS = (
    _new("own HTB, 2 Mbit/s, reno", ("tsq",), congestion="reno", link=line(100, 10, 400_000),
         prepare=net.local_htb(2, "burst 5k"), from_s=0.4, unsaid=(SENDER, READER)),
    _new("own HTB, 10 Mbit/s, cubic", ("tsq",), prepare=net.local_htb(10, "burst 5k"),
         link=line(100, 10, 400_000), from_s=0.4, unsaid=(SENDER, READER)),
    _new("own TBF, 50 Mbit/s, cubic", ("tsq",), prepare=net.local_queue(50, 2_000_000),
         link=line(200, 6, 400_000), from_s=0.4, unsaid=(SENDER, READER)),
    _new("answers of 100 kB through an own TBF, 10 Mbit/s", ("tsq", *APP),
         prepare=net.local_queue(10, 500_000), send=exchanges.slow_device_answers(100_000, 0.06),
         read=acts.answer(100_000), link=line(100, 6, 400_000), unsaid=(READER,)),
)  # fmt: skip

# (e) Data that TCP keeps back to fill a segment
CORKS = (
    _new("TCP_CORK over 40 ms of work", ("nagle", *APP), send=exchanges.corked(500, 0.04),
         read=acts.answer(1000), link=line(), unsaid=(READER, NET)),
    _new("MSG_MORE over 25 ms of work, three parts", ("nagle", *APP),
         send=exchanges.corked(300, 0.0125, 3, more=True), read=acts.answer(900),
         link=line(20, 10), unsaid=(READER, NET)),
    _new("three writes and Nagle, RTT 24 ms, reno", ("nagle", *APP), send=acts.ping_pong(0.01, 3),
         congestion="reno", read=acts.answer(300), link=line(20, 24),
         witness=witness.kept_back(100, 300), unsaid=(READER, NET)),
)  # fmt: skip

# (f) Pacing, and a window near the paced rate
PACED = (
    _new("paced at 600 kB/s, RTT 30 ms", ("pacing",), pacing=600_000, link=line(20, 30),
         unsaid=(SENDER, READER)),
    _new("paced at 250 kB/s, bbr", ("pacing",), pacing=250_000, congestion="bbr", link=line(20, 20),
         unsaid=(SENDER, READER)),
    # 20 segments in 30 ms are 965 kB/s; pacing would let 20 % more through. The window is full
    # when an ACK comes, and what the ACK lets out waits no more for pacing.
    _new("window of 20 segments, paced 20 % above it", ("cwnd", "slow_start"), pacing=1_160_000,
         prepare=exchanges.clamped(20), link=line(50, 30, 400_000), unsaid=(SENDER, READER)),
    _new("window of 20 segments, paced 30 % below it", ("pacing",), pacing=675_000,
         prepare=exchanges.clamped(20), link=line(50, 30, 400_000), unsaid=(SENDER, READER)),
)  # fmt: skip

# (g) Slots, jitter, reordering
SLOTS = (
    _new("slots of 20 ms, cubic", PATH, link=way(10, rate_mbit=20, slot_ms=20, queue_bytes=80_000),
         unsaid=(SENDER, READER)),
    _new("slots of 10 ms, bbr", BBR, congestion="bbr",
         link=way(20, rate_mbit=30, slot_ms=10, queue_bytes=400_000), unsaid=(SENDER, READER)),
    _new("ACKs in slots of 15 ms, thinned, reno", PATH, congestion="reno",
         link=Link(Way(rate_mbit=20, delay_ms=5, queue_bytes=100_000),
                   Way(delay_ms=5, slot_ms=15, ack_thin=True), 7), unsaid=(SENDER, READER)),
    _new("jitter of 12 ms in order, cubic", PATH,
         link=way(20, rate_mbit=20, jitter_ms=12, queue_bytes=60_000), unsaid=(SENDER, READER)),
    _new("jitter of 4 ms that reorders, cubic", PATH,
         link=way(20, rate_mbit=20, jitter_ms=4, jitter_reorders=True, queue_bytes=60_000),
         unsaid=(SENDER, READER)),
    _new("2 % of segments come 15 ms late, reno", PATH, congestion="reno",
         link=way(20, rate_mbit=20, reorder_percent=2, reorder_ms=15, queue_bytes=60_000),
         unsaid=(SENDER, READER)),
    # Its queue drops now and then: then there are holes.
    _new("receiver: slots of 20 ms", ("rx_none", "rx_reorder"), receiver=True,
         link=way(10, rate_mbit=20, slot_ms=20, queue_bytes=80_000),
         witness=witness.holes(from_s=0.3), unsaid=(READER,)),
    _new("receiver: slots of 30 ms, bbr", ("rx_none",), receiver=True, congestion="bbr",
         link=way(20, rate_mbit=20, slot_ms=30, queue_bytes=400_000), unsaid=(READER,)),
    _new("receiver: 1 % of segments come 20 ms late", ("rx_reorder", "rx_none"), receiver=True,
         link=way(20, rate_mbit=20, reorder_percent=1, reorder_ms=20, queue_bytes=200_000),
         witness=witness.holes(from_s=0.3), unsaid=(READER, "look at the sender")),
)  # fmt: skip

# (h) Policers
POLICED = (
    _new("policer of 8 Mbit/s, cubic", PATH, link=way(20, police_mbit=8, police_bytes=40_000),
         unsaid=(SENDER, READER)),
    # bbr goes on sending at its rate into the losses: it recovers nearly all the time, and paces.
    _new("policer of 10 Mbit/s, bbr", (*BBR, *REPAIR), congestion="bbr",
         link=way(30, police_mbit=10, police_bytes=30_000), unsaid=(SENDER, READER)),
    _new("receiver: policer of 8 Mbit/s", ("rx_reorder", "rx_none"), receiver=True,
         link=way(30, police_mbit=8, police_bytes=40_000), witness=witness.holes(from_s=0.3),
         unsaid=(READER,)),
)  # fmt: skip

# (i) Active queues. With marks nothing is lost: there is nothing to recover.
MARKED = ("cwnd", "slow_start")
_ECN = net.settings(ecn="1")
ACTIVE = (
    _new("CoDel that drops, cubic", PATH, link=way(30, rate_mbit=20, codel_ms=5),
         unsaid=(SENDER, READER)),
    _new("CoDel that marks, cubic", MARKED, prepare=_ECN, unsaid=(SENDER, READER, "lost|loss"),
         link=way(30, rate_mbit=20, codel_ms=5, ecn=True)),
    _new("marks above 20 kB, reno", MARKED, congestion="reno", prepare=_ECN,
         link=way(20, rate_mbit=30, ecn_above_bytes=20_000),
         unsaid=(SENDER, READER, "lost|loss")),
)  # fmt: skip

# (j) Handshakes
OPENINGS = (
    _new("the first SYN is lost", ("opening",), opens=True, link=way(20, syn_loss=1), seconds=0.3,
         send=acts.trickle(2_000, 0.02), unsaid=(READER, NET)),
    _new("the first SYN-ACK is lost", ("opening",), opens=True, seconds=0.3,
         link=Link(Way(delay_ms=20), Way(delay_ms=20, synack_loss=1)),
         send=acts.trickle(2_000, 0.02), unsaid=(READER, NET)),
    # (n) With data in the SYN
    _new("Fast Open, then 800 kB", PATH, prepare=net.settings(fastopen="519"),
         dial=exchanges.fast_open(1_000), send=acts.once(800_000), link=line(16, 40),
         witness=witness.opens(PATH, 800_000), unsaid=(READER, SNDBUF)),
    _new("Fast Open, the SYN-ACK is lost", ("opening",), dial=exchanges.fast_open(1_000),
         prepare=net.settings(fastopen="519"), send=acts.once(60_000), opens=False,
         link=Link(Way(rate_mbit=20, delay_ms=15), Way(delay_ms=15, synack_loss=1)), seconds=1.4,
         witness=witness.opens(PATH, 60_000), unsaid=(READER, SNDBUF)),
)  # fmt: skip

# (k) Nobody answers any more: what is in flight is lost, nothing else is missing.
DEAD = (
    _new("peer dies in a bulk transfer", REPAIR, link=line(), seconds=2.0,
         disturb=exchanges.changes(0, Way(down=True), 0.4), witness=witness.resent(),
         unsaid=(READER, SNDBUF)),
    _new("peer dies while the application pauses", REPAIR, link=line(), seconds=2.0,
         congestion="reno", send=acts.trickle(2_000, 0.05), witness=witness.resent(),
         disturb=exchanges.changes(0, Way(down=True), 0.4), unsaid=(READER, SNDBUF)),
    _new("MTU black hole", REPAIR, link=way(20, mtu=1_200), seconds=2.0, witness=witness.resent(),
         unsaid=(SENDER, READER, SNDBUF)),
    _new("peer dies after a close", REPAIR, link=line(), seconds=2.0, witness=witness.resent(),
         send=exchanges.closing(120_000), disturb=exchanges.changes(0, Way(down=True), 0.05),
         unsaid=(SENDER, READER)),
)  # fmt: skip

# (l) Readers. A hundredth of a CPU and much work for each byte: its buffer is full all the time.
READERS = (
    _new("reader with 8 % of a CPU", WINDOW, read=exchanges.quota_reader(8, 400), rcvbuf=65_536,
         link=line(100, 4, 400_000), from_s=0.5, unsaid=(SENDER, NET)),
    _new("receiver: reader with 8 % of a CPU, reno", ("rx_app",), congestion="reno", receiver=True,
         read=exchanges.quota_reader(8, 400), rcvbuf=65_536, link=line(100, 4, 400_000), from_s=0.5,
         unsaid=(r"missing|reordered",)),
    # What its queue drops leaves holes; the reader is no limit.
    _new("receiver: reader does something else for 0.4 ms, once", ("rx_none", "rx_reorder"),
         receiver=True, read=exchanges.hiccup(0.7, 0.0004), link=line(),
         witness=witness.holes(from_s=0.3), unsaid=(READER,)),
)  # fmt: skip

# (m) No window scaling: 64 kB in 100 ms are 5 Mbit/s of 50.
_UNSCALED = net.settings(window_scaling="0")
UNSCALED = (
    _new("no window scaling, RTT 100 ms", WINDOW, prepare=_UNSCALED, link=line(50, 100, 400_000),
         from_s=0.6, seconds=1.8, unsaid=(SENDER, READER)),
    _new("receiver: no window scaling, RTT 100 ms", ("rx_autotune",), prepare=_UNSCALED,
         link=line(50, 100, 400_000), from_s=0.6, seconds=1.8, receiver=True, unsaid=(READER,)),
)  # fmt: skip

# (o) Both directions at once
DUPLEX = (
    _new("both ends send, 20 and 5 Mbit/s", PATH, read=acts.duplex(acts.drain),
         link=Link(Way(rate_mbit=20, delay_ms=8, queue_bytes=80_000),
                   Way(rate_mbit=5, delay_ms=8, queue_bytes=40_000), 7), unsaid=(SENDER, READER)),
    _new("both ends send, b reads slowly", WINDOW, rcvbuf=32_768, unsaid=(SENDER,),
         read=acts.duplex(acts.sleepy(16_384, 0.01)),
         link=Link(Way(rate_mbit=100, delay_ms=3, queue_bytes=400_000),
                   Way(rate_mbit=20, delay_ms=3, queue_bytes=60_000), 7)),
)  # fmt: skip

# (p) Long paths, lost ACKs
LONG = (
    _new("satellite, RTT 600 ms, cubic", ("slow_start", "cwnd"), link=line(10, 600, 2_000_000),
         from_s=0.05, seconds=2.4, unsaid=(SENDER, READER)),
    # 10 segments, then 20: sent after one round trip, acknowledged after two
    _new("satellite, 40 kB and close", ("slow_start", "cwnd"), link=line(10, 500, 2_000_000),
         send=exchanges.closing(40_000), seconds=1.8, congestion="reno",
         witness=witness.closes(40_000, ("slow_start", "cwnd")), unsaid=(SENDER, READER)),
    _new("satellite, RTT 500 ms, bbr", BBR, link=line(4, 500, 2_000_000), congestion="bbr",
         from_s=0.05, seconds=2.4, unsaid=(SENDER, READER)),
    _new("30 % of the ACKs are lost, cubic", PATH, unsaid=(SENDER, READER),
         link=Link(Way(rate_mbit=20, delay_ms=10, queue_bytes=80_000),
                   Way(delay_ms=10, ack_loss_percent=30), 7)),
    # 64 kB of buffer hold some 30 kB of data: 200 ms at 20 Mbit/s would need 500 kB.
    _new("send buffer of 64 kB, RTT 200 ms, reno", ("sndbuf",), sndbuf=65_536, congestion="reno",
         offloads=False,
         link=line(20, 200, 400_000), from_s=1.0, seconds=2.4, unsaid=(READER,)),
    _new("bursts of losses, cubic", PATH, unsaid=(SENDER, READER),
         link=way(24, rate_mbit=30, queue_bytes=150_000, burst_percent=0.3, burst_packets=6)),
)  # fmt: skip

FAMILIES = {
    "closes": CLOSES, "lost tails": TAILS, "kept connections": KEPT, "own shapers": SHAPERS,
    "corks, Nagle": CORKS, "pacing": PACED, "slots, jitter, order": SLOTS, "policers": POLICED,
    "AQM, ECN": ACTIVE, "handshakes": OPENINGS, "dead peers": DEAD, "readers": READERS,
    "no window scaling": UNSCALED, "both directions": DUPLEX, "long paths, ACKs": LONG,
}  # fmt: skip
TUNED = ("closes", "lost tails", "kept connections", "corks, Nagle", "pacing")
UNSEEN = tuple(
    replace(one, family=name, held_out=name not in TUNED)
    for name, family in FAMILIES.items() for one in family
)  # fmt: skip
