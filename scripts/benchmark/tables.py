# SPDX-License-Identifier: Apache-2.0
"""The results as tables, a function for each section; the report draws them."""

from __future__ import annotations

from collections.abc import Callable

from scripts.benchmark import drain, inkernel, rates, reading, scale, sizes, slowdown, startup
from scripts.benchmark.means import (
    STEADY,
    beside,
    deciding,
    each_beside,
    mean_cpu,
    mean_slowdown,
    scatter_of,
)
from scripts.benchmark.targets import faster_than_perf, targets, whole_cost_us
from scripts.benchmark.work import WORK
from scripts.experiments import interleaved, program_runs
from scripts.experiments.report import NONE, Table
from scripts.experiments.results import Results
from scripts.experiments.stats import MANY, Spread, number, percent, spread

COUNTS = ("records", "lost")


def of_targets(results: Results) -> Table:
    words = {True: "yes", False: "**no**", None: NONE}
    rows = [
        (t.wanted, t.measured, "~" if t.unclear else words[t.reached]) for t in targets(results)
    ]
    return Table(
        "What was to be reached", ("target", "measured", "reached"), rows,
        "~: missed by less than twice the standard error, so noise can be the reason. Ratios of "
        "slowdowns have their standard error; `in any work` names the worst, or all that miss it.",
    )  # fmt: skip


def _of_slowdown(results: Results) -> list[Table]:
    done = [work for work in WORK if results.all(slowdown.NAME, work, slowdown.DEFAULT)]
    cases = [
        case for case in slowdown.CASES if any(results.all(slowdown.NAME, w, case) for w in done)
    ]
    rows = []
    for case in cases:
        mean, cpu = mean_slowdown(results, case), mean_cpu(results, case)
        records = results.median(slowdown.NAME, "records", case)
        perf = beside(results, case, slowdown.PERF)
        each = [] if case == slowdown.OFF else each_beside(results, case, slowdown.PERF)
        rows.append([
            case, NONE if mean is None else mean.text,
            NONE if perf is None or perf.other.value <= 0 else number(perf.ratio),
            f"{each[0].work}: {each[0].text}" if each else NONE,
            NONE if cpu is None else number(cpu),
            *(_text(results.spread(slowdown.NAME, subject, case)) for subject in COUNTS),
            *(_text(results.spread(slowdown.NAME, subject, case) if records else None)
              for subject in (interleaved.READER, interleaved.LOST_TIME)),
            _percents(results.spread(slowdown.NAME, interleaved.READER_SHARE, case)),
        ])  # fmt: skip
    main = [case for case in cases if case in slowdown.MAIN]
    places = (
        ("Between two namespaces", [work for work in done if not WORK[work].loopback]),
        ("Over loopback", [work for work in done if WORK[work].loopback]),
    )
    bare, steady = [], [work for work in deciding(results) if work in done]
    for work in done:
        rate = results.spread(slowdown.NAME, work, interleaved.bare(slowdown.DEFAULT))
        bare.append([work, _text(rate, 2, WORK[work].scale), WORK[work].unit])
    return [
        Table(
            "All work together",
            ("", "mean slowdown", "of perf's", "worst work, of perf's", "CPU of both ends, times",
             "records in a round", "lost by its own count", "reader's CPU, us a record",
             "time lost, us a record", "reader's share of a CPU"),
            rows,
            "Slowdown: how much longer the same work took than around it without the tool. Mean: "
            f"of the {len(steady)} kinds of work that decide, with its standard error. Worst: "
            "where it is most above perf's; both slowdowns, where perf's may be noise. Off: no "
            "tool, beside the same before and after. Programs that do nothing, or read the clock: "
            "attached where a default capture's are, so that no capture of these events costs "
            "less. Time lost: by which all the work took longer. Reader: the process of the tool.",
        ),
        *_of_scatter(results, done, steady),
        *(
            Table(
                f"{place}: how much longer the work takes",
                ("", *works),
                [[case, *(_slowdown(results, case, work) for work in works)] for case in cases],
                f"Medians of the rounds, and the range (of {MANY} rounds and more, the middle half "
                "of them).",
            )
            for place, works in places if works
        ),
        *(
            Table(
                f"{place}: CPU time of both ends, beside that without the tool (1: no more)",
                ("", *works),
                [[case, *(_cpu_times(results, case, work) for work in works)] for case in cases],
            )
            for place, works in places if works
        ),
        Table("The work without any tool", ("", "rate", "unit"), bare),
        Table(
            "CPU time of both ends, us a request (or connection; of transfers: ms a GB)",
            ("", *main),
            [[work, *(_text(results.spread(slowdown.NAME, interleaved.cpu_subject(work), case), 2,
                            1e6 if WORK[work].scale != 1 else 1) for case in main)]
             for work in done],
            "Processes alone, with what the kernel does in their system calls and interrupts.",
        ),
    ]  # fmt: skip


def _of_scatter(results: Results, done: list[str], steady: list[str]) -> list[Table]:
    """How each work scatters, and what so decides."""
    rows = [
        [work, percent(scatter), "yes" if work in steady else "no: it scatters too much"]
        for work in done if (scatter := scatter_of(results, work)) is not None
    ]  # fmt: skip
    note = (
        "Standard deviation of a round, from the quartiles. All work is pinned: a CPU for each "
        f"end, or one for both. What scatters by more than {percent(STEADY)} decides nothing."
    )
    title = "Off against off: how each work scatters"
    return [Table(title, ("", "scatter", "it decides"), rows, note)] if rows else []


def _slowdown(results: Results, case: str, work: str) -> str:
    return _percents(
        spread(results.slowdowns(slowdown.NAME, work, case, interleaved.bare(case)))
    )


def _cpu_times(results: Results, case: str, work: str) -> str:
    subject = interleaved.cpu_subject(work)
    return _text(results.ratio(slowdown.NAME, subject, case, interleaved.bare(case)))


def _of_rates(results: Results) -> list[Table]:
    rows = []
    for flood, names in rates.FLOODS.items():
        for setting in rates.SETTINGS:
            for name in names:
                cells = [
                    results.spread(rates.NAME, rates.subject(flood, setting, metric), name)
                    for metric in rates.METRICS
                ]
                if cells[0] is not None:
                    calls, records, lost, cpu_us, kernel_us = cells
                    rows.append([
                        name, setting.name, _text(calls), _text(records), _percents(lost),
                        _text(kernel_us), _text(cpu_us),
                    ])  # fmt: skip
    cost = []
    for name in (rates.LEAN, rates.PERF_LEAN):
        whole = whole_cost_us(results, name)
        if whole is not None:
            cost.append([name, f"{number(whole)} us"])
    return [
        Table("The whole cost of a lean record: kernel and reader", ("", "cost"), cost),
        Table(
            "Floods",
            ("", "flood", "calls/s", "records/s", "lost", "kernel, us a record",
             "reader's CPU, us a record"),
            rows,
            "Lost: by each tool's own count, of all events. Kernel: what a call took longer than "
            "right before without the tool (only where calls come as fast as they can). Every "
            "tool has rings of 4 MiB a CPU.",
        ),
    ]  # fmt: skip


def _of_inkernel(results: Results) -> list[Table]:
    rows = []
    for subject, cases in results.values.get(inkernel.NAME, {}).items():
        if subject.startswith(program_runs.EMPTY):
            continue
        way = subject.rpartition(", ")[2]
        empty = results.spread(inkernel.NAME, f"{program_runs.EMPTY}, {way}", "recorded")
        # At tracepoints one copy of a program is attached, elsewhere both.
        copies = 1 if way in {"btf", "raw"} else 2
        less = copies * empty.median if empty is not None else 0.0
        cells = [subject]
        for state in inkernel.STATES:
            found = results.spread(inkernel.NAME, subject, state) if state in cases else None
            cells.append(_text(_less(found, less), 0))
        rows.append(cells)
    empty = results.spread(inkernel.NAME, f"{program_runs.EMPTY}, btf", "recorded")
    return [
        Table(
            "Nanoseconds per event",
            ("", *inkernel.STATES),
            rows,
            "By BPF statistics, of one copy of each program (of fentry and kprobe both), less what "
            f"empty ones take ({_text(empty, 0)} ns each, nearly all of it the statistics "
            "themselves). "
            "Unchanged: left out by --when-changed (segments only). Disabled: by the switch. "
            "Filtered: by port. RCVQ_FULL looks at all dropped packets, and these are none of "
            "its own.",
        )
    ]


def _of_startup(results: Results) -> list[Table]:
    rows = [
        [subject, *(_text(results.spread(startup.NAME, subject, case)) for case in cases)]
        for cases in [(startup.CACHED, startup.FRESH)]
        for subject in (startup.FIRST, startup.READY, startup.COMPILE, startup.MEMORY)
    ]
    return [Table("collect with default rings", ("", startup.CACHED, startup.FRESH), rows)]


def _of_drain(results: Results) -> list[Table]:
    rows = []
    for columns in drain.COLUMNS:
        found = [results.spread(drain.NAME, f"drain, {s}", columns) for s in drain.STEPS]
        known = [one.median for one in found if one is not None]
        if known:
            total = sum(known)
            cells = [columns, *(_text(one, 0) for one in found)]
            rows.append([*cells, number(total, 0), number(1e3 / total)])
    return [
        Table(
            "From the ring to the file, ns of CPU a record",
            ("columns", "order", "write", "all", "million/s a core"),
            rows,
            "Recorded ring contents, 1 MiB at a time. Order: with the copy out of the ring.",
        ),
    ]


def _of_reading(results: Results) -> list[Table]:
    rows = []
    for case in reading.CASES:
        wall = results.spread(reading.NAME, reading.WALL, case)
        if wall is not None:
            times = faster_than_perf(results, case)
            rows.append([
                case,
                "1.0" if case == reading.PERF_SCRIPT else number(times, 1) if times else NONE,
                number(1e9 / wall.median) if wall.median else NONE, _text(wall, 0),
                _text(results.spread(reading.NAME, reading.CPU, case), 0),
                _text(results.spread(reading.NAME, reading.START, case), 0),
                number(results.median(reading.NAME, reading.RECORDS, case) or 0),
            ])  # fmt: skip
    return [
        Table(
            "Reading files",
            ("", "times perf script", "records/s", "ns a record", "ns of CPU a record", "start, ms",
             "records"),
            rows,
            "Whole commands, output thrown away (Parquet and Arrow: written to a file), less what "
            "they take for a file with next to nothing in it: that is the start. Every column: "
            "those of --columns full. perf script prints about 17 values a record; "
            "tcp_probe's columns are those (19).",
        ),
    ]  # fmt: skip


def _of_sizes(results: Results) -> list[Table]:
    cases = results.values.get(sizes.NAME, {}).get(sizes.SUBJECT, {})
    rows = [[case, number(values[0], 1)] for case, values in cases.items()]
    return [Table("Bytes a record, everything in the file counted", ("", "bytes"), rows)]


def _of_scale(results: Results) -> list[Table]:
    subjects = (scale.BARE_TRIPS, scale.TRIPS, scale.PROGRAM_NS, scale.READER_US, scale.LOST,
                scale.READY)  # fmt: skip
    cases = [f"{count:,}" for count in scale.COUNTS]
    rows = [
        [subject, *(_text(results.spread(scale.NAME, subject, case)) for case in cases)]
        for subject in subjects
    ]
    return [Table("By number of open connections", ("", *cases), rows)]


SECTIONS: dict[str, tuple[str, Callable[[Results], list[Table]]]] = {
    slowdown.NAME: (slowdown.TITLE, _of_slowdown),
    rates.NAME: (rates.TITLE, _of_rates),
    inkernel.NAME: (inkernel.TITLE, _of_inkernel),
    startup.NAME: (startup.TITLE, _of_startup),
    drain.NAME: (drain.TITLE, _of_drain),
    reading.NAME: (reading.TITLE, _of_reading),
    sizes.NAME: (sizes.TITLE, _of_sizes),
    scale.NAME: (scale.TITLE, _of_scale),
}


def _less(found: Spread | None, what: float) -> Spread | None:
    if found is None:
        return None
    low, middle, high = (max(0.0, v - what) for v in (found.low, found.median, found.high))
    return Spread(middle, low, high, found.rounds)


def _text(found: Spread | None, digits: int = 2, scale_by: float = 1.0) -> str:
    return NONE if found is None else found.text(digits, scale_by)


def _percents(found: Spread | None) -> str:
    if found is None:
        return NONE
    if found.low == found.high:
        return percent(found.median)
    return f"{percent(found.median)} ({percent(found.low)} to {percent(found.high)})"
