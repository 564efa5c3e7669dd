# SPDX-License-Identifier: Apache-2.0
"""Files of the same traffic from each tool: for the sections about reading and sizes."""

from __future__ import annotations

import itertools

from scripts.experiments import tools
from scripts.experiments.context import Context, Pair, Sample, cpus
from scripts.experiments.load import Load
from scripts.experiments.tools import Tool

CLASSIC = "PSC, --columns classic"
DEFAULT = "PSC, default columns"
FULL = "PSC, --columns full"
ALL = "PSC, --columns all"
KLOGGER = "Klogger, --columns full"
PERF = "perf.data, tcp:tcp_probe"
TCPDUMP = "pcap, 96 bytes a packet"
_numbers = itertools.count()


def make(context: Context, section: str) -> dict[str, Pair]:
    """The samples by name; made once, for all sections.

    A peer that fails is a skipped case of `section`.
    """
    if context.samples:
        return context.samples
    context.say("samples: one file of each tool, of the same traffic")
    with context.lab() as (lab, load):
        load.pin(*cpus())
        full = ("--columns", "full")
        wanted = (
            tools.collect(CLASSIC, "--columns", "classic"),
            tools.collect(DEFAULT),
            tools.collect(FULL, *full),
            tools.collect(ALL, "--columns", "all"),
            tools.collect(KLOGGER, "--format", "klogger", *full),
            tools.perf(PERF, "tcp:tcp_probe"),
            tools.tcpdump(TCPDUMP, lab.a),
        )
        for tool in tools.usable(context, section, wanted):
            with tools.tolerating(context, section, tool):
                few = _record(context, load, tool, 0)
                # Ours are read faster: more records, so that a run takes long enough.
                many = _record(context, load, tool, 2 if tool.name == FULL else 1)
                context.samples[tool.name] = Pair(few, many)
    return context.samples


def _record(context: Context, load: Load, tool: Tool, times: int) -> Sample:
    """One file of so many times the traffic."""
    path = context.folder / f"sample{next(_numbers)}"
    seconds = times * context.pick(0.6, 0.15)
    with tool.running(context.folder) as it:
        for order in ("pingpong 64", "churn", "bulk") if times else ():
            load.run(f"{order} {seconds}")
        outcome = it.end()
        it.file.rename(path)
    return Sample(path, outcome.records, outcome.bytes)
