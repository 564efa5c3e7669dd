# SPDX-License-Identifier: Apache-2.0
"""The same traffic as each tool writes it down: for the sections that read files and weigh them."""

from __future__ import annotations

import itertools

from formats.base.errors import TcpkmonError
from scripts.benchmark import tools
from scripts.benchmark.context import Context, Load, Pair, Sample, cpus
from scripts.benchmark.tools import Tool

CLASSIC = "PSC, --columns classic"
DEFAULT = "PSC, default columns"
ALL = "PSC, --columns all"
KLOGGER = "Klogger, default columns"
PERF = "perf.data, tcp:tcp_probe"
TCPDUMP = "pcap, 96 bytes a packet"
_numbers = itertools.count()


def make(context: Context, section: str) -> dict[str, Pair]:
    """By name: few records and many; made once, for all sections.

    What cannot be made is a skipped case of `section`.
    """
    if context.samples:
        return context.samples
    context.say("samples: one file of each tool, of the same traffic")
    with context.lab() as (lab, load):
        load.pin(*cpus())
        wanted: dict[str, Tool] = {
            CLASSIC: tools.collect(CLASSIC, "--columns", "classic"),
            DEFAULT: tools.collect(DEFAULT),
            ALL: tools.collect(ALL, "--columns", "all"),
            KLOGGER: tools.collect(KLOGGER, "--format", "klogger"),
            PERF: tools.perf(PERF, "tcp:tcp_probe"),
            TCPDUMP: tools.tcpdump(TCPDUMP, lab.a),
        }
        for name, tool in wanted.items():
            reason = context.missing.get({PERF: "perf", TCPDUMP: "tcpdump"}.get(name, ""))
            if reason:
                context.results.skip(section, name, reason)
                continue
            try:
                few = _record(context, load, tool, 0)
                # Ours are read faster: more records, so that a run takes long enough.
                many = _record(context, load, tool, 2 if name == DEFAULT else 1)
            except TcpkmonError as error:
                if name in {DEFAULT, CLASSIC}:
                    raise
                context.results.skip(section, name, error.message)
                continue
            context.samples[name] = Pair(few, many)
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
