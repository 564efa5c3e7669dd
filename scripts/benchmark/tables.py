# SPDX-License-Identifier: Apache-2.0
"""The results as tables on the terminal, and the row of a CPU model in docs/cost.md."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import rich.table
from rich.console import Console

from scripts import markdown
from scripts.benchmark import rates, reading, slowdown
from scripts.benchmark.results import MANY, Results, Spread, number, percent, spread
from scripts.benchmark.slowdown import WORK, bare, cpu_subject, mean_cpu, mean_slowdown
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal

NONE = "-"
SCRIPT = "bench"
"""In the marks around the table of docs/cost.md."""


@dataclass(frozen=True)
class Table:
    """Text in rows under headings; the first column is what a row is about."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def show(results: Results, console: Console) -> None:
    """All tables, what was skipped with the reason, and the machine."""
    for name, (title, make) in SECTIONS.items():
        skipped = results.skipped.get(name, {})
        if name in results.values or skipped:
            console.rule(title, align="left")
            for table in make(results):
                show_table(table, console)
            for case, reason in skipped.items():
                console.print(f"Skipped: {for_terminal(case)}: {for_terminal(reason)}")
    for name, text in results.machine.items():
        console.print(f"{name}: {for_terminal(text)}")


def show_table(table: Table, console: Console) -> None:
    if not table.rows:
        return
    drawn = rich.table.Table(title=table.title, title_justify="left", box=None)
    for index, heading in enumerate(table.headings):
        drawn.add_column(heading, justify="left" if index == 0 else "right")
    for row in table.rows:
        drawn.add_row(*(for_terminal(cell) for cell in row))
    console.print(drawn)
    if table.note:
        console.print(table.note)


def make_console() -> Console:
    """Of the terminal's width, else wide."""
    width = None if sys.stdout.isatty() else 160
    return Console(width=width, markup=False, highlight=False)


def _of_slowdown(results: Results) -> Iterator[Table]:
    done = [work for work in WORK if results.all(slowdown.NAME, work, slowdown.OFF)]
    cases = [
        case for case in slowdown.CASES
        if any(results.all(slowdown.NAME, work, case) for work in done)
    ]  # fmt: skip
    steady = [work for work in slowdown.deciding(results) if work in done]
    perf = mean_slowdown(results, slowdown.PERF)
    rows = []
    for case in cases:
        mean, cpu = mean_slowdown(results, case), mean_cpu(results, case)
        most = "" if case == slowdown.OFF else slowdown.worst(
            results, case, slowdown.PERF, steady
        )  # fmt: skip
        records = results.median(slowdown.NAME, "records", case)
        reader = results.spread(slowdown.NAME, slowdown.READER, case) if records else None
        rows.append([
            case, NONE if mean is None else mean.text,
            NONE if mean is None or perf is None else slowdown.beside(mean, perf),
            most or NONE, NONE if cpu is None else number(cpu),
            _text(results.spread(slowdown.NAME, "records", case), 0),
            _text(results.spread(slowdown.NAME, "lost", case), 0), _text(reader),
            _percents(results.spread(slowdown.NAME, slowdown.READER_SHARE, case)),
        ])  # fmt: skip
    yield Table(
        "All work together",
        ("", "mean slowdown", "of perf's", "most above perf's", "CPU of both ends, times",
         "records in a round", "lost", "reader's CPU, us a record", "reader's share of a CPU"),
        rows,
        "Slowdown: how much longer the same work took than around it without the tool; the mean of "
        f"the {len(steady)} kinds of work that decide, with its standard error. Lost: by the "
        "tool's own count. Absent: no tool, beside the same before and after.",
    )  # fmt: skip
    yield Table(
        "How much longer the work takes",
        ("", *done),
        [[case, *(_slowdown(results, case, work) for work in done)] for case in cases],
        f"Medians of the rounds, and the range (of {MANY} rounds and more, the middle half).",
    )
    yield Table(
        "CPU time of both ends, beside that without the tool (1: no more)",
        ("", *done),
        [[case, *(_cpu_times(results, case, work) for work in done)] for case in cases],
    )
    yield Table(
        "The work without any tool",
        ("", "rate", "unit", "CPU of both ends, us (transfers: ms a GB)", "scatter", "it decides"),
        [_work(results, work, work in steady) for work in done],
        "Scatter: standard deviation of a round, from the quartiles. What scatters by more than "
        f"{percent(slowdown.STEADY)} decides nothing.",
    )


def _work(results: Results, work: str, decides: bool) -> list[str]:
    kind, scatter = WORK[work], slowdown.scatter_of(results, work)
    rate = results.spread(slowdown.NAME, work, bare(slowdown.OFF))
    cpu = results.spread(slowdown.NAME, cpu_subject(work), bare(slowdown.OFF))
    return [
        work, _text(rate, 2, kind.scale), kind.unit, _text(cpu, 2, 1e6 if kind.scale < 1 else 1),
        NONE if scatter is None else percent(scatter), "yes" if decides else "no",
    ]  # fmt: skip


def _slowdown(results: Results, case: str, work: str) -> str:
    return _percents(spread(results.slowdowns(slowdown.NAME, work, case, bare(case))))


def _cpu_times(results: Results, case: str, work: str) -> str:
    return _text(results.ratio(slowdown.NAME, cpu_subject(work), case, bare(case)))


def _of_rates(results: Results) -> Iterator[Table]:
    rows = []
    for flood, names in rates.FLOODS.items():
        for setting in rates.SETTINGS:
            for name in names:
                calls, records, lost, cpu_us, kernel_us = (
                    results.spread(rates.NAME, rates.subject(flood, setting, metric), name)
                    for metric in rates.METRICS
                )
                if calls is not None:
                    rows.append([
                        name, setting.name, _text(calls), _text(records), _percents(lost),
                        _text(kernel_us), _text(cpu_us),
                    ])  # fmt: skip
    yield Table(
        "Floods",
        ("", "flood", "calls/s", "records/s", "lost", "kernel, us a record",
         "reader's CPU, us a record"),
        rows,
        "Lost: by each tool's own count, of all events. Kernel: what a call took longer than right "
        "before without the tool (only where calls come as fast as they can). Every tool has rings "
        "of 4 MiB a CPU.",
    )  # fmt: skip


def _of_reading(results: Results) -> Iterator[Table]:
    rows = []
    for case in reading.COMMANDS:
        wall = results.spread(reading.NAME, reading.WALL, case)
        if wall is not None:
            times = reading.faster_than_perf(results, case)
            rows.append([
                case, number(times, 1) if times else NONE,
                number(1e9 / wall.median) if wall.median else NONE, _text(wall, 0),
                _text(results.spread(reading.NAME, reading.CPU, case), 0),
                _text(results.spread(reading.NAME, reading.START, case), 0),
                number(results.median(reading.NAME, reading.RECORDS, case) or 0),
            ])  # fmt: skip
    yield Table(
        "Reading files",
        ("", "times perf script", "records/s", "ns a record", "ns of CPU a record", "start, ms",
         "records"),
        rows,
        "Whole commands, output thrown away (Parquet: written to a file), less what they take for "
        "a file with next to nothing in it: that is the start. perf script prints 17 values a "
        "record.",
    )  # fmt: skip


SECTIONS: dict[str, tuple[str, Callable[[Results], Iterator[Table]]]] = {
    slowdown.NAME: (slowdown.TITLE, _of_slowdown),
    rates.NAME: (rates.TITLE, _of_rates),
    reading.NAME: (reading.TITLE, _of_reading),
}


def _text(found: Spread | None, digits: int = 2, scale_by: float = 1.0) -> str:
    return NONE if found is None else found.text(digits, scale_by)


def _percents(found: Spread | None) -> str:
    if found is None:
        return NONE
    if found.low == found.high:
        return percent(found.median)
    return f"{percent(found.median)} ({percent(found.low)} to {percent(found.high)})"


def row_of(results: Results) -> list[str]:
    """The row of these results in docs/cost.md."""
    machine = results.machine
    off, default, columns, filtered, perf = (
        mean_slowdown(results, case)
        for case in (slowdown.ATTACHED, slowdown.DEFAULT, slowdown.COLUMNS, slowdown.FILTERED,
                     slowdown.PERF)
    )  # fmt: skip
    ratios = [
        NONE if one is None or perf is None else slowdown.beside(one, perf)
        for one in (default, columns)
    ]
    lean, other = (rates.cost_of(results, one) for one in (rates.LEAN, rates.PERF_LEAN))
    times = reading.faster_than_perf(results, reading.READ)
    return [
        machine.get("CPU model", "unknown"), machine.get("date", "unknown").partition(" ")[0],
        machine.get("tree", "unknown"), *(NONE if one is None else one.text
                                          for one in (off, default)),
        *ratios, NONE if filtered is None else filtered.text,
        NONE if lean is None else f"{number(lean[0])} + {number(lean[1])} us",
        NONE if other is None else f"{number(sum(other))} us",
        NONE if times is None else f"{number(times, 1)} times",
    ]  # fmt: skip


def write_row(results: Results, page: Path) -> None:
    """Puts the row of a whole run into the page; those of other CPU models stay."""
    missing = [name for name in SECTIONS if name not in results.seconds]
    if results.quick or missing:
        reason = "these are quick" if results.quick else f"these lack {', '.join(missing)}"
        raise UsageError(f"docs/cost.md takes the results of a whole run; {reason}",
                         "run it without --quick and --only")  # fmt: skip
    lines = markdown.part_of(page, SCRIPT).splitlines()
    row = markdown.table(row_of(results), [])[0]
    model = re.escape(row.partition(" | ")[0])
    others = [line for line in lines[2:] if not re.match(rf"{model} \|", line)]
    markdown.write_part(page, SCRIPT, "\n".join([*lines[:2], *sorted([*others, row])]))
