# SPDX-License-Identifier: Apache-2.0
"""Plays in which a rule of `tcpkmon conform` is broken: by a setting, or a congestion control."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.link import Way
from tcpkmon.collector.lab.pair import Pair
from tests.truth.conform.control import Control, registered
from tests.truth.conform.plays import PATHS, Course, Judged, judge, play_course

_REPAIR, _REPAIR_QUEUE, _SEND_QUEUE, _OFF = 19, 20, 2, -1


@dataclass(frozen=True)
class Broken:
    """how: in words. control: the congestion control, in place of cubic. judged_as: by whose rules.
    rules: those that must be broken; all others must be kept, but those of may."""

    how: str
    course: Course
    rules: tuple[str, ...]
    control: Control | None = None
    judged_as: str = ""
    may: tuple[str, ...] = ()


def trickle(lab: Lab, pair: Pair) -> None:
    """Small writes: the window is never used."""
    for _ in range(60):
        pair.client.sendall(bytes(2_000))
        time.sleep(0.02)


def repaired(lab: Lab, pair: Pair) -> None:
    """With TCP_REPAIR the kernel takes what is written as sent, whatever the windows are."""
    level = socket.IPPROTO_TCP
    pair.client.sendall(bytes(10_000))
    time.sleep(0.2)
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    pair.client.setsockopt(level, _REPAIR, 1)
    pair.client.setsockopt(level, _REPAIR_QUEUE, _SEND_QUEUE)
    pair.client.sendall(bytes(150_000))
    pair.client.setsockopt(level, _REPAIR, _OFF)
    pair.server.sendall(b"x")
    time.sleep(1)


_CALM = Way(rate_mbit=20, delay_ms=10, queue_bytes=60_000)
_DEEP = Way(rate_mbit=20, delay_ms=10, queue_bytes=2_000_000)
_IDLE = Course(PATHS["pause"].way, PATHS["pause"].act, {"net.ipv4.tcp_slow_start_after_idle": "0"})
_CUT = "u32 now = GET(snd_ssthresh); if (now > 2 && now < 0x7fffffff) PUT(snd_ssthresh, now - 1);"
_UNCUT = Control(ssthresh="return CWND;")

BREAKS = {
    "repair": Broken("TCP_REPAIR: 150 kB count as sent at once", Course(_CALM, repaired),
                     ("window", "cwnd")),
    "idle": Broken("`net.ipv4.tcp_slow_start_after_idle=0`", _IDLE, ("restart",)),
    "growth": Broken("struct_ops: three segments more for each one acknowledged", PATHS["queue"],
                     ("growth",), Control(grows="GROW(3);"), "reno"),
    "unused": Broken("struct_ops: the window grows though it is not used", Course(_CALM, trickle),
                     ("validation",), Control(grows="PUT(snd_cwnd, CWND + acked);"), "reno"),
    "uncut": Broken("struct_ops: ssthresh() returns the window", PATHS["loss"], ("ssthresh",),
                    _UNCUT, "reno", may=("rto_ssthresh",)),
    "uncut cubic": Broken("struct_ops: the same, judged `--as cubic`", PATHS["loss"], ("beta",),
                          _UNCUT, "cubic", may=("rto_ssthresh",)),
    "uncut by the timer": Broken("struct_ops: the same, in an outage of a path without loss",
                                 Course(_DEEP, PATHS["outage"].act), ("rto_ssthresh",), _UNCUT,
                                 "reno", may=("ssthresh",)),
    "loss window": Broken("struct_ops: set_state() sets 100 segments when a loss begins",
                          PATHS["outage"], ("loss_window",),
                          Control(state="if (value == 4) PUT(snd_cwnd, 100);")),
    "many cuts": Broken("struct_ops: each ACK lowers ssthresh by one", PATHS["loss"], ("once",),
                        Control(acked=_CUT), "reno"),
    "not reduced": Broken("struct_ops: the window doubles when CWR ends (COMPLETE_CWR)",
                          PATHS["marks"], ("reduced",),
                          Control(event="if (value == 2) PUT(snd_cwnd, 2 * CWND);"), "reno"),
    "doubled": Broken("struct_ops: the window doubles at a loss (cong_control)", PATHS["loss"],
                      ("recovery",), Control(state="if (value == 3) PUT(snd_cwnd, 2 * CWND);",
                                             whole=True), "reno"),
}  # fmt: skip


def play(path: Path, name: str) -> Judged:
    """KernelError where the kernel has no struct_ops for congestion controls."""
    one = BREAKS[name]
    with ExitStack() as stack:
        algorithm = stack.enter_context(registered(one.control)) if one.control else "cubic"
        play_course(path, one.course, algorithm)
    return judge(path, one.judged_as)
