# SPDX-License-Identifier: Apache-2.0
"""Whether a record costs more when there are very many connections."""

from __future__ import annotations

import contextlib
import os
import resource
import time

from scripts.experiments import tools
from scripts.experiments.capture import capturing, discard
from scripts.experiments.context import Context, cpus, many_ports
from scripts.experiments.load import Load
from scripts.experiments.tools import Running, Tool, size_of
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.privileges import raise_limits
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.prepare import Prepared, prepare
from tcpkmon.collector.plan.filters import Filters, parse
from tcpkmon.collector.plan.request import Request

NAME = "scale"
TITLE = "Scale: cost per record by number of connections"
TRIPS = "round trips/s"
BARE_TRIPS = "round trips/s without a capture"
PROGRAM_NS = "in the kernel, ns a run (half of them filtered)"
READER_US = "reader's CPU, us a record"
LOST = "lost"
READY = "ready, seconds"
COUNTS = (10, 1_000, 100_000)
WALK_STEP = 4096
SETTLED_S = 0.1
SPARE_FILES = 100
MOST_PORTS = 50_000
"""Connections of one load; a client has some 64,000 ports."""


def measure(context: Context) -> None:
    """Opens more and more connections and uses each in turn, with a capture and without."""
    raise_limits()
    prepared = prepare(Request(Filters(), "-"))
    for count in COUNTS[: 2 if context.quick else None]:
        with Lab() as lab, contextlib.ExitStack() as stack:
            lab.a.run(many_ports)
            loads = open_all(context, lab, stack, count)
            # Without --netns, the capture would hold the sockets of the other end too.
            place = f"/proc/{os.getpid()}/fd/{lab.a.namespace.fd}"
            tool = tools.collect("collect", "--netns", place)
            for _ in range(context.rounds):
                _capture(context, loads, tool, f"{count:,}")
                ns = _time_programs(context, loads, lab, prepared, place)
                context.results.add(NAME, PROGRAM_NS, f"{count:,}", ns)


def open_all(context: Context, lab: Lab, stack: contextlib.ExitStack, count: int) -> list[Load]:
    """Opens `count` connections, over as many loads as the limit of open files needs."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - SPARE_FILES
    number = -(-count // min(limit, MOST_PORTS))
    loads = []
    begun = time.monotonic()
    for index in range(number):
        load = Load(context.load_program, lab, 7000 + 10 * index)
        loads.append(stack.enter_context(load))
        load.pin(*cpus())
        load.run(f"open {count * (index + 1) // number - count * index // number}")
    context.say(f"{NAME}: {count:,} connections, opened in {time.monotonic() - begun:.1f} s")
    return loads


def robin(loads: list[Load], seconds: float) -> float:
    """Round trips a second, one load after the other."""
    done = [load.run(f"robin {seconds / len(loads)}") for load in loads]
    return sum(one.count for one in done) / sum(one.seconds for one in done)


def _capture(context: Context, loads: list[Load], tool: Tool, case: str) -> None:
    seconds = context.pick(0.5, 0.3)
    add = context.results.add
    add(NAME, BARE_TRIPS, case, robin(loads, seconds))
    begun = time.monotonic()
    with tool.running(context.folder) as it:
        add(NAME, READY, case, time.monotonic() - begun)
        _settle(it)
        add(NAME, TRIPS, case, robin(loads, seconds))
        cpu_s = it.cpu_s()
        outcome = it.end()
    add(NAME, LOST, case, outcome.lost)
    # The records of open connections come first; the reader's CPU time begins after them. Few
    # records share the cost of a second's checkpoint, 2 ms.
    live = outcome.records - int(case.replace(",", ""))
    add(NAME, READER_US, case, 1e6 * cpu_s / max(1, live))


def _settle(it: Running) -> None:
    """Waits until the records of open connections are in the file; CPU time counts from then."""
    size, before = size_of(it.file), -1
    while size != before:
        time.sleep(SETTLED_S)
        size, before = size_of(it.file), size
    it.mark()


def _time_programs(
    context: Context, loads: list[Load], lab: Lab, prepared: Prepared, place: str
) -> float:
    """The program's ns per run, once they know every connection."""
    stats_fd = bpf.enable_stats()
    try:
        with capturing(prepared, parse(namespaces=[place])) as (kernel, rings):
            walk = kernel.walk([lab.a.namespace.fd], WALK_STEP)
            while walk is not None and walk.step():
                discard(rings)
            before = _runs(kernel)
            robin(loads, context.pick(0.4, 0.2))
            after = _runs(kernel)
            if walk is not None:
                walk.close()
            return (after[1] - before[1]) / max(1, after[0] - before[0])
    finally:
        os.close(stats_fd)


def _runs(kernel: Kernel) -> tuple[int, int]:
    """Runs and ns of the program of received segments.

    The runs at the other end, which are filtered, count too: their share is always the same.
    """
    found = kernel.loaded.missed()["segment_received"]
    return found.run_cnt, found.run_ns
