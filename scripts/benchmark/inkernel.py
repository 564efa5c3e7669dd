# SPDX-License-Identifier: Apache-2.0
"""Nanoseconds in the kernel per event, by location and by the way to attach."""

from __future__ import annotations

import os

from scripts.experiments.capture import capturing, discard
from scripts.experiments.context import Context, cpus
from scripts.experiments.load import Load
from scripts.experiments.program_runs import empty_program, runs_of
from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.privileges import raise_limits
from tcpkmon.collector.loader.prepare import Prepared, prepare
from tcpkmon.collector.plan.filters import Filters, parse
from tcpkmon.collector.plan.request import Request
from tcpkmon.formats.base.errors import TcpkmonError

NAME = "in-kernel"
TITLE = "Time in the kernel per event"
WAYS = {
    "btf": ("btf",),
    "raw": ("raw",),
    "fentry/fexit": ("fentry", "fexit"),
    "kprobe": ("kprobe",),
}
REASON_CHARACTERS = 160
STATES = ("recorded", "unchanged", "disabled", "filtered")
WATCHED = ("SEGMENT_RECEIVED", "ACK_PROCESSED", "TRANSMIT")
"""The locations to which --when-changed applies."""
ENOUGH_RUNS = 300
"""Rarer events have no figure."""
OTHER_PORTS = "9"


def measure(context: Context) -> None:
    """In each round: each way to attach, in each state, under the same mixed traffic."""
    raise_limits()
    stats_fd = bpf.enable_stats()
    ways = dict(list(WAYS.items())[: 1 if context.quick else None])
    try:
        with context.lab() as (_, load), empty_program() as empty_fd:
            load.pin(cpus()[0], cpus()[-1])
            for _ in context.each_round(NAME):
                for way, kinds in list(ways.items()):
                    try:
                        every = Request(
                            Filters(), "-", locations="all", existing=False, kinds=kinds
                        )
                        prepared = prepare(every)
                    except TcpkmonError as error:
                        context.results.skip(NAME, way, error.message[:REASON_CHARACTERS])
                        del ways[way]
                        continue
                    _one_way(context, load, way, prepared, empty_fd)
                if not context.quick:
                    watching = Request(
                        Filters(), "-", existing=False, kinds=("btf",), when_changed=("mss",)
                    )
                    _one_way(context, load, "btf", prepare(watching), empty_fd, ("unchanged",))
    finally:
        os.close(stats_fd)


def _one_way(
    context: Context,
    load: Load,
    way: str,
    prepared: Prepared,
    empty_fd: int,
    states: tuple[str, ...] = ("recorded", "disabled", "filtered"),
) -> None:
    with capturing(prepared, parse()) as (kernel, rings):
        attached = {spec.function for spec in kernel.loaded.attached()}
        probes = [p for p in prepared.plan.probes if p.name in attached and p.locations]
        for state in states:
            kernel.switch(prepared.numbers, state != "disabled")
            filters = parse(ports=OTHER_PORTS) if state == "filtered" else parse()
            filters.apply(kernel.loaded.maps)
            before = runs_of(kernel, probes, empty_fd)
            _traffic(context, load)
            after = runs_of(kernel, probes, empty_fd)
            discard(rings)
            for name, runs in after.items():
                count = runs.count - before[name].count
                if state == "unchanged" and name not in WATCHED:
                    continue
                if count >= ENOUGH_RUNS:
                    ns = (runs.ns - before[name].ns) / count
                    context.results.add(NAME, f"{name}, {way}", state, ns)


def _traffic(context: Context, load: Load) -> None:
    seconds = context.pick(0.12, 0.1)
    for order in ("pingpong 16", "churn", "bulk"):
        load.run(f"{order} {seconds}")
