# SPDX-License-Identifier: Apache-2.0
"""The work of the slowdown section: kinds of TCP traffic, each done for a fixed time."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

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


NEAR = 1.7
"""Two CPUs are as near as they can be up to so many times the shortest way between them."""
PAUSE_S = 0.1
PATIENCE_S = 90.0
"""For so long, in all, a worker waits until they are."""


class Nearness:
    """Whether the CPUs of both ends are near each other.

    A hypervisor moves virtual CPUs: to cores that share a cache, where a cache line goes from one
    to the other within some 30 ns, or to others, within 170. A transfer then runs at a third of
    the speed, for seconds: one would measure when that happens.
    """

    def __init__(self, load: Load, patience_s: float = PATIENCE_S) -> None:
        self._load, self._left_s = load, patience_s
        self._shortest_ns = math.inf
        self.seen = self.far = 0
        """How many pieces of work were done, and how many of them between CPUs that were far."""

    def doing(self, work: Callable[[], Done]) -> Done:
        """The work, again where the CPUs were not near before and after it."""
        first, last = cpus()
        if first == last:
            return work()
        near = self._is_near(first, last)
        while True:
            while not near and self._left_s > 0:
                time.sleep(PAUSE_S)
                self._left_s -= PAUSE_S
                near = self._is_near(first, last)
            begun = time.monotonic()
            done = work()
            near &= self._is_near(first, last)
            if near or self._left_s <= 0:
                self.seen, self.far = self.seen + 1, self.far + (not near)
                return done
            self._left_s -= time.monotonic() - begun

    def _is_near(self, first: int, last: int) -> bool:
        found_ns = self._load.distance_ns(first, last)
        self._shortest_ns = min(self._shortest_ns, found_ns)
        return found_ns <= NEAR * self._shortest_ns


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
        self.nearness = Nearness(wire, 0.0 if context.quick else PATIENCE_S)

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
                    done[subject] = self.nearness.doing(self._served[subject].run)
                continue
            load = self._loopback if kind.loopback else self.wire
            load.pin(first, first if kind.together else last)
            seconds = QUICK_SECONDS if self._quick else kind.seconds
            run = partial(load.run, f"{kind.order} {seconds}{kind.arguments}")
            done[subject] = run() if kind.together else self.nearness.doing(run)
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
