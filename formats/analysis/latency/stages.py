# SPDX-License-Identifier: Apache-2.0
"""The places of a byte on its way, the parts of its time between them, and what a range can be."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple


class Stage(enum.IntEnum):
    """The events of schema magnet that are joined, in the order of a byte's way.

    ACK is an IP_RECV with an acknowledgement. ANCHOR is a MAGNET_CONNECTION's rcv_nxt.
    """

    SOCK_SEND = 0
    TCP_SEND = 1
    IP_SEND = 2
    DEV_SEND = 3
    DRIVER_START = 4
    DEV_RECV = 5
    IP_RECV = 6
    TCP_RECV = 7
    SOCK_RECV = 8
    ACK = 9
    ANCHOR = 10


EVENTS = tuple(Stage)[: Stage.ACK]
"""The stages that are events of their own."""
SENT = (Stage.SOCK_SEND, Stage.TCP_SEND, Stage.IP_SEND, Stage.DEV_SEND, Stage.DRIVER_START)
"""Events of the sending connection; the others belong to the receiving one."""
RANGES = (
    Stage.SOCK_SEND, Stage.IP_SEND, Stage.DEV_SEND, Stage.DRIVER_START,
    Stage.DEV_RECV, Stage.IP_RECV, Stage.SOCK_RECV,
)  # fmt: skip
"""Stages whose records are byte ranges. TCP_RECV and ACK say how far TCP has come."""
ACK_FLAG, RETRANSMISSION, UDP = 16, 256, 512
CONNECTION = "MAGNET_CONNECTION"

PARTS = ("buffer", "stack", "qdisc", "network", "return", "recovery", "hole", "reader")
"""The parts of a byte's time. Where parts cannot be told apart, one includes the others: the one
with the highest number in WEIGHTS."""
WEIGHTS = dict(
    stack=0, hole=1, reader=2, recovery=3, buffer=4, qdisc=5, network=6, round_trip=7,
)  # fmt: skip
ROUND_TRIP = "round_trip"
"""From the driver to the ACK, where the other end is not recorded: half is `network`, an estimate,
and the other half `return`."""
TIMES = (
    "write", "tcp_send", "transmit", "resent", "qdisc", "driver", "ack",
    "driver_in", "tcp", "complete", "inorder", "read",
)  # fmt: skip
"""The times of a range. transmit: first; resent: the transmission that arrived; complete: it and
all bytes before it have arrived."""


class Step(NamedTuple):
    """A time of a chain: the part that ends there, and the events that it comes from (the first
    of them that is recorded)."""

    time: str
    part: str
    events: tuple[Stage, ...]


_TRANSMIT = (Stage.IP_SEND, Stage.DEV_SEND, Stage.DRIVER_START)
_ARRIVE = (Stage.IP_RECV, Stage.DEV_RECV)
_BEGIN = (
    Step("write", "", (Stage.SOCK_SEND,)),
    Step("tcp_send", "stack", (Stage.TCP_SEND,)),
    Step("transmit", "buffer", _TRANSMIT),
)
_OUT = (
    Step("qdisc", "stack", (Stage.DEV_SEND,)),
    Step("driver", "qdisc", (Stage.DRIVER_START,)),
)
_IN = (
    Step("driver_in", "network", (Stage.DEV_RECV,)),
    Step("tcp", "stack", _ARRIVE),
    Step("complete", "hole", _ARRIVE),
    Step("inorder", "stack", (Stage.TCP_RECV,)),
    Step("read", "reader", (Stage.SOCK_RECV,)),
)
_ACKED = (Stage.IP_RECV,)


class Chain(enum.IntEnum):
    """Which times a range has: those of both ends, of one, or of a sender that sent it again."""

    BOTH = 0
    SENDER = 1
    RECEIVER = 2
    SENT_AGAIN = 3


CHAINS: dict[Chain, tuple[Step, ...]] = {
    Chain.BOTH: (*_BEGIN, Step("resent", "recovery", _TRANSMIT), *_OUT, *_IN),
    Chain.SENDER: (*_BEGIN, *_OUT, Step("ack", ROUND_TRIP, _ACKED)),
    Chain.RECEIVER: _IN,
    Chain.SENT_AGAIN: (*_BEGIN, Step("ack", "recovery", _ACKED)),
}


class State(enum.IntEnum):
    """Whether a range's parts are known, and if not, why."""

    MEASURED = 0
    BEGAN = 1
    """The capture began later than its way did."""
    ENDED = 2
    """It had not reached the end of its way when the capture ended."""
    LOST = 3
    """Records were lost, or events were off, while it was on its way."""
    MISSING = 4
    """A record is missing although none was lost."""
    CONTRADICTORY = 5
    """Records contradict each other."""

    @property
    def is_unknown(self) -> bool:
        """Whether it should be known."""
        return self >= State.LOST


class Link(NamedTuple):
    """Two neighbouring times of a chain, as far as they are recorded, and the part between them.

    includes: parts that cannot be told apart from it, as what is between them is not recorded.
    """

    begin: str
    end: str
    part: str
    includes: tuple[str, ...]


def make_links(chain: Chain, is_recorded: Callable[[Stage], bool]) -> list[Link]:
    """The links of a chain without the times that are not recorded."""
    found: list[Link] = []
    begin, between = "", []
    for step in CHAINS[chain]:
        between.append(step.part)
        if not any(map(is_recorded, step.events)):
            continue
        if begin:
            part = max(between, key=WEIGHTS.__getitem__)
            includes = tuple(dict.fromkeys(one for one in between if one != part))
            found.append(Link(begin, step.time, part, includes))
        begin, between = step.time, []
    return found
