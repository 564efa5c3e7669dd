# SPDX-License-Identifier: Apache-2.0
"""Nanoseconds in the kernel per event, by location and by the way to attach.

The kernel measures itself (BPF_ENABLE_STATS). That has a cost too, which is part of each number:
an empty program, measured at the same time, shows how much it is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collector.linux import bpf
from collector.linux.btf import Btf
from collector.linux.privileges import raise_limits
from collector.linux.probe_kinds import KINDS
from collector.loader.capture_maps import Kernel
from collector.loader.prepare import Prepared, Wish, prepare
from collector.loader.programs import attach_type_id, load_code
from collector.plan.filters import parse
from collector.plan.probes import Chosen
from formats.base.errors import TcpkmonError
from scripts.experiments.capture import capturing, discard
from scripts.experiments.context import Context, cpus
from scripts.experiments.load import Load

NAME = "in-kernel"
TITLE = "Time in the kernel per event"
EMPTY = "an empty program"
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


@dataclass(frozen=True)
class Runs:
    """How often a program ran, and for how long."""

    count: int
    ns: int


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
                        prepared = prepare(Wish(locations="all", existing=False, kinds=kinds))
                    except TcpkmonError as error:
                        context.results.skip(NAME, way, error.message[:REASON_CHARACTERS])
                        del ways[way]
                        continue
                    _one_way(context, load, way, prepared, empty_fd)
                if not context.quick:
                    watching = Wish(existing=False, kinds=("btf",), watch=("mss",))
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


def runs_of(kernel: Kernel, probes: Sequence[Chosen], empty_fd: int) -> dict[str, Runs]:
    """By the locations of a program: the runs of its first copy, and the time of all copies."""
    missed = kernel.loaded.missed()
    found = {
        " ".join(probe.locations): Runs(missed[probe.name].run_cnt, missed[probe.name].run_ns)
        for probe in probes
    }
    info = bpf.prog_info(empty_fd)
    found[EMPTY] = Runs(info.run_cnt, info.run_time_ns)
    return found


@contextlib.contextmanager
def empty_program() -> Iterator[int]:
    """A program that does nothing at tcp_probe."""
    btf_id = attach_type_id(Btf.from_kernel(), "btf", "tcp_probe")
    with contextlib.ExitStack() as opened:
        fd = load_code("btf", bpf.RETURN_ZERO, "bench_empty", btf_id)
        opened.callback(os.close, fd)
        opened.callback(KINDS["btf"].attach("tcp_probe", [fd]).remove)
        yield fd
