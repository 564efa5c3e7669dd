# SPDX-License-Identifier: Apache-2.0
"""The work of the slowdown section: kinds of TCP traffic, each done for a fixed time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scripts.benchmark import programs
from scripts.benchmark.programs import Program, Served
from scripts.experiments.context import Context, cpus
from scripts.experiments.load import Done, Load
from tcpkmon.collector.lab.lab import Lab


@dataclass(frozen=True)
class Kind:
    """One kind of work; `order` is the load's, without the seconds. Each end is pinned to a CPU."""

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
    program: Program | None = None
    """It is the work in place of the load."""


WORK = {
    "nginx and wrk, 4 kB files": Kind("", unit="requests/s", program=programs.NGINX),
    "redis and redis-benchmark": Kind("", unit="commands/s", program=programs.REDIS),
    "iperf3": Kind("", unit="GB/s", scale=1e-9, program=programs.IPERF3),
    "ping-pong, 1 connection": Kind("pingpong 1", seconds=0.2, together=True),
    "ping-pong, 16 connections": Kind("pingpong 16", seconds=0.2, quick=True),
    "bulk transfer": Kind("bulk", seconds=0.3, unit="GB/s", scale=1e-9, quick=True),
    "churn": Kind("churn", seconds=0.3, together=True, unit="connections/s", quick=True),
    "100 requests a connection": Kind("requests", together=True, quick=True),
    "loopback, 1 connection, 64 bytes": Kind("pingpong 1", " 64", together=True, loopback=True),
    "loopback, 16 connections, 1 byte": Kind("pingpong 16", " 1", loopback=True, quick=True),
}
"""By subject of the results: real programs first."""
QUICK_SECONDS = 0.15


class Worker:
    """Does the work: the load over the wire and over loopback, and programs, by subject."""

    def __init__(
        self, context: Context, lab: Lab, wire: Load, loopback: Load, served: Mapping[str, Served]
    ) -> None:
        self.lab = lab
        self.wire = wire
        self._loopback = loopback
        self._served = served
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
            if kind.program is not None:
                if subject in self._served:
                    done[subject] = self._served[subject].run()
                continue
            load = self._loopback if kind.loopback else self.wire
            load.pin(first, first if kind.together else last)
            seconds = QUICK_SECONDS if self._quick else kind.seconds
            done[subject] = load.run(f"{kind.order} {seconds}{kind.arguments}")
        return done


@contextlib.contextmanager
def working(context: Context, section: str) -> Iterator[Worker]:
    """A lab with everything that works in it. What lacks its program is a skipped case."""
    with contextlib.ExitStack() as stack:
        lab, wire = stack.enter_context(context.lab())
        loopback = stack.enter_context(Load(context.load_program, lab, loopback=True))
        served = {}
        for subject, kind in WORK.items():
            if kind.program is None or context.quick:
                continue
            lacks = [name for name in kind.program.needs if name in context.missing]
            if lacks:
                context.results.skip(section, subject, context.missing[lacks[0]])
                continue
            one = Served(lab, context.folder / kind.program.needs[0], kind.program)
            served[subject] = stack.enter_context(one)
        yield Worker(context, lab, wire, loopback, served)
