# SPDX-License-Identifier: Apache-2.0
"""What a log of the schema sampler says: where the CPUs' time went, and a flame graph's stacks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tcpkmon.formats.analysis.event import Event
from tcpkmon.formats.analysis.log import Log
from tcpkmon.formats.base.errors import UsageError

IDLE = "IDLE"
SKIPPED = "SKIPPED"
_UNSAFE = re.compile(r"[^!-:<-~]+")
"""Not in a frame of a collapsed stack: it ends at ';', and the stack at a space."""


@dataclass
class Samples:
    """The samples of a capture: how many in each state, and their periods added up.

    The state SKIPPED is of looks that never came: a virtual CPU that its host stopped, or, as a
    rule, let sleep while it was idle.
    """

    states: Counter[str] = field(default_factory=Counter)
    time_ns: Counter[str] = field(default_factory=Counter)

    @property
    def shares(self) -> dict[str, float]:
        """Of the time of all looks."""
        total = sum(self.time_ns.values())
        return {state: time / total for state, time in self.time_ns.items()}


def count_samples(log: Log) -> Samples:
    """How often the CPUs were found in each state. UsageError for a log without the sampler."""
    found = Samples()
    for event in _choose(log, "SAMPLE"):
        for state, looks in ((str(event["state"]), 1), (SKIPPED, event["ticks"] - 1)):
            if looks > 0:
                found.states[state] += looks
                found.time_ns[state] += looks * event["period"]
    return found


def collapse_stacks(log: Log, idle: bool = False) -> Counter[str]:
    """Stacks as flame graph tools take them, 'name;outermost;...;innermost', and how often each.

    Kernel functions end in _[k], a program's frames are addresses. Without recorded stacks a stack
    has one frame, where the program counter was. idle: idle CPUs too. UsageError for a log without
    the sampler.
    """
    found: Counter[str] = Counter()
    under_way: dict[int, tuple[Event, list[Event]]] = {}
    for event in _choose(log, "SAMPLE", "SAMPLE_FRAME"):
        if event.type == "SAMPLE_FRAME":
            if event.cpu in under_way:
                under_way[event.cpu][1].append(event)
            continue
        if (before := under_way.pop(event.cpu, None)) is not None:
            found[_line(*before)] += 1
        if idle or event["state"] != IDLE:
            under_way[event.cpu] = (event, [])
    for sample, frames in under_way.values():
        found[_line(sample, frames)] += 1
    return found


def _line(sample: Event, frames: list[Event]) -> str:
    kernel = [_frame(one["symbol"], one["address"]) for one in frames if one["part"] == "KERNEL"]
    program = [_frame("", one["address"]) for one in frames if one["part"] == "PROGRAM"]
    if not frames:
        kernel = [_frame(sample["symbol"], sample["pc"])]
    name = "idle" if sample["state"] == IDLE else _clean(sample["comm"]) or "-"
    return ";".join([name, *reversed(program), *reversed(kernel)])


def _frame(symbol: str, address: int) -> str:
    if symbol:
        return f"{_clean(symbol)}_[k]"
    return f"0x{address:x}{'_[k]' if address >> 63 else ''}"


def _clean(text: str) -> str:
    return _UNSAFE.sub("_", text)


def _choose(log: Log, *events: str) -> Iterator[Event]:
    known = {event.name for event in log.format.events}
    if "SAMPLE" not in known:
        raise UsageError("the log has no samples", "collect --schema sampler")
    return iter(log.choose(*(name for name in events if name in known)))
