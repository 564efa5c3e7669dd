# SPDX-License-Identifier: Apache-2.0
"""The targets and whether the results reach them; and the limits of CI."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from scripts.benchmark import rates, reading, samples, sizes, slowdown, startup
from scripts.benchmark.results import Results
from scripts.benchmark.stats import number, percent, standard_error

ENOUGH_RECORDS = 50_000
"""With fewer, the time is mostly the start of Python."""


@dataclass(frozen=True)
class Target:
    """reached: None when it could not be measured."""

    wanted: str
    measured: str
    reached: bool | None


@dataclass(frozen=True)
class Mean:
    """A mean over all work, and its standard error (nan where there was but one round)."""

    value: float
    error: float

    @property
    def text(self) -> str:
        """As `12.3 % ± 0.4`."""
        more = "" if math.isnan(self.error) else f" \u00b1 {100 * self.error:.1f}"
        return percent(self.value) + more


def mean_slowdown(results: Results, case: str) -> Mean | None:
    """The mean over all work of its median slowdown."""
    found = [
        values
        for subject in slowdown.WORK
        if (values := results.slowdowns(slowdown.NAME, subject, case, slowdown.bare(case)))
    ]
    if not found:
        return None
    error = math.hypot(*map(standard_error, found)) / len(found)
    return Mean(statistics.fmean(map(statistics.median, found)), error)


def mean_cpu(results: Results, case: str) -> float | None:
    """How many times as much CPU the work takes, the mean over all of it."""
    found = [
        results.ratio(slowdown.NAME, slowdown.cpu_subject(s), case, slowdown.bare(case))
        for s in slowdown.WORK
    ]
    medians = [one.median for one in found if one is not None]
    return statistics.fmean(medians) if medians else None


def lean(results: Results, case: str, metric: str) -> float | None:
    """A median of the getppid flood from one core at any rate."""
    return results.median(rates.NAME, rates.subject("getppid", rates.ANY, metric), case)


def whole_cost_us(results: Results, case: str) -> float | None:
    """Kernel and reader together, for a record of that flood."""
    parts = [lean(results, case, metric) for metric in ("kernel_us", "cpu_us")]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == 2 else None


def faster_than_perf(results: Results, case: str) -> float | None:
    """How many times as many records a second as perf script reads."""
    ours = results.median(reading.NAME, reading.WALL, case)
    perf = results.median(reading.NAME, reading.WALL, reading.PERF_SCRIPT)
    return perf / ours if ours and perf else None


def targets(results: Results) -> list[Target]:
    """Those of issue 5, in its order."""
    return [
        _slowdown(results, slowdown.DEFAULT, "the default capture"),
        _slowdown(results, slowdown.SAME, "the same events as perf's"),
        _filtered(results),
        *_rate(results),
        _cost(results),
        *_start(results),
        *(
            _reading(results, case)
            for case in reading.CASES
            if case not in (reading.PERF_SCRIPT, reading.TCPDUMP_READ)
        ),
        _parquet(results),
    ]


def _slowdown(results: Results, case: str, what: str) -> Target:
    wanted = f"{what} slows TCP down by at most 0.7 of what perf record does"
    ours, perf = mean_slowdown(results, case), mean_slowdown(results, slowdown.PERF)
    if ours is None or perf is None:
        return Target(wanted, "not measured", None)
    measured = f"{ours.text} against {perf.text}"
    cpu, perf_cpu = mean_cpu(results, case), mean_cpu(results, slowdown.PERF)
    if cpu is not None and perf_cpu is not None:
        measured += f"; CPU of both ends {number(cpu)} against {number(perf_cpu)} times"
    if perf.value <= 0:
        return Target(wanted, measured, None)
    ratio = ours.value / perf.value
    return Target(wanted, f"{number(ratio)} ({measured})", ratio <= 0.7)


def _filtered(results: Results) -> Target:
    wanted = "traffic that the filter leaves out is slowed by less than 2 %"
    ours = mean_slowdown(results, slowdown.FILTERED)
    if ours is None:
        return Target(wanted, "not measured", None)
    cpu = mean_cpu(results, slowdown.FILTERED)
    more = "" if cpu is None else f"; CPU of both ends {number(cpu)} times"
    return Target(wanted, ours.text + more, ours.value < 0.02)


def _rate(results: Results) -> list[Target]:
    wanted = (
        "1,000,000 records a second from one core, none lost, at the default buffers",
        "... with the daemon under one core",
    )
    rate, lost = (lean(results, rates.LEAN, metric) for metric in ("records", "lost"))
    cpu_us = lean(results, rates.LEAN, "cpu_us")
    if rate is None or lost is None or cpu_us is None:
        return [Target(text, "not measured", None) for text in wanted]
    cores = rate * cpu_us / 1e6
    return [
        Target(wanted[0], f"{number(rate)} a second, {percent(lost)} lost",
               rate >= 1e6 and not lost),
        Target(wanted[1], f"{number(cores)} of a core", cores < 1),
    ]  # fmt: skip


def _cost(results: Results) -> Target:
    wanted = "at most 0.40 us a record in all, kernel and daemon, for the lean record"
    parts = [lean(results, rates.LEAN, metric) for metric in ("kernel_us", "cpu_us")]
    whole = whole_cost_us(results, rates.LEAN)
    if whole is None:
        return Target(wanted, "not measured", None)
    kernel, reader = (number(part or 0) for part in parts)
    measured = f"{number(whole)} us: {kernel} in the kernel, {reader} the daemon"
    perf = whole_cost_us(results, rates.PERF_LEAN)
    if perf is not None:
        measured += f" (perf record: {number(perf)} us)"
    return Target(wanted, measured, whole <= 0.40)


def _start(results: Results) -> list[Target]:
    wanted = "first record within 1 s of the command"
    cached, fresh = (
        results.median(startup.NAME, startup.FIRST, case)
        for case in (startup.CACHED, startup.FRESH)
    )
    first = Target(wanted, "not measured", None)
    if cached is not None and fresh is not None:
        measured = (
            f"{number(cached)} s; {number(fresh)} s where the program has yet to be compiled, which"
            " happens once a kernel and choice of columns and locations (tcpkmon doctor does it for"
            " the default)"
        )
        first = Target(wanted, measured, cached <= 1)
    memory = results.median(startup.NAME, startup.MEMORY, startup.CACHED)
    measured = "not measured" if memory is None else f"{number(memory, 0)} MiB"
    reached = None if memory is None else memory < 200
    return [first, Target("less than 200 MiB of memory with default rings", measured, reached)]


def _reading(results: Results, case: str) -> Target:
    wanted = f"{case}: at least 10 times perf script's records a second"
    times = faster_than_perf(results, case)
    if times is None:
        reason = results.skipped.get(reading.NAME, {}).get(case)
        return Target(wanted, f"not measured{': ' + reason if reason else ''}", None)
    return Target(wanted, f"{number(times, 1)} times", times >= 10)


def _parquet(results: Results) -> Target:
    wanted = "at most 24 bytes a record in Parquet with every column"
    found = results.median(sizes.NAME, sizes.SUBJECT, sizes.PARQUET)
    if found is None:
        return Target(wanted, "not measured", None)
    return Target(wanted, f"{number(found, 1)} bytes ({sizes.PARQUET})", found <= 24)


def too_slow(results: Results) -> list[str]:
    """For CI: what has become several times slower, compared with perf on the same machine.

    The margins are wide, as the machines of CI are shared. Without perf there is no verdict.
    """
    problems = []
    ours, perf = mean_cpu(results, slowdown.SAME), mean_cpu(results, slowdown.PERF)
    if ours is not None and perf is not None and ours > 2.5 * max(perf, 1.0):
        problems.append(
            f"TCP takes {number(ours)} times as much CPU under collect, "
            f"under perf {number(perf)} times"
        )
    cost, other = (whole_cost_us(results, case) for case in (rates.LEAN, rates.PERF_LEAN))
    if cost is not None and other is not None and cost > 5 * max(other, 0.2):
        problems.append(f"a record of collect costs {number(cost)} us, perf's {number(other)}")
    times = faster_than_perf(results, reading.READ)
    read = results.median(reading.NAME, reading.RECORDS, reading.READ) or 0
    if times is not None and times < 0.5 and read > ENOUGH_RECORDS:
        problems.append(f"reading a record takes {number(1 / times)} times as long as perf's")
    size = results.median(sizes.NAME, sizes.SUBJECT, samples.CLASSIC)
    if size is not None and size > 100:
        problems.append(f"a classic record takes {number(size)} bytes")
    return problems
