# SPDX-License-Identifier: Apache-2.0
"""U1: CPU time of the thesis's two benchmarks: monitor absent, attached but off, on."""

from __future__ import annotations

import math
from collections import defaultdict

from scripts.experiments.context import Context
from scripts.experiments.figure import Figure, Value
from scripts.experiments.report import NONE, Table
from scripts.experiments.results import Results
from scripts.experiments.stats import number
from scripts.host.mix import BENCHMARKS, THEN, Mix
from scripts.host.monitor import look, monitoring
from tcpkmon.collector.commands.history.monitor import GROUPS

NAME = "U1"
TITLE = "U1: overhead"
ABSENT, OFF, ON = CONDITIONS = ("absent", "attached, off", "on")
EVENTS = "events of a run of both benchmarks"
LOST = "lost"
COLLECTOR = "collector, s of CPU for both benchmarks"
BOTH = "both benchmarks"
MOST = {OFF: 1.002, ON: 1.01}
REPEATS, QUICK_REPEATS = 2, 1


def measure(context: Context) -> None:
    """Absent, off, on, on, off, absent; the next round off and on change places."""
    mix = Mix(context.folder)
    for round_ in context.each_round(NAME):
        used: dict[str, list[dict[str, float]]] = {one: [] for one in CONDITIONS}
        used[ABSENT] += _runs(context, mix)
        with monitoring(context.folder) as capture:
            for condition in (OFF, ON, ON, OFF) if round_ % 2 else (ON, OFF, OFF, ON):
                if condition == OFF:
                    capture.disable()
                else:
                    capture.enable()
                before = look(capture)
                runs = _runs(context, mix)
                used[condition] += runs
                told = look(capture).since(before)
                if condition == ON:
                    _count(context, told.records, len(runs))
                    context.results.add(NAME, COLLECTOR, ON, told.cpu_s / len(runs))
                    context.results.add(NAME, LOST, ON, told.lost)
        used[ABSENT] += _runs(context, mix)
        for condition, runs in used.items():
            for command in runs[0]:
                mean = sum(one[command] for one in runs) / len(runs)
                context.results.add(NAME, command, condition, mean)


def _runs(context: Context, mix: Mix) -> list[dict[str, float]]:
    """Both benchmarks, again and again: CPU seconds by command, and their sum."""
    found = []
    for _ in range(int(context.pick(REPEATS, QUICK_REPEATS))):
        used: dict[str, float] = defaultdict(float)
        for benchmark, steps in BENCHMARKS.items():
            for command, seconds in mix.run(steps).items():
                used[f"{benchmark}: {command}"] += seconds
        used[BOTH] = sum(used.values())
        found.append(dict(used))
    return found


def _count(context: Context, records: dict[str, int], runs: int) -> None:
    for group, (_, _, names) in GROUPS.items():
        count = sum(records[name] for name in names) / runs
        context.results.add(NAME, EVENTS, str(group), count)


def times(results: Results, command: str, condition: str) -> Value | None:
    """How many times the CPU seconds that it takes while the monitor is absent."""
    pairs = zip(*(results.all(NAME, command, one) for one in (condition, ABSENT)), strict=True)
    found = [math.log(a / b) for a, b in pairs]
    return Value.of(found) if len(found) > 1 else None


def mean_s(results: Results, command: str, condition: str) -> float:
    """CPU seconds of all rounds, the mean."""
    found = results.all(NAME, command, condition)
    return sum(found) / len(found)


def events(results: Results, group: int | None = None) -> float:
    """Of a run of both benchmarks: those of a group, or of all."""
    groups = GROUPS if group is None else (group,)
    return sum(results.median(NAME, EVENTS, str(one)) or 0 for one in groups)


def commands(results: Results) -> list[str]:
    return [one for one in results.values.get(NAME, {}) if one.startswith(tuple(BENCHMARKS))]


def costs_ns(results: Results) -> tuple[float, float] | None:
    """Of an event: what the commands take longer, and the collector's CPU time."""
    count, extra = events(results), times(results, BOTH, ON)
    if not count or extra is None:
        return None
    longer_s = (extra.value - 1) * mean_s(results, BOTH, ABSENT)
    collector_s = results.median(NAME, COLLECTOR, ON) or 0
    return 1e9 * longer_s / count, 1e9 * collector_s / count


def figures(results: Results) -> list[Figure]:
    found = []
    sums = [sum(one[at] for one in THEN.values()) for at in range(3)]
    for at, condition in enumerate(CONDITIONS[1:], 1):
        value = times(results, BOTH, condition)
        if value is not None:
            most = MOST[condition]
            found.append(value.figure(
                f"{NAME}: CPU time of both benchmarks, monitor {condition}",
                f"x {sums[at] / sums[0]:.4f}", f"at most x {most}", most, "x " + value.text(4),
            ))  # fmt: skip
    ratios = {one: times(results, one, ON) for one in commands(results)}
    known = {name: value for name, value in ratios.items() if value is not None}
    if known:
        worst = max(known, key=lambda name: known[name].value)
        found.append(Figure(
            f"{NAME}: the worst command, monitor on", "x 1.06, pwd",
            f"x {known[worst].text(2)}, {worst.partition(': ')[2]}", "-", None,
        ))  # fmt: skip
    costs = costs_ns(results)
    if costs is not None:
        lost = sum(results.all(NAME, LOST, ON))
        found.append(Figure(
            f"{NAME}: cost of an event, ns of the program's CPU and of the collector's", "-",
            f"{number(costs[0], 0)} and {number(costs[1], 0)}, of {number(events(results), 0)} "
            f"events; {number(lost, 0)} lost", "-", None,
        ))  # fmt: skip
    return found


def tables(results: Results) -> list[Table]:
    found = []
    for benchmark in BENCHMARKS:
        rows = []
        for command in [one for one in commands(results) if one.startswith(benchmark + ":")]:
            name = command.partition(": ")[2]
            then = [f"{seconds:.3f}" for seconds in THEN.get(name, ())] or [NONE] * 3
            rows.append([name, *then, *_cells(results, command)])
        if rows:
            found.append(Table(
                f"{benchmark}: CPU time of a command",
                ("", *(f"1987: {one}, s" for one in CONDITIONS),
                 *(f"{one}, ms" for one in CONDITIONS), "off: times", "on: times"), rows,
            ))  # fmt: skip
    if times(results, BOTH, ON) is not None:
        sums = [f"{sum(one[at] for one in THEN.values()):.3f}" for at in range(3)]
        found.append(Table(
            "The sums",
            ("", *(f"1987: {one}, s" for one in CONDITIONS),
             *(f"{one}, ms" for one in CONDITIONS), "off: times", "on: times"),
            [[BOTH, *sums, *_cells(results, BOTH)]],
            f"Means of {results.rounds} rounds; times: as much as while the monitor is absent, "
            "with the 95 % confidence interval. 1987: the sum of table 5.3, which has one value "
            "for both benchmarks, without fork and tsh.",
        ))  # fmt: skip
        found.append(Table(
            "Events of a run of both benchmarks, by group of events",
            ("", *(f"{group} {name}" for group, (name, _, _) in GROUPS.items())),
            [["events", *(number(events(results, group), 0) for group in GROUPS)]],
        ))  # fmt: skip
    return found


def _cells(results: Results, command: str) -> list[str]:
    ratios = [times(results, command, condition) for condition in (OFF, ON)]
    return [
        *(number(1e3 * mean_s(results, command, one), 2) for one in CONDITIONS),
        *(NONE if one is None else "x " + one.text(4) for one in ratios),
    ]
