# SPDX-License-Identifier: Apache-2.0
"""H8: what an event of each group costs while the group is on, and attached but off."""

from __future__ import annotations

from scripts.experiments.context import Context
from scripts.experiments.figure import Figure
from scripts.experiments.report import NONE, Table
from scripts.experiments.results import Results
from scripts.experiments.stats import number
from scripts.host import overhead
from scripts.host.floods import Flood, floods
from scripts.host.monitor import look, monitoring
from tcpkmon.collector.commands.history.monitor import GROUPS

NAME = "H8"
TITLE = "H8: cost by group of events"
ABSENT, OFF, ON = overhead.CONDITIONS
OPERATION = "operation"
RECORDS = "records an operation"
COLLECTOR = "the collector's CPU, ns an event"
TRIES, QUICK_TRIES = 7, 3
MOST_PERCENT = 0.2


def measure(context: Context) -> None:
    """A group after the other: absent, off and on in turn, absent; the fastest of some tries."""
    context.say(f"{NAME}: floods of each group's events")

    def missing(group: int, why: str) -> None:
        context.results.skip(NAME, f"group {group}", why)

    with floods(context.folder, missing) as found:
        rounds = max(1, context.rounds // 2)
        for at in range(rounds):
            context.say(f"{NAME}: round {at + 1} of {rounds}")
            for flood in found:
                _measure(context, flood)


def _measure(context: Context, flood: Flood) -> None:
    tries = int(context.pick(TRIES, QUICK_TRIES))
    add, case = context.results.add, f"{flood.group}"
    flood.run()
    best = {ABSENT: min(flood.run() for _ in range(tries)), OFF: 0, ON: 0}
    with monitoring(context.folder, [flood.group]) as capture:
        for _ in range(tries):
            for condition, switch in ((OFF, capture.disable), (ON, capture.enable)):
                switch()
                flood.run()
                before = look(capture)
                took = flood.run()
                best[condition] = min(best[condition] or took, took)
                told = look(capture).since(before)
        add(NAME, RECORDS, case, told.total / flood.count)
        if told.total:
            add(NAME, COLLECTOR, case, 1e9 * told.cpu_s / told.total)
    best[ABSENT] = min(best[ABSENT], *(flood.run() for _ in range(tries)))
    for condition, took in best.items():
        add(NAME, f"{OPERATION}, {condition}", case, took / flood.count)


def cost_ns(results: Results, group: int, condition: str) -> float | None:
    """What an operation of the flood takes longer in this condition: the fastest runs of all."""
    found = [
        results.all(NAME, f"{OPERATION}, {one}", str(group)) for one in (condition, ABSENT)
    ]
    return min(found[0]) - min(found[1]) if all(found) else None


def per_event_ns(results: Results, group: int, condition: str) -> float | None:
    """The same for an event; None where the flood makes none (no login)."""
    cost = cost_ns(results, group, condition)
    records = results.median(NAME, RECORDS, str(group))
    return None if cost is None or not records or records < 1 else cost / records


def percent_of_mix(results: Results, condition: str) -> float | None:
    """The CPU time of U1's benchmarks that all events of theirs cost, by these floods."""
    costs = [per_event_ns(results, group, condition) or 0 for group in GROUPS]
    if not any(costs) or not results.all(overhead.NAME, overhead.BOTH, ABSENT):
        return None
    total = sum(
        cost * overhead.events(results, group)
        for group, cost in zip(GROUPS, costs, strict=True)
    )
    return 100 * total / 1e9 / overhead.mean_s(results, overhead.BOTH, ABSENT)


def figures(results: Results) -> list[Figure]:
    off, on = (percent_of_mix(results, one) for one in (OFF, ON))
    if off is None or on is None:
        return []
    return [
        Figure(
            f"{NAME}: what U1's events cost by the floods, attached but off", "-",
            f"{off:.2f} % of the commands' CPU time", f"at most {MOST_PERCENT} %",
            off <= MOST_PERCENT,
        ),
        Figure(
            f"{NAME}: the same, on", "-", f"{on:.2f} % of the commands' CPU time", "-", None,
        ),
    ]  # fmt: skip


def tables(results: Results) -> list[Table]:
    rows = []
    for group, (name, _, _) in GROUPS.items():
        bare = results.spread(NAME, f"{OPERATION}, {ABSENT}", str(group))
        if bare is None:
            continue
        cells = [
            *(cost_ns(results, group, one) for one in (OFF, ON)),
            results.median(NAME, RECORDS, str(group)),
            *(per_event_ns(results, group, one) for one in (OFF, ON)),
            results.median(NAME, COLLECTOR, str(group)),
        ]
        rows.append([
            f"{group} {name}", OPERATIONS[group], bare.text(0),
            *(NONE if cell is None else number(cell, 1 if at == 2 else 0)
              for at, cell in enumerate(cells)),
        ])  # fmt: skip
    return [
        Table(
            "A flood of each group's events",
            ("", "operation", "ns absent", "more: off", "more: on", "records", "ns a record: off",
             "on", "collector's CPU, ns a record"),
            rows,
            "The fastest run of each condition. Absent: of a round, the median of the rounds. What "
            "is more is all that is attached for the group: tracepoints, events of perf, the "
            "programs. An operation of 20 us and more varies by some percent, and so does what it "
            "takes more. The flood of group 2 has no login: it shows what other programs pay.",
        )
    ]


OPERATIONS = {
    1: "a line and its answer", 2: "a program from fork to exit", 3: "a page touched",
    4: "a page to swap and back", 5: "a direct read of a block", 6: "a program from fork to exit",
}  # fmt: skip
