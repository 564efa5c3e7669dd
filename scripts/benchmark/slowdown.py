# SPDX-License-Identifier: Apache-2.0
"""How much each tool slows TCP traffic down, compared with the same traffic without it."""

from __future__ import annotations

from collector.lab.lab import Lab
from scripts.benchmark import tools
from scripts.benchmark.context import Context, cpus
from scripts.benchmark.load import Done, Load
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
# The targets compare these, so they get more rounds: single ones differ by 10 %.
MAIN = (DEFAULT, SAME, FILTERED, PERF)
MORE_ROUNDS = 3
CASES = (DEFAULT, SAME, ALL, CHANGED, FILTERED, PERF, BPFTRACE, TCPDUMP,
         TRACE_CMD, TCPSTATES, TCPTOP)  # fmt: skip

# By subject: the order to the load, and whether both ends share a CPU. One exchange at a time
# never uses two CPUs at once; on two, it would measure how fast a sleeping virtual CPU wakes up.
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
    """Those that can be used here."""
    # The ports of the load are higher.
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
        tools.perf(PERF, "tcp:tcp_probe"),
        tools.bpftrace(BPFTRACE),
        tools.tcpdump(TCPDUMP, lab.a),
        tools.trace_cmd(TRACE_CMD),
        tools.bcc(TCPSTATES, "tcpstates", "SKADDR"),
        tools.bcc(TCPTOP, "tcptop", "Tracing"),
    ]
    return tools.usable(context, NAME, found + peers[: 1 if context.quick else None])


def bare(case: str) -> str:
    """The case without a tool, measured before and after this one."""
    return f"{BARE} around {case}"


def cpu_subject(subject: str) -> str:
    """The subject's CPU microseconds of both ends, for each round trip, byte or connection."""
    return f"{subject}, CPU us"


def measure(context: Context) -> None:
    """Nothing, a tool, nothing, the next tool, and so on, under all the work."""
    with context.lab() as (lab, load):
        wanted = find_tools(context, lab)
        for number in context.each_round(NAME, 1 if context.quick else MORE_ROUNDS):
            before = _run_work(context, load)
            for tool in wanted:
                if context.results.is_skipped(NAME, tool.name):
                    continue
                if number >= context.rounds and tool.name not in MAIN:
                    continue
                with tools.tolerating(context, NAME, tool):
                    with tool.running(context.folder, lambda: load.run("pingpong 1 0.02")) as it:
                        during = _run_work(context, load)
                        outcome = it.end()
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
    """The work with the tool; and without it, the mean of before and after (the machine drifts)."""
    add = context.results.add
    for subject, work in during.items():
        around = before[subject], after[subject]
        add(NAME, subject, case, work.rate)
        add(NAME, subject, bare(case), sum(done.rate for done in around) / 2)
        add(NAME, cpu_subject(subject), case, work.cpu_us)
        add(NAME, cpu_subject(subject), bare(case), sum(done.cpu_us for done in around) / 2)
