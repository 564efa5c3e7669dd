# SPDX-License-Identifier: Apache-2.0
"""The cases: what is played, and what must be found. Written before any result was seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tcpkmon.collector.lab.link import Link, Way
from tests.truth.requests import python, redis
from tests.truth.requests.stage import Stage
from tests.truth.requests.truth import Exchange

EXACT, DEFAULT = ("--requests",), ()
AT_SERVER = (r"waited [^\n]*for the server's answer", r"its own program took [^\n]*to answer")
"""What `tcpkmon why` must say where the server thinks: of the client's end, of the server's."""


@dataclass(frozen=True)
class Case:
    """program: what must be installed. largest: the part that takes most of the time at the client.

    told: each request has its row; else bytes cannot tell them apart, and that must be said.
    may_hide: the bytes may look like those of a client that asks after each answer; then nothing
    can be said.
    unanswered: requests without an answer on each connection. options: of collect. says: what
    `tcpkmon why` must say. rtt_ms: the server is behind such a path.
    """

    name: str
    program: str
    play: Callable[[Stage], list[Exchange]]
    largest: str = ""
    told: bool = True
    may_hide: bool = False
    unanswered: int = 0
    options: Sequence[str] = EXACT
    pinned: bool = False
    says: Sequence[str] = ()
    rtt_ms: float = 0.0

    @property
    def link(self) -> Link | None:
        one_way = Way(delay_ms=self.rtt_ms / 2)
        return Link(one_way, one_way, 7) if self.rtt_ms else None


REDIS, PYTHON = "redis-server", "python3"


def _talk(count: int, kind: str = "plain", **how: float) -> Callable[[Stage], list[Exchange]]:
    return partial(python.talk, kind=kind, count=count, **how)  # type: ignore[arg-type]


_EACH = (
    Case("redis: DEBUG SLEEP", REDIS, redis.sleeps, "think", says=AT_SERVER),
    Case("redis: DEBUG SLEEP 0.4", REDIS, redis.long_sleeps, "think", says=AT_SERVER),
    Case("redis: open before the capture", REDIS, redis.open_before, "think"),
    Case("redis: one sleeps, fifteen wait", REDIS, redis.one_blocks, "think"),
    Case("redis: 100,000 GET and SET", REDIS, redis.get_set),
    Case("redis: batches of 50", REDIS, redis.batches),
    Case("redis: batches in which it sleeps", REDIS, redis.sleeping_batches, "think"),
    Case("redis: eight at a time", REDIS, redis.many_at_a_time, told=False, may_hide=True),
    Case("redis: answers of 8 MB", REDIS, redis.large_answers),
    Case("redis: answers of 8 MB, slow reader", REDIS, redis.slow_reader, "answer"),
    Case("redis: requests of 8 MB", REDIS, redis.large_requests),
    Case("client pauses", PYTHON, _talk(60, wait_ms=50), "wait"),
    Case("server thinks", PYTHON, _talk(60, think_ms=60, wait_ms=5), "think", says=AT_SERVER),
    Case("request in two parts", PYTHON, _talk(50, parts_ms=60), "request"),
    Case("answer in two halves", PYTHON, _talk(50, halves_ms=60), "answer"),
    Case("answer is read late", PYTHON, _talk(50, late_ms=60), "read"),
    Case("requests of 8 MB", PYTHON, _talk(20, size=8_000_000, think_ms=5, wait_ms=5)),
    Case("answers of 5 MB, slow reader", PYTHON, _talk(10, answer=5_000_000, rest_ms=3), "answer"),
    Case("server behind a path of 24 ms", PYTHON, _talk(40, think_ms=30, wait_ms=20), "network",
         rtt_ms=24),
    Case("server sends first", PYTHON, _talk(40, "greeting", think_ms=20, wait_ms=5), "think"),
    Case("server sends more behind its answer", PYTHON, python.pushing),
    Case("half-closing client", PYTHON, python.half_closing, "think"),
    Case("sixteen connections", PYTHON, python.crowd, "think"),
    Case("four at a time, in order", PYTHON, python.in_order, told=False, may_hide=True),
    Case("frames of eight at a time", PYTHON, python.frames, told=False),
)  # fmt: skip
_PINNED = ("redis: DEBUG SLEEP", "redis: 100,000 GET and SET", "redis: batches of 50",
           "server thinks", "answer is read late")  # fmt: skip
_DEFAULT = ("redis: DEBUG SLEEP", "redis: DEBUG SLEEP 0.4", "redis: 100,000 GET and SET",
            "redis: batches of 50", "redis: eight at a time", "redis: answers of 8 MB, slow reader",
            "client pauses", "server thinks", "request in two parts", "answer in two halves",
            "answer is read late", "server behind a path of 24 ms", "server sends first",
            "half-closing client", "four at a time, in order",
            "frames of eight at a time")  # fmt: skip
CASES = (
    *_EACH,
    *(replace(one, name=f"{one.name}, pinned", pinned=True) for one in _EACH
      if one.name in _PINNED),
    *(replace(one, name=f"{one.name}, default locations", options=DEFAULT) for one in _EACH
      if one.name in _DEFAULT),
)  # fmt: skip
