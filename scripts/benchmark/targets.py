# SPDX-License-Identifier: Apache-2.0
"""The targets, and whether the results reach them."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass

from scripts.benchmark import rates, reading, scale, sizes, slowdown, startup
from scripts.benchmark.means import (
    Beside,
    Mean,
    beside,
    deciding,
    each_beside,
    mean_cpu,
    mean_slowdown,
    slowdown_of,
    within,
)  # fmt: skip
from scripts.experiments import interleaved
from scripts.experiments.results import Results
from scripts.experiments.stats import number, percent, standard_error


@dataclass(frozen=True)
class Target:
    """reached: None when it could not be measured, or is missed by no more than noise may be."""

    wanted: str
    measured: str
    reached: bool | None
    unclear: bool = False
    """Missed by no more than noise may be."""


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
    """Those of issue 28, of issue 12, and of issue 5, where no later one took their place."""
    return [
        *_beside_perf(results, slowdown.COLUMNS, "perf's columns and events", 0.7, 0.7),
        *_beside_perf(results, slowdown.DEFAULT, "the default capture", 0.6, 1.0),
        _fields(results),
        _filtered(results),
        _changed(results),
        *_all_locations(results),
        _all_counted(results),
        *_rate(results),
        _cost(results),
        _many_connections(results),
        *_start(results),
        *(
            _reading(results, case)
            for case in reading.CASES
            if case not in (reading.PERF_SCRIPT, reading.TCPDUMP_READ)
        ),
        _parquet(results),
    ]


def _missing(results: Results) -> str:
    """Why there is no mean slowdown."""
    return "not measured" if deciding(results) else "all work scatters too much to decide"


def _judged(wanted: str, measured: str, excess: Mean) -> Target:
    reached = within(excess)
    return Target(wanted, measured, reached, unclear=reached is None)


def _beside_perf(
    results: Results, case: str, what: str, in_mean: float, in_any: float
) -> list[Target]:
    wanted = (
        f"{what}: at most {in_mean} times perf record's slowdown, in the mean",
        f"{what}: at most {in_any} times perf record's slowdown, in any work",
    )
    mean = beside(results, case, slowdown.PERF)
    if mean is None:
        return [Target(text, _missing(results), None) for text in wanted]
    measured = f"{mean.ours.text} against {mean.other.text}"
    cpu, perf_cpu = mean_cpu(results, case), mean_cpu(results, slowdown.PERF)
    if cpu is not None and perf_cpu is not None:
        measured += f"; CPU of both ends {number(cpu)} against {number(perf_cpu)} times"
    if mean.other.value <= 0:
        return [Target(text, measured, None) for text in wanted]
    each = each_beside(results, case, slowdown.PERF, in_any)
    above = [one for one in each if within(one.excess(in_any)) is False]
    near = [one.work for one in each if within(one.excess(in_any)) is None]
    worst = above or each[:1]
    said = "; ".join(
        f"{one.work}: {one.text}{_floor(results, case, one.work) if above else ''}" for one in worst
    )
    if near:
        said += f"; above it by noise or not: {'; '.join(near)}"
    reached = False if above else None if near else True
    return [
        _judged(wanted[0], f"{mean.text} ({measured})", mean.excess(in_mean)),
        Target(wanted[1], said, reached, unclear=reached is None),
    ]


def _floor(results: Results, case: str, work: str) -> str:
    """What the same events cost in that work with programs that only read the clock, or ''."""
    clock, perf = (slowdown_of(results, one, work) for one in (slowdown.CLOCK, slowdown.PERF))
    if case != slowdown.DEFAULT or clock is None or perf is None:
        return ""
    return f" ({slowdown.CLOCK} at the same events: {Beside(work, clock, perf).text})"


def _fields(results: Results) -> Target:
    wanted = "... with at least 3 times its fields"
    ours, perf = (
        results.median(slowdown.NAME, slowdown.FIELDS, case)
        for case in (slowdown.DEFAULT, slowdown.PERF)
    )
    if ours is None or perf is None:
        return Target(wanted, "not measured", None)
    return Target(wanted, f"{ours:.0f} against {perf:.0f}", ours >= 3 * perf)


def _filtered(results: Results) -> Target:
    wanted = "other ports: traffic that the filter leaves out is slowed by at most 1 %"
    ours = mean_slowdown(results, slowdown.FILTERED)
    if ours is None:
        return Target(wanted, _missing(results), None)
    cpu = mean_cpu(results, slowdown.FILTERED)
    more = "" if cpu is None else f"; CPU of both ends {number(cpu)} times"
    if (empty := mean_slowdown(results, slowdown.EMPTY)) is not None:
        more += f"; {slowdown.EMPTY} at the same events: {empty.text}"
    return _judged(wanted, ours.text + more, Mean(ours.value - 0.01, ours.error))


def _changed(results: Results) -> Target:
    wanted = "--when-changed snd_cwnd: at most 1.5 times the slowdown of other ports"
    found = beside(results, slowdown.CHANGED, slowdown.FILTERED)
    if found is None:
        return Target(wanted, _missing(results), None)
    measured = f"{found.ours.text} against {found.other.text}"
    if found.other.value > 0:
        measured = f"{found.text} ({measured})"
    return _judged(wanted, measured, found.excess(1.5))


def _all_locations(results: Results) -> list[Target]:
    wanted = "--locations all: as cheap a record as the default's", "... and none lost"
    ours, default = (
        results.all(slowdown.NAME, interleaved.LOST_TIME, case)
        for case in (slowdown.ALL, slowdown.DEFAULT)
    )
    lost = results.all(slowdown.NAME, "lost", slowdown.ALL)
    if not (ours and default and lost):
        return [Target(text, "not measured", None) for text in wanted]
    (one, error), (other, other_error) = (
        (statistics.median(values), standard_error(values)) for values in (ours, default)
    )
    measured = f"{number(one)} \u00b1 {number(error)} us against {number(other)} \u00b1 "
    return [
        _judged(wanted[0], f"{measured}{number(other_error)} us of work",
                Mean(one - other, math.hypot(error, other_error))),
        Target(wanted[1], f"{number(max(lost))} in the worst round", not max(lost)),
    ]  # fmt: skip


def _all_counted(results: Results) -> Target:
    wanted = "both cores at any rate, default columns: no record lost, or all of the lost counted"
    lost, untold = (
        results.all(rates.NAME, rates.subject("receive", rates.BOTH, metric), rates.DEFAULT)
        for metric in ("lost", rates.UNCOUNTED)
    )
    if not lost or not untold:
        return Target(wanted, "not measured", None)
    measured = f"{percent(max(lost))} lost in the worst round, {number(max(untold), 0)} uncounted"
    return Target(wanted, measured, not max(untold))


def _many_connections(results: Results) -> Target:
    wanted = "100,000 connections: the reader's CPU a record as with 1,000 (at most 1.25 times)"
    few, many = (results.spread(scale.NAME, scale.READER_US, case) for case in ("1,000", "100,000"))
    if few is None or many is None:
        return Target(wanted, "not measured", None)
    measured = f"{many.text()} against {few.text()} us"
    return Target(wanted, measured, many.median <= 1.25 * few.median)


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
    found = []
    for case, most_s in ((startup.CACHED, 0.5), (startup.FRESH, 1.5)):
        wanted = f"first record within {most_s} s of the command, {case}"
        first = results.spread(startup.NAME, startup.FIRST, case)
        if first is None:
            found.append(Target(wanted, "not measured", None))
        else:
            found.append(Target(wanted, f"{first.text()} s", first.median <= most_s))
    memory = results.median(startup.NAME, startup.MEMORY, startup.CACHED)
    measured = "not measured" if memory is None else f"{number(memory, 0)} MiB"
    reached = None if memory is None else memory < 200
    return [*found, Target("less than 200 MiB of memory with default rings", measured, reached)]


def _reading(results: Results, case: str) -> Target:
    wanted = f"{case}: at least 10 times perf script's records a second"
    times = faster_than_perf(results, case)
    if times is None:
        reason = results.skipped.get(reading.NAME, {}).get(case)
        return Target(wanted, f"not measured{': ' + reason if reason else ''}", None)
    said, reached = f"{number(times, 1)} times", times >= 10
    cpu, perf = (results.median(reading.NAME, reading.CPU, case),
                 results.median(reading.NAME, reading.WALL, reading.PERF_SCRIPT))  # fmt: skip
    cpus = re.search(r"(\d+) CPUs", results.machine.get("CPU", ""))
    if not reached and cpu and perf and cpus:
        # However well it is shared out, it does not fit.
        have = perf / 10 * int(cpus[1])
        more = "more than" if cpu > have else f"{percent(cpu / have)} of what"
        said += (f": a record takes {number(cpu, 0)} ns of CPU, {more} {cpus[1]} CPUs have in "
                 f"a tenth of perf's time ({number(have, 0)})")  # fmt: skip
    return Target(wanted, said, reached)


def _parquet(results: Results) -> Target:
    wanted = "at most 20 bytes a record in Parquet with every column"
    found = results.median(sizes.NAME, sizes.SUBJECT, sizes.PARQUET)
    if found is None:
        return Target(wanted, "not measured", None)
    return Target(wanted, f"{number(found, 1)} bytes ({sizes.PARQUET})", found <= 20)
