# SPDX-License-Identifier: Apache-2.0
"""How much each tool slows TCP traffic down, compared with the same traffic without it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from scripts.benchmark.work import working
from scripts.experiments import interleaved, tools
from scripts.experiments.context import BIN, Context
from scripts.experiments.load import Done
from scripts.experiments.tools import Tool
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.plan.columns import EVENT, choose_columns, load_schema

NAME = "slowdown"
TITLE = "Slowdown of TCP traffic"
DEFAULT = "collect"
COLUMNS = "collect, perf's events and columns"
FILTERED = "collect, other ports only"
CHANGED = "collect --when-changed snd_cwnd"
SAME = "collect, perf's events"
FULL = "collect --columns full"
ALL = "collect --locations all"
RINGS = {f"collect --rings {name}": name for name in ("bpf", "perf")}
EMPTY = "programs that do nothing"
CLOCK = "programs that read the clock"
"""Where a default capture's are: what no capture of these events can save."""
OFF = "off"
"""Without a tool, beside the same before and after."""
PERF = "perf record tcp:tcp_probe"
BPFTRACE = "bpftrace to a file"
TCPDUMP = "tcpdump -s 96"
TRACE_CMD = "trace-cmd record tcp:tcp_probe"
TCPSTATES = "bcc tcpstates"
TCPTOP = "bcc tcptop"
# The targets compare these, so they get more rounds.
MAIN = (OFF, DEFAULT, PERF, TCPDUMP, FILTERED, EMPTY, CLOCK)
MORE_ROUNDS, FEW_ROUNDS = 2, 3
"""Of MAIN times as many rounds; of the other cases at most so many."""
QUICK = (DEFAULT, COLUMNS, FILTERED, PERF)
CASES = (
    *MAIN, COLUMNS, CHANGED, SAME, FULL, ALL, "collect --rings perf", BPFTRACE, TRACE_CMD,
    TCPSTATES, TCPTOP,
)  # fmt: skip
FIELDS = "fields"
SEGMENTS = ("--locations", "SEGMENT_RECEIVED")
PERF_COLUMNS = (
    "laddr", "raddr", "family", "sk_mark", "seg_len", "snd_nxt", "snd_una", "snd_cwnd_segs",
    "snd_ssthresh", "snd_wnd", "srtt_us", "rcv_wnd", "conn_id",
)  # fmt: skip
"""The 13 values that tcp_probe prints; ports and time are always recorded."""
OPTIONS = {
    DEFAULT: (),
    COLUMNS: (*SEGMENTS, "--columns", ",".join(PERF_COLUMNS)),
    # The ports of the work are higher.
    FILTERED: ("--ports", "9"),
    CHANGED: ("--when-changed", "snd_cwnd"),
    SAME: SEGMENTS,
    FULL: ("--columns", "full"),
    ALL: ("--locations", "all"),
    **{case: ("--rings", name) for case, name in RINGS.items()},
}
"""Of collect, by case."""


def has_rings(programs: Path = BIN) -> bool:
    """Whether `collect` in that folder lets choose its rings."""
    done = subprocess.run(
        [str(programs / "collect"), "--help"], capture_output=True, text=True, check=True
    )
    return re.search(r"^\s*--rings\b", done.stdout, re.MULTILINE) is not None


def find_tools(context: Context, lab: Lab) -> list[Tool]:
    """Those that can be used here."""
    rings = has_rings()
    found = [
        *(tools.collect(case, *options) for case, options in OPTIONS.items()
          if case not in RINGS or rings),
        tools.bare(EMPTY),
        tools.bare(CLOCK, "clock"),
        tools.perf(PERF, "tcp:tcp_probe"),
        tools.bpftrace(BPFTRACE),
        tools.tcpdump(TCPDUMP, lab.a),
        tools.trace_cmd(TRACE_CMD),
        tools.bcc(TCPSTATES, "tcpstates", "SKADDR"),
        tools.bcc(TCPTOP, "tcptop", "Tracing"),
    ]  # fmt: skip
    wanted = QUICK if context.quick else CASES
    found = [tool for tool in found if tool.name in wanted]
    # In the order of the tables: what the targets compare is measured side by side.
    return tools.usable(context, NAME, sorted(found, key=lambda tool: CASES.index(tool.name)))


def measure(context: Context) -> None:
    """Off, a tool, off, the next tool, and so on, under all the work."""
    event = load_schema().event(EVENT)
    context.results.add(NAME, FIELDS, DEFAULT, len(choose_columns(event, "default")))
    context.results.add(NAME, FIELDS, PERF, len(PERF_COLUMNS))
    with working(context, NAME) as worker:
        wanted = find_tools(context, worker.lab)
        for number in context.each_round(NAME, 1 if context.quick else MORE_ROUNDS):
            off = [worker.run()]
            for tool in wanted:
                if context.results.is_skipped(NAME, tool.name):
                    continue
                if number >= FEW_ROUNDS and tool.name not in MAIN:
                    continue
                with tools.tolerating(context, NAME, tool):
                    off.append(
                        interleaved.measure_one(context, NAME, worker, tool, tool.name, off[-1])
                    )
            _add_off(context, off)
        near = worker.nearness
        context.results.note(
            NAME, f"Work between two CPUs was done {near.seen} times, {near.far} of them while the "
            "two were far from each other ([why](tried.md))",
        )  # fmt: skip


def _add_off(context: Context, off: Sequence[dict[str, Done]]) -> None:
    """What one finds of a tool that is not there: off between the off before and after it."""
    for before, during, after in zip(off, off[1:], off[2:], strict=False):
        interleaved.add(context, NAME, OFF, before, during, after)
