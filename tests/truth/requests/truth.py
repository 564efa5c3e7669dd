# SPDX-License-Identifier: Apache-2.0
"""What is known of a request from its client's clock and its server's log, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

TOLERANCE_NS = 1_000_000
SHARE = 0.99
"""So many of the rows must be right within TOLERANCE_NS; of less than a hundred all but one."""
_CLEAR_NS, _CLEAR, _BUFFERED = 2_000_000, 1.5, 65536
Bounds = dict[str, tuple[int, int]]


def enough(right: int, of: int) -> bool:
    return of - right <= max(1, (1 - SHARE) * of)


@dataclass
class Exchange:
    """One request and its answer. Times are CLOCK_MONOTONIC in ns; 0: nobody noted it.

    client, server: ports. send, final: before the first and the last send call; sent: after that.
    first, last: after the first and the last receive call that returned bytes of the answer.
    asked, answered: bytes, -1 where encryption hides them. think: what the server needed at least,
    by its own log; think_most: at most, where the client's clock does not say. read: how long the
    answer lay there, complete, before the client read it. idle: from the last answer, or the
    connection's begin, to this request, -1: unknown. serving: what the server's log gives for
    the whole, least and most.
    """

    client: int
    server: int
    send: int = 0
    final: int = 0
    sent: int = 0
    first: int = 0
    last: int = 0
    asked: int = -1
    answered: int = -1
    think: int = 0
    think_most: int = 0
    read: tuple[int, int] | None = None
    idle: int = -1
    serving: tuple[int, int] | None = None


def chain(found: Sequence[Exchange]) -> None:
    """Fills `idle` of the exchanges of one connection, which are in order."""
    for before, one in pairwise(found):
        if before.last and one.send:
            one.idle = one.send - before.last


def bounds(one: Exchange, before: Exchange | None, side: str, rtt_ns: int) -> Bounds:
    """Between which values each column must be, TOLERANCE_NS aside; `answer` is response and read.

    before: the exchange before it on its connection. rtt_ns: of the path, 0 for loopback.
    """
    found: Bounds = {}
    late = one.read[0] if one.read is not None else 0
    think_most = one.first - one.final - rtt_ns - late if one.first else one.think_most
    if think_most:
        found["think_ns"] = (min(one.think, think_most), think_most)
    if not one.last:
        return found
    total, writing = one.last - one.send, one.sent - one.send
    large = one.asked > _BUFFERED
    # What one call writes needs no time of its own, but the caller may lose its CPU there.
    found["request_ns"] = (writing if large or one.final > one.send else 0, writing)
    if side == "client":
        found["total_ns"] = (total, total)
        found["answer"] = (
            one.last - one.first,
            max(one.last - one.first, one.last - one.final - one.think),
        )
        found["network_ns"] = (rtt_ns, min(rtt_ns + TOLERANCE_NS, one.first - one.send))
        if one.read is not None:
            found["read_ns"] = one.read
            arriving = one.last - one.first
            found["response_ns"] = (arriving, arriving)
        if one.idle >= 0:
            found["wait_ns"] = (one.idle, one.idle)
    else:
        if large:  # what is written may arrive later
            found["request_ns"] = (writing, max(writing, one.first - one.send - one.think))
        found["total_ns"] = one.serving or (min(total, writing + one.think), total + rtt_ns)
        if one.idle >= 0 and before is not None:
            found["wait_ns"] = (one.idle, one.idle + before.last - before.final - before.think)
    return found


def largest(one: Exchange, rtt_ns: int) -> tuple[str, int]:
    """The part that took longest at the client, and its time; "": that is not clear."""
    if not one.last:
        return "", 0
    parts = {
        "wait": max(0, one.idle),
        "request": bounds(one, None, "client", rtt_ns)["request_ns"][0],
        "network": rtt_ns,
        "think": one.think,
        "answer": one.last - one.first,
    }
    if one.read is not None:
        parts["read"] = one.read[0]
    first, second = sorted(parts.values(), reverse=True)[:2]
    unknown = one.first - one.sent - rtt_ns - one.think - parts.get("read", 0)
    if first < max(_CLEAR_NS, _CLEAR * second, 2 * unknown):
        return "", 0
    return max(parts, key=lambda name: parts[name]), first
