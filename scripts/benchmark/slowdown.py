# SPDX-License-Identifier: Apache-2.0
"""Section 1: by how much each tool slows TCP traffic down, beside the same traffic without it."""

from __future__ import annotations

import subprocess

from collector.lab.lab import Lab
from formats.base.errors import TcpkmonError
from scripts.benchmark import tools
from scripts.benchmark.context import Context, Done, Load, cpus
from scripts.benchmark.tools import Tool

NAME = "slowdown"
TITLE = "Slowdown of TCP traffic"
BARE = "nothing"
SAME = "collect, segments only"
DEFAULT = "collect"
ALL = "collect --locations all"
CHANGED = "collect --when-changed snd_cwnd"
FILTERED = "collect, other ports only"
PERF = "perf record tcp:tcp_probe"
BPFTRACE = "bpftrace to a file"
TCPDUMP = "tcpdump -s 96"
TRACE_CMD = "trace-cmd record tcp:tcp_probe"
TCPSTATES = "bcc tcpstates"
TCPTOP = "bcc tcptop"
# What the targets compare is measured in so many times the rounds: single ones differ by 10 %.
MAIN = (DEFAULT, SAME, FILTERED, PERF)
MORE_ROUNDS = 3
CASES = (DEFAULT, SAME, ALL, CHANGED, FILTERED, PERF, BPFTRACE, TCPDUMP,
         TRACE_CMD, TCPSTATES, TCPTOP)  # fmt: skip

# Subject -> (order to the load, whether both ends share a CPU). One exchange at a time never uses
# two CPUs at once; on two, it measures how fast a sleeping virtual CPU wakes up.
WORK = {
    "ping-pong, 1 connection": ("pingpong 1", True),
    "ping-pong, 16 connections": ("pingpong 16", False),
    "ping-pong, 64 connections": ("pingpong 64", False),
    "bulk transfer": ("bulk", False),
    "churn": ("churn", True),
}
UNITS = {"bulk transfer": ("GB/s", 1e-9), "churn": ("connections/s", 1.0)}
UNIT = ("round trips/s", 1.0)


def find_tools(context: Context, lab: Lab) -> list[Tool]:
    """All but the bare case; of the peers those that are here."""
    # A port below those that the load's own ends are given.
    other = ("--ports", "9")
    found = [
        tools.collect(DEFAULT),
        tools.collect(SAME, "--locations", "SEGMENT_RECEIVED"),
        tools.collect(ALL, "--locations", "all"),
        tools.collect(CHANGED, "--when-changed", "snd_cwnd"),
        tools.collect(FILTERED, *other),
    ]
    if context.quick:
        found = [tool for tool in found if tool.name in {DEFAULT, SAME, FILTERED}]
    peers = [
        ("perf", tools.perf(PERF, "tcp:tcp_probe")),
        ("bpftrace", tools.bpftrace(BPFTRACE)),
        ("tcpdump", tools.tcpdump(TCPDUMP, lab.a)),
        ("trace-cmd", tools.trace_cmd(TRACE_CMD)),
        ("tcpstates-bpfcc", tools.bcc(TCPSTATES, "tcpstates", "SKADDR")),
        ("tcpstates-bpfcc", tools.bcc(TCPTOP, "tcptop", "Tracing")),
    ]
    for program, tool in peers[: 1 if context.quick else None]:
        if program in context.missing:
            context.results.skip(NAME, tool.name, context.missing[program])
        else:
            found.append(tool)
    return found


def bare(case: str) -> str:
    """The name of what was measured without a tool, around this one."""
    return f"{BARE} around {case}"


def cpu_subject(subject: str) -> str:
    """CPU microseconds of both ends for each round trip, byte or connection."""
    return f"{subject}, CPU us"


def measure(context: Context) -> None:
    """Nothing, a tool, nothing, the next tool, and so on, under all the work."""
    with context.lab() as (lab, load):
        wanted = find_tools(context, lab)
        failed: set[str] = set()
        rounds = context.rounds * (1 if context.quick else MORE_ROUNDS)
        for number in range(rounds):
            context.say(f"{NAME}: round {number + 1} of {rounds}")
            before = _run_work(context, load)
            for tool in wanted:
                if tool.name in failed or (number >= context.rounds and tool.name not in MAIN):
                    continue
                try:
                    with tool.running(context.folder, lambda: load.run("pingpong 1 0.02")) as it:
                        during = _run_work(context, load)
                        outcome = it.end()
                except (TcpkmonError, ValueError, subprocess.SubprocessError) as error:
                    # A peer that ceases to work is told of; the others go on.
                    if tool.name.startswith("collect"):
                        raise
                    failed.add(tool.name)
                    context.results.skip(NAME, tool.name, str(error)[:200])
                    continue
                after = _run_work(context, load)
                _add(context, tool.name, before, during, after)
                before = after
                add = context.results.add
                add(NAME, "records", tool.name, outcome.records)
                add(NAME, "lost", tool.name, outcome.lost)
                add(NAME, "cpu_us", tool.name, 1e6 * outcome.cpu_s / max(1, outcome.records))
                add(NAME, "bytes", tool.name, outcome.bytes / max(1, outcome.records))


def _run_work(context: Context, load: Load) -> dict[str, Done]:
    first, last = cpus()
    seconds = context.pick(0.3, 0.2)
    done = {}
    for subject, (order, together) in WORK.items():
        load.pin(first, first if together else last)
        done[subject] = load.run(f"{order} {seconds}")
    return done


def _add(
    context: Context,
    case: str,
    before: dict[str, Done],
    during: dict[str, Done],
    after: dict[str, Done],
) -> None:
    """The work with a tool, and its mean without it, as the machine's pace changes meanwhile."""
    add = context.results.add
    for subject, work in during.items():
        around = before[subject], after[subject]
        add(NAME, subject, case, work.rate)
        add(NAME, subject, bare(case), sum(done.rate for done in around) / 2)
        add(NAME, cpu_subject(subject), case, work.cpu_us)
        add(NAME, cpu_subject(subject), bare(case), sum(done.cpu_us for done in around) / 2)
