# SPDX-License-Identifier: Apache-2.0
"""M4: how much longer a paced stream takes while it is recorded."""

from __future__ import annotations

import math

from scripts.experiments import tools
from scripts.experiments.context import Context
from scripts.experiments.figure import Figure, Value
from scripts.experiments.report import Table
from scripts.experiments.results import Results
from scripts.experiments.stats import number
from scripts.magnet.wire import Link, Wire, magnet, wired

NAME = "M4"
TITLE = "M4: a paced stream"
SERVER, CLIENT = "recording at the sender", "recording at the receiver"
TCPDUMP = "tcpdump at the sender"
PAPER = {SERVER: 1.0011, CLIENT: 1.0007, TCPDUMP: 1.13}
MOST = 1.002
TRIALS = 3
"""Of each case in a round."""
SECONDS, QUICK_SECONDS, PAUSE_MS, BYTES = 0.5, 0.2, 5, 10_000
BARE = "nothing around "


def measure(context: Context) -> None:
    """Nothing, a case, nothing, the next case and so on; a pause begins when a write has ended."""
    with wired(context) as wire:
        wire.set(Link(100, offload=False))
        every = (
            magnet(wire.lab, SERVER, "a"),
            magnet(wire.lab, CLIENT, "b"),
            tools.tcpdump(TCPDUMP, wire.lab.a),
        )
        cases = [one for one in every if one.name in PAPER]
        for _ in context.each_round(NAME):
            before = _streams(context, wire)
            for tool in tools.usable(context, NAME, cases):
                with tools.tolerating(context, NAME, tool):
                    with tool.running(context.folder, wire.warm) as it:
                        during = _streams(context, wire)
                        it.end()
                    after = _streams(context, wire)
                    for one, other, third in zip(before, during, after, strict=True):
                        context.results.add(NAME, BARE + tool.name, "s", (one + third) / 2)
                        context.results.add(NAME, tool.name, "s", other)
                    before = after


def _streams(context: Context, wire: Wire) -> list[float]:
    """The seconds of each of some streams."""
    writes = int(context.pick(SECONDS, QUICK_SECONDS) * 1000 / PAUSE_MS)
    order = f"stream {writes} {BYTES} {PAUSE_MS * 1000}"
    return [wire.load.run(order).seconds for _ in range(TRIALS)]


def times(results: Results, case: str) -> Value | None:
    """How many times as long the streams took."""
    pairs = zip(results.all(NAME, case, "s"), results.all(NAME, BARE + case, "s"), strict=True)
    found = [math.log(a / b) for a, b in pairs]
    return Value.of(found) if len(found) > 1 else None


def figures(results: Results) -> list[Figure]:
    found = []
    for case, paper in PAPER.items():
        value = times(results, case)
        if value is None:
            continue
        name, now = f"{NAME}: a paced stream takes, {case}", "x " + value.text(4)
        if case == TCPDUMP:
            found.append(Figure(name, f"x {paper}", now, "-", None))
        else:
            found.append(value.figure(name, f"x {paper}", f"at most x {MOST}", MOST, now))
    return found


def tables(results: Results) -> list[Table]:
    rows = []
    for case in PAPER:
        value, bare = times(results, case), results.spread(NAME, BARE + case, "s")
        if value is not None and bare is not None:
            rows.append([case, number(value.rounds, 0), number(bare.median, 4),
                         "x " + value.text(5)])  # fmt: skip
    return [
        Table(
            f"Writes of {BYTES:,} bytes, {PAUSE_MS} ms after one another",
            ("", "trials", "s without it (median)", "with it"),
            rows,
            "The pause begins when the write has ended, so that a slower write makes a longer "
            "stream. In 2001: a stream of 46.02 s.",
        )
    ]
