# SPDX-License-Identifier: Apache-2.0
"""M3: what all the events of a packet cost, beside the time that a small one takes on the wire."""

from __future__ import annotations

import json
import os

from scripts.experiments import program_runs
from scripts.experiments.capture import capturing, discard
from scripts.experiments.context import Context
from scripts.experiments.figure import Figure
from scripts.experiments.program_runs import Runs
from scripts.experiments.report import Table
from scripts.experiments.results import Results
from scripts.experiments.stats import number
from scripts.magnet.wire import PACKETS, Wire, magnet, wired
from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.privileges import raise_limits
from tcpkmon.collector.loader.prepare import prepare
from tcpkmon.collector.plan.filters import Filters, parse
from tcpkmon.collector.plan.request import Request

NAME = "M3"
TITLE = "M3: the cost of a packet"
LEAN, FULL = "lean", "--data"
OFF = "switched off"
OPTIONS = {LEAN: (), FULL: ("--data",)}
WIRE_US = 40 * 8 / 100
"""40 bytes at 100 Mbit/s."""
THEN_US, THEN_RATIO = 2.45, 0.77
KERNEL, READER, RECORDS = "kernel, us a packet", "reader, us a packet", "records a packet"
READER_RECORD = "reader, us a record"


def measure(context: Context) -> None:
    """In the kernel by BPF statistics, in this process; the reader's by its CPU time."""
    raise_limits()
    with wired(context) as wire:
        for _ in range(rounds_of(context.rounds)):
            context.say(f"{NAME}: a round")
            for case in OPTIONS:
                _measure_kernel(context, wire, case)
                _measure_reader(context, wire, case)


def rounds_of(rounds: int) -> int:
    """Of M3: it differs less than the others."""
    return max(1, rounds // 2)


def _measure_kernel(context: Context, wire: Wire, case: str) -> None:
    # The statistics cost time, so the reader is measured without them.
    stats_fd = bpf.enable_stats()
    try:
        wanted = Request(
            Filters(), "-", schemata=("magnet",), file_format="klogger", existing=False,
            data=case == FULL,
        )  # fmt: skip
        prepared = prepare(wanted)
        with (
            program_runs.empty_program() as empty_fd,
            capturing(prepared, parse()) as (kernel, rings),
        ):
            names = {spec.function for spec in kernel.loaded.attached()}
            probes = [one for one in prepared.plan.probes if one.name in names and one.locations]
            for state in (case, OFF) if case == LEAN else (case,):
                kernel.switch(prepared.numbers, state != OFF)
                before = program_runs.runs_of(kernel, probes, empty_fd)
                packets = _transfer(wire)
                after = program_runs.runs_of(kernel, probes, empty_fd)
                discard(rings)
                _add_programs(context.results, state, packets, before, after)
    finally:
        os.close(stats_fd)


def _add_programs(
    results: Results, state: str, packets: int, before: dict[str, Runs], after: dict[str, Runs]
) -> None:
    counts = {name: runs.count - before[name].count for name, runs in after.items()}
    took = {name: runs.ns - before[name].ns for name, runs in after.items()}
    empty_ns = took.pop(program_runs.EMPTY) / max(1, counts[program_runs.EMPTY])
    whole_ns = 0.0
    for name, ns in took.items():
        if counts[name]:
            own_ns = max(0.0, ns - counts[name] * empty_ns)
            whole_ns += own_ns
            results.add(NAME, name, state, own_ns / counts[name])
    results.add(NAME, program_runs.EMPTY, state, empty_ns)
    results.add(NAME, KERNEL, state, whole_ns / 1000 / packets)


def _measure_reader(context: Context, wire: Wire, case: str) -> None:
    tool = magnet(wire.lab, case, "ab", *OPTIONS[case])
    with tool.running(context.folder, wire.warm) as it:
        packets = _transfer(wire)
        outcome = it.end()
    context.results.add(NAME, READER, case, 1e6 * outcome.cpu_s / packets)
    context.results.add(NAME, READER_RECORD, case, 1e6 * outcome.cpu_s / max(1, outcome.records))
    context.results.add(NAME, RECORDS, case, outcome.records / packets)


def _transfer(wire: Wire) -> int:
    """Packets of 1500 bytes and their acknowledgements; how many."""
    before = _packets(wire)
    wire.transfer(PACKETS)
    return _packets(wire) - before


def _packets(wire: Wire) -> int:
    """That b's device received and sent so far."""
    (device,) = json.loads(wire.lab.b.command(["ip", "-j", "-s", "link", "show", "dev", "veth0"]))
    return sum(int(device["stats64"][way]["packets"]) for way in ("rx", "tx"))


def event_ns(results: Results, part: str, case: str) -> float | None:
    """KERNEL or READER, of one event [ns]."""
    whole, records = (results.median(NAME, name, case) for name in (part, RECORDS))
    return 1000 * whole / records if whole is not None and records else None


def figures(results: Results) -> list[Figure]:
    found = []
    for case in OPTIONS:
        kernel, reader = (results.median(NAME, part, case) for part in (KERNEL, READER))
        records = results.median(NAME, RECORDS, case)
        if kernel is None or reader is None or records is None:
            continue
        # A machine of 2001 was one end.
        for ends, what in ((1, "at one end, as in 2001"), (2, "at both ends together")):
            whole = (kernel + reader) * ends / 2
            found.append(Figure(
                f"{NAME}: all events of a packet {what}, {case}: kernel and reader, over the "
                f"{WIRE_US} us of 40 bytes at 100 Mbit/s",
                f"{THEN_US} us: {THEN_RATIO} (one event)",
                f"{kernel * ends / 2:.2f} + {reader * ends / 2:.2f} us: {whole / WIRE_US:.2f} "
                f"({number(records * ends / 2, 1)} events)",
                f"at most {THEN_RATIO}", whole / WIRE_US <= THEN_RATIO,
            ))  # fmt: skip
    return found


def tables(results: Results) -> list[Table]:
    parts = (KERNEL, READER, RECORDS, READER_RECORD)
    known = results.values.get(NAME, {})
    programs = [name for name in known if name not in (*parts, program_runs.EMPTY)]
    return [
        Table("A packet, at both ends together", ("", *OPTIONS, OFF),
              [[part, *_cells(results, part, 2)] for part in parts if part in known],
              "Packets of 1500 bytes and their acknowledgements, through a device without a "
              "limit."),
        Table("In the kernel, ns an event", ("", *OPTIONS, OFF),
              [[name, *_cells(results, name, 0)] for name in programs],
              "By BPF statistics, of each run of the programs that log these events, less what an "
              "empty one takes "
              f"({', '.join(_cells(results, program_runs.EMPTY, 0))} ns, nearly all of it the "
              "statistics themselves)."),
    ]  # fmt: skip


def _cells(results: Results, subject: str, digits: int) -> list[str]:
    spreads = (results.spread(NAME, subject, case) for case in (*OPTIONS, OFF))
    return ["-" if one is None else one.text(digits) for one in spreads]
