# SPDX-License-Identifier: Apache-2.0
"""Keeps a capture within its budget: measures what it costs, and takes or takes back steps.

    part of the budget in use (the largest of CPU, disk rate, memory)
    1.0  ------x---x-------------------------  above: one step more
    0.7  ----------x--------------------------  below for back_after_s: one step back
                    x x x x x x
    step 0     0   1   2 2 2 2 2 2         1
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tcpkmon.collector.control.handlers import Handlers
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.plan.budget import Budget
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.session.pulse import resident_bytes
from tcpkmon.collector.session.summary import say
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.formats.base.shedding import Why, describe_why, encode_why

BACK_BELOW = 0.7
MOST_BACKOFF = 32
"""A step that was taken back too early is taken back again after twice the time; at most this many
times back_after_s."""
LOOK_S = 0.25
WINDOW_S = 2.0
LEAST_S = 1.0
"""A mean is over the last WINDOW_S since the last step, and at least LEAST_S."""
GREW = 1.02
"""Memory that grew by less is not that of more load."""
_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


@dataclass(frozen=True)
class Measured:
    """What the capture costs: CPUs, bytes a second, resident bytes; at a moment."""

    at_s: float
    cpu: float = 0.0
    disk: float = 0.0
    memory: int = 0


@dataclass(frozen=True)
class Decision:
    """So many steps from now on; part: how much of the budget is in use. is_stuck: no step is left
    that would help."""

    level: int
    why: Why
    part: float
    is_stuck: bool = False


class Controller:
    """Decides by what was measured alone. most: how many steps there are."""

    def __init__(self, budget: Budget, most: int) -> None:
        self.level = 0
        self._budget, self._most = budget, most
        self._wait_s = budget.back_after_s
        self._calm_s: float | None = None
        self._back_s: float | None = None
        self._memory = 0
        self._told: Why | None = None

    def feed(self, now: Measured) -> Decision | None:
        """The next measurement; what to do, None: nothing. Times never decrease."""
        parts = self._parts(now)
        why = max(parts, key=lambda one: parts[one])
        if self._back_s is not None and now.at_s - self._back_s >= self._wait_s:
            self._back_s, self._wait_s = None, self._budget.back_after_s
        if parts[why] > 1:
            return self._over(now, why, parts[why])
        self._told = None
        if not self.level or parts[why] >= BACK_BELOW:
            self._calm_s = None
            return None
        if self._calm_s is None:
            self._calm_s = now.at_s
        if now.at_s - self._calm_s < self._wait_s:
            return None
        self.level -= 1
        self._calm_s = self._back_s = now.at_s
        return Decision(self.level, Why.CALM, parts[why])

    def _over(self, now: Measured, why: Why, part: float) -> Decision | None:
        self._calm_s = None
        helps = why is not Why.MEMORY or now.memory > GREW * self._memory
        if self.level == self._most or not helps:
            if self._told is why:
                return None
            self._told = why
            return Decision(self.level, why, part, is_stuck=True)
        if why is Why.MEMORY:
            self._memory = now.memory
        if self._back_s is not None:
            self._wait_s = min(2 * self._wait_s, MOST_BACKOFF * self._budget.back_after_s)
            self._back_s = None
        self.level += 1
        self._told = None
        return Decision(self.level, why, part)

    def _parts(self, now: Measured) -> dict[Why, float]:
        """How much of each limit is in use."""
        budget = self._budget
        return {
            why: value / limit
            for why, value, limit in (
                (Why.CPU, now.cpu, budget.cpu),
                (Why.DISK_RATE, now.disk, budget.disk_bytes),
                (Why.MEMORY, now.memory, budget.memory_bytes),
            )
            if limit is not None
        }


class Meter:
    """Measures this process and the programs' run time, where the kernel counts that.

    nbytes: written so far; run_ns: of the programs so far.
    """

    def __init__(self, nbytes: Callable[[], int], run_ns: Callable[[], int]) -> None:
        self._nbytes, self._run_ns = nbytes, run_ns
        self._samples: deque[tuple[float, float, int]] = deque()

    def restart(self) -> None:
        """Forget what was before: something changed."""
        self._samples.clear()

    def read(self) -> Measured | None:
        """The means since the last change, at most over WINDOW_S; None while that is too short."""
        cpu_s = time.process_time() + self._run_ns() / 1e9
        now = time.monotonic(), cpu_s, self._nbytes()
        samples = self._samples
        samples.append(now)
        while len(samples) > 2 and now[0] - samples[1][0] >= WINDOW_S:
            samples.popleft()
        span_s = now[0] - samples[0][0]
        if span_s < LEAST_S:
            return None
        cpu, disk = (now[1] - samples[0][1]) / span_s, (now[2] - samples[0][2]) / span_s
        return Measured(now[0], cpu, disk, resident_bytes())


class Shedding:
    """The budget of a session, or none: then step() does nothing."""

    def __init__(
        self,
        request: Request,
        prepared: Prepared,
        kernel: Kernel,
        stream: Stream,
        handlers: Handlers,
    ) -> None:
        self._kernel, self._changes = kernel, handlers.changes
        self._next_s = 0.0
        self._last = ""
        self._budget = request.budget
        if request.budget is None:
            return
        self._steps = prepared.steps(set(prepared.enabled) - set(kernel.missing()))
        self._controller = Controller(request.budget, len(self._steps))
        self._meter = Meter(stream.bytes_written, self._run_ns)
        handlers.budget = self.told
        if kernel.shed_level:  # of a process that was killed
            with handlers.changes.making():
                kernel.shed(())

    def step(self) -> None:
        """Look, and decide. Call it often, once the capture goes on by itself."""
        if self._budget is None or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + LOOK_S
        measured = self._meter.read()
        decision = self._controller.feed(measured) if measured is not None else None
        if measured is not None and decision is not None:
            self._follow(decision, measured)

    def _follow(self, decision: Decision, measured: Measured) -> None:
        before = self._kernel.shed_level
        why = encode_why(decision.why, 100 * decision.part)
        self._last = describe_why(why)
        if decision.is_stuck:
            say(f"budget: {self._last}, and no step is left that would help "
                f"({before} of {len(self._steps)} in force)")
            return
        step = self._steps[max(before, decision.level) - 1]
        with self._changes.making(why=why):
            self._kernel.shed(self._steps[: decision.level])
        self._meter.restart()
        what = "leaves out" if decision.level > before else "taken back:"
        number = max(before, decision.level)
        say(f"budget: {self._last}: step {number} of {len(self._steps)} {what} {step.text}")

    def told(self) -> Mapping[str, Any]:
        """For the status."""
        level = self._kernel.shed_level
        return {
            "shed_level": level,
            "shed_steps": [step.text for step in self._steps[:level]],
            "shed_events": self._kernel.shed_events(),
            "shed_why": self._last if level else "",
        }

    def _run_ns(self) -> int:
        """0 where the kernel does not measure it."""
        try:
            if _STATS.read_text().strip() == "0":
                return 0
        except OSError:
            return 0
        return sum(one.run_ns for one in self._kernel.programs(self._kernel.heads()).values())
