# SPDX-License-Identifier: Apache-2.0
"""How much each tool slows TCP traffic down: work with it between the same work without it.

The event monitor of 1987 measured under three conditions, and so does this: the tool is absent
(OFF), attached but switched off (ATTACHED), on. A work that scatters by more than STEADY without
any tool decides nothing: it is in no mean.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scripts.benchmark import tools
from scripts.benchmark.load import Done, Load
from scripts.benchmark.results import Results, deviation, number, percent, standard_error
from scripts.benchmark.session import Session, cpus
from scripts.benchmark.tools import Tool
from tcpkmon.collector import capturing
from tcpkmon.collector.lab.lab import Lab

NAME = "slowdown"
TITLE = "Slowdown of TCP traffic"


@dataclass(frozen=True)
class Kind:
    """One kind of work; `order` is the load's, without the seconds. Each end is pinned to a CPU."""

    order: str
    seconds: float
    together: bool = False
    """Both ends share a CPU. One exchange at a time never uses two CPUs at once; on two, it would
    measure how fast a sleeping virtual CPU wakes up."""
    unit: str = "round trips/s"
    scale: float = 1.0
    quick: float = 0.15
    """Seconds in --quick; 0: it is no part of that."""


WORK = {
    "ping-pong, 1 connection": Kind("pingpong 1", 0.2, together=True, quick=0),
    "ping-pong, 16 connections": Kind("pingpong 16", 0.2, quick=0.3),
    "bulk transfer": Kind("bulk", 0.3, unit="GB/s", scale=1e-9),
    "churn": Kind("churn", 0.3, together=True, unit="connections/s"),
    "100 requests a connection": Kind("requests", 0.15, together=True),
}

OFF = "absent"
"""Without a tool, beside the same before and after."""
ATTACHED = "collect, attached but off"
DEFAULT = "collect"
COLUMNS = "collect, perf's events and columns"
FILTERED = "collect, other ports only"
CHANGED = "collect --when-changed snd_cwnd"
FULL = "collect --columns full"
ALL = "collect --locations all"
RINGS = "collect --rings perf"
PERF = "perf record tcp:tcp_probe"
TCPDUMP = "tcpdump -s 96"
BPFTRACE = "bpftrace to a file"
MAIN = (OFF, ATTACHED, DEFAULT, PERF, FILTERED)
"""What is compared: it gets MORE_ROUNDS times as many rounds, the others at most FEW_ROUNDS."""
MORE_ROUNDS, FEW_ROUNDS = 2, 3
QUICK = (ATTACHED, DEFAULT, COLUMNS, FILTERED, PERF)
CASES = (*MAIN, TCPDUMP, COLUMNS, CHANGED, FULL, ALL, RINGS, BPFTRACE)
PERF_COLUMNS = (
    "laddr", "raddr", "family", "sk_mark", "seg_len", "snd_nxt", "snd_una", "snd_cwnd_segs",
    "snd_ssthresh", "snd_wnd", "srtt_us", "rcv_wnd", "conn_id",
)  # fmt: skip
"""The 13 values that tcp_probe prints; ports and time are always recorded."""
OPTIONS = {
    ATTACHED: (),
    DEFAULT: (),
    COLUMNS: ("--locations", "SEGMENT_RECEIVED", "--columns", ",".join(PERF_COLUMNS)),
    # The ports of the work are higher.
    FILTERED: ("--ports", "9"),
    CHANGED: ("--when-changed", "snd_cwnd"),
    FULL: ("--columns", "full"),
    ALL: ("--locations", "all"),
    RINGS: ("--rings", "perf"),
}
"""Of collect, by case."""
READER, READER_SHARE = "cpu_us", "reader's share of a CPU"
STEADY = 0.03
"""The most that a deciding work's slowdowns without any tool may scatter."""


def bare(case: str) -> str:
    """The case without a tool, measured before and after this one."""
    return f"nothing around {case}"


def cpu_subject(subject: str) -> str:
    """The subject's CPU microseconds of both ends, for each round trip, byte or connection."""
    return f"{subject}, CPU us"


class Worker:
    """Does the work, by subject, between the two ends of a lab."""

    def __init__(self, lab: Lab, load: Load, quick: bool) -> None:
        self.lab, self._load, self._quick = lab, load, quick

    def warm(self) -> None:
        """A moment of traffic, for tools that are ready when they see some."""
        self._load.run("pingpong 1 0.02")

    def run(self) -> dict[str, Done]:
        """All of it, once; what was done, by subject."""
        first, last = cpus()
        done = {}
        for subject, kind in WORK.items():
            if seconds := kind.quick if self._quick else kind.seconds:
                self._load.pin(first, first if kind.together else last)
                done[subject] = self._load.run(f"{kind.order} {seconds}")
        return done


@contextlib.contextmanager
def working(session: Session) -> Iterator[Worker]:
    """A lab with a worker in it."""
    with session.lab() as (lab, load):
        yield Worker(lab, load, session.quick)


def find_tools(session: Session, lab: Lab) -> list[Tool]:
    """Those that can be used here, in the order of the tables."""
    found = [tools.collect(case, *options) for case, options in OPTIONS.items()]
    found += [tools.perf(PERF, "tcp:tcp_probe"), tools.bpftrace(BPFTRACE)]
    found.append(tools.tcpdump(TCPDUMP, lab.a))
    wanted = QUICK if session.quick else CASES
    known = [
        replace(tool, prepare=lambda pid: capturing.attach(pid).disable())
        if tool.name == ATTACHED else tool
        for tool in found if tool.name in wanted
    ]  # fmt: skip
    return tools.usable(session, NAME, sorted(known, key=lambda tool: CASES.index(tool.name)))


def measure(session: Session) -> None:
    """Nothing, a tool, nothing, the next tool, and so on, under all the work."""
    with working(session) as worker:
        wanted = find_tools(session, worker.lab)
        for round_number in session.each_round(NAME, 1 if session.quick else MORE_ROUNDS):
            off = [worker.run()]
            for tool in wanted:
                if session.results.is_skipped(NAME, tool.name):
                    continue
                if round_number < FEW_ROUNDS or tool.name in MAIN:
                    with tools.tolerating(session, NAME, tool):
                        off.append(measure_one(session, worker, tool, tool.name, off[-1]))
            # What one finds of a tool that is not there.
            for before, during, after in zip(off, off[1:], off[2:], strict=False):
                _add(session, OFF, before, during, after)


def measure_one(
    session: Session, worker: Worker, tool: Tool, case: str, before: dict[str, Done]
) -> dict[str, Done]:
    """The work with the tool, and without it before and after; returns the last."""
    with tool.running(session.folder, worker.warm) as it:
        during = worker.run()
        outcome = it.end()
    after = worker.run()
    _add(session, case, before, during, after)
    records = max(1, outcome.records)
    worked_s = sum(done.seconds for done in during.values())
    for subject, value in (
        ("records", outcome.records),
        ("lost", outcome.lost),
        ("bytes", outcome.bytes / records),
        (READER, 1e6 * outcome.cpu_s / records),
        (READER_SHARE, outcome.cpu_s / worked_s),
    ):
        session.results.add(NAME, subject, case, value)
    return after


def _add(
    session: Session,
    case: str,
    before: dict[str, Done],
    during: dict[str, Done],
    after: dict[str, Done],
) -> None:
    """The work with the tool; and without it, the mean of before and after (machines drift)."""
    for subject, work in during.items():
        around = before[subject], after[subject]
        for name, value, without in (
            (subject, work.rate, sum(done.rate for done in around) / 2),
            (cpu_subject(subject), work.cpu_us, sum(done.cpu_us for done in around) / 2),
        ):
            session.results.add(NAME, name, case, value)
            session.results.add(NAME, name, bare(case), without)


@dataclass(frozen=True)
class Mean:
    """A slowdown (0.1: 10 % longer) and its standard error (nan where there was but one round)."""

    value: float
    error: float

    @property
    def text(self) -> str:
        """As `12.3 % ± 0.4`."""
        more = "" if math.isnan(self.error) else f" \u00b1 {100 * self.error:.1f}"
        return percent(self.value) + more


def beside(ours: Mean, other: Mean) -> str:
    """The ratio with its standard error, as `0.55 ± 0.12`; both, where the other is noise."""
    error = 0.0 if math.isnan(other.error) else other.error
    if other.value <= 2 * error:
        return f"{ours.text} against {other.text}"
    ratio = ours.value / other.value
    error = math.hypot(ours.error, ratio * other.error) / other.value
    return number(ratio) + ("" if math.isnan(error) else f" \u00b1 {error:.2f}")


def scatter_of(results: Results, work: str) -> float | None:
    """The standard deviation, by the quartiles, of the work's slowdowns without a tool, of single
    rounds. None where it is not known."""
    found = results.slowdowns(NAME, work, OFF, bare(OFF))
    return deviation(found) if len(found) > 2 else None


def deciding(results: Results) -> list[str]:
    """The work that decides; of a quick run all, as few rounds do not tell how it scatters."""
    if results.quick:
        return list(WORK)
    return [work for work in WORK if (scatter_of(results, work) or 0.0) <= STEADY]


def slowdown_of(results: Results, case: str, work: str) -> Mean | None:
    """The median of the rounds."""
    found = results.slowdowns(NAME, work, case, bare(case))
    return Mean(statistics.median(found), standard_error(found)) if found else None


def mean_slowdown(results: Results, case: str) -> Mean | None:
    """The mean over the deciding work of its median slowdown."""
    works = deciding(results)
    found = [mean for work in works if (mean := slowdown_of(results, case, work)) is not None]
    if not found:
        return None
    error = math.hypot(*(mean.error for mean in found)) / len(found)
    return Mean(statistics.fmean(mean.value for mean in found), error)


def mean_cpu(results: Results, case: str) -> float | None:
    """How many times as much CPU the deciding work takes, the mean over it."""
    found = [
        results.ratio(NAME, cpu_subject(work), case, bare(case)) for work in deciding(results)
    ]
    medians = [one.median for one in found if one is not None]
    return statistics.fmean(medians) if medians else None


def worst(results: Results, case: str, other: str, works: Sequence[str]) -> str:
    """Of these, the work in which the case is most above another case, as `churn: 1.55 ± 0.31`."""
    pairs = [
        (ours.value - theirs.value, f"{work}: {beside(ours, theirs)}")
        for work in works
        if (ours := slowdown_of(results, case, work)) is not None
        and (theirs := slowdown_of(results, other, work)) is not None
    ]
    return max(pairs)[1] if pairs else ""
