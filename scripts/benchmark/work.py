# SPDX-License-Identifier: Apache-2.0
"""The work of the slowdown section: kinds of TCP traffic, each done for a fixed time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from scripts.benchmark.iperf3 import Iperf3
from scripts.experiments.context import Context, cpus
from scripts.experiments.load import Done, Load
from tcpkmon.collector.lab.lab import Lab


@dataclass(frozen=True)
class Kind:
    """One kind of work; `order` is the load's, without the seconds."""

    order: str
    arguments: str = ""
    """Of the order, after the seconds."""
    seconds: float = 0.15
    together: bool = False
    """Both ends share a CPU. One exchange at a time never uses two CPUs at once; on two, it would
    measure how fast a sleeping virtual CPU wakes up."""
    loopback: bool = False
    unit: str = "round trips/s"
    scale: float = 1.0
    quick: bool = False
    """It is part of --quick."""


IPERF3 = "iperf3"
WORK = {
    "ping-pong, 1 connection": Kind("pingpong 1", seconds=0.3, together=True),
    "ping-pong, 16 connections": Kind("pingpong 16", seconds=0.3, quick=True),
    "ping-pong, 64 connections": Kind("pingpong 64", seconds=0.3),
    "bulk transfer": Kind("bulk", seconds=0.3, unit="GB/s", scale=1e-9, quick=True),
    "churn": Kind("churn", seconds=0.3, together=True, unit="connections/s", quick=True),
    "100 requests a connection": Kind("requests", together=True, quick=True),
    IPERF3: Kind("", unit="GB/s", scale=1e-9),
    "loopback, 1 connection, 1 byte": Kind("pingpong 1", " 1", together=True, loopback=True),
    "loopback, 1 connection, 64 bytes": Kind("pingpong 1", " 64", together=True, loopback=True),
    "loopback, 16 connections, 1 byte": Kind("pingpong 16", " 1", loopback=True, quick=True),
    "loopback, 16 connections, 64 bytes": Kind("pingpong 16", " 64", loopback=True),
}
"""By subject of the results. The first five are as they were in all earlier results."""
QUICK_SECONDS = 0.15


class Worker:
    """Does the work: the load over the wire and over loopback, and iperf3 where there is one."""

    def __init__(
        self, context: Context, lab: Lab, wire: Load, loopback: Load, iperf3: Iperf3 | None
    ) -> None:
        self.lab = lab
        self.wire = wire
        self._loopback = loopback
        self._iperf3 = iperf3
        self._quick = context.quick

    def warm(self) -> None:
        """A moment of traffic, for tools that are ready when they see some."""
        self.wire.run("pingpong 1 0.02")

    def run(self) -> dict[str, Done]:
        """All of it, once; what was done, by subject."""
        first, last = cpus()
        done = {}
        for subject, kind in WORK.items():
            if self._quick and not kind.quick:
                continue
            if subject == IPERF3:
                if self._iperf3 is not None:
                    done[subject] = self._iperf3.run()
                continue
            load = self._loopback if kind.loopback else self.wire
            load.pin(first, first if kind.together else last)
            seconds = QUICK_SECONDS if self._quick else kind.seconds
            done[subject] = load.run(f"{kind.order} {seconds}{kind.arguments}")
        return done


@contextlib.contextmanager
def working(context: Context, section: str) -> Iterator[Worker]:
    """A lab with everything that works in it. Without iperf3 its work is a skipped case."""
    with contextlib.ExitStack() as stack:
        lab, wire = stack.enter_context(context.lab())
        loopback = stack.enter_context(Load(context.load_program, lab, loopback=True))
        iperf3 = None
        if IPERF3 in context.missing:
            context.results.skip(section, IPERF3, context.missing[IPERF3])
        elif not context.quick:
            iperf3 = stack.enter_context(Iperf3(lab, context.folder / "iperf3"))
        yield Worker(context, lab, wire, loopback, iperf3)
