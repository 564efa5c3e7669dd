# SPDX-License-Identifier: Apache-2.0
"""The same traffic as each tool writes it down: for the sections that read files and weigh them."""

from __future__ import annotations

from formats.errors import TcpkmonError
from scripts.benchmark import tools
from scripts.benchmark.context import Context, Load, Sample, cpus
from scripts.benchmark.tools import Tool

CLASSIC = "PSC, --columns classic"
DEFAULT = "PSC, default columns"
ALL = "PSC, --columns all"
KLOGGER = "Klogger, default columns"
PERF = "perf.data, tcp:tcp_probe"
TCPDUMP = "pcap, 96 bytes a packet"


def make(context: Context, section: str) -> dict[str, Sample]:
    """By name; made once for all sections. What cannot be made is a skipped case of `section`."""
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
            path = context.folder / f"sample{len(context.samples)}"
            try:
                with tool.running(context.folder) as it:
                    # Ours are read faster: more records, so that starting Python matters less.
                    _traffic(context, load, 2 if name == DEFAULT else 1)
                    outcome = it.end()
                    it.file.rename(path)
            except TcpkmonError as error:
                if name in {DEFAULT, CLASSIC}:
                    raise
                context.results.skip(section, name, error.message)
                continue
            context.samples[name] = Sample(path, outcome.records, outcome.bytes)
    return context.samples


def _traffic(context: Context, load: Load, times: int) -> None:
    seconds = times * context.pick(0.6, 0.15)
    for order in ("pingpong 64", "churn", "bulk"):
        load.run(f"{order} {seconds}")
