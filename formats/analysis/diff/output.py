# SPDX-License-Identifier: Apache-2.0
"""A comparison for people, the settings that differ first, and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.diff.sides import (
    CONNECTION,
    RUN,
    Difference,
    Side,
    differences,
    values_of_side,
)
from tcpkmon.formats.analysis.diff.statistics import (
    ALPHA,
    DIFFERS,
    LEAST_SHARE,
    MEAN,
    MEDIAN,
    NO_DATA,
    RATE,
    SAME,
    SHARE,
    TIME,
    TOO_FEW,
    Compared,
    Condition,
    Family,
    Judged,
    Metric,
    Spread,
    change_text,
    compare,
    interval_text,
    judge,
)
from tcpkmon.formats.analysis.why.words import human_rate
from tcpkmon.formats.analysis.why.writing import plain
from tcpkmon.formats.base.escape import for_terminal

# What a comparison found, as plain values: for people, for --json and for pictures.

@dataclass(frozen=True)
class Report:
    """a, b: the sides. values: of each, (units,) by metric. compared: by metric."""

    a: Side
    b: Side
    unit: str
    settings: list[Difference]
    values: tuple[dict[str, Array], dict[str, Array]]
    compared: dict[str, Compared]
    families: list[Family]
    alpha: float
    judged: list[Judged]


def make_report(
    a: Side,
    b: Side,
    conditions: Sequence[Condition] = (),
    alpha: float = ALPHA,
    metrics: Collection[str] = (),
    unit: str = "",
) -> Report:
    """Compare two sides. unit: empty: a run where a side has several. UsageError without scipy."""
    unit = unit or (RUN if max(len(a.runs), len(b.runs)) > 1 else CONNECTION)
    sides = [values_of_side([(run.connections, run.flows) for run in side.runs], unit)
             for side in (a, b)]  # fmt: skip
    named = {metric.name for one in conditions for metric in one.metrics}
    wanted = {*metrics, *named} if metrics else ()
    compared, families = compare(sides[0], sides[1], named, alpha, wanted)
    by_name = {one.metric.name: one for one in compared}
    settings = differences([run.settings for run in a.runs], [run.settings for run in b.runs])
    return Report(a, b, unit, settings, (sides[0], sides[1]), by_name, families, alpha,
                  judge(conditions, by_name))  # fmt: skip


_MOST_SETTINGS, _MOST_CHARACTERS = 60, 500
_WORD = {True: "worse", False: "better", None: ""}
_STYLE = {True: "red", False: "green", None: "yellow"}


def print_diff(report: Report, console: Console) -> None:
    """Print the settings, then the metrics, then what --fail-if found."""
    for side in (report.a, report.b):
        _say(console, f"{side.name}: {_counts(side)}")
    console.print()
    _print_settings(report, console)
    console.print()
    _print_metrics(report, console)
    if report.judged:
        console.print()
    for one in report.judged:
        state = {True: "FAILED", False: "ok    ", None: "?     "}[one.failed]
        _say(console, f"{state} {one.condition.text}: {one.why}")


def _counts(side: Side) -> str:
    captures = len(side.runs)
    tables = [run.connections for run in side.runs if run.connections is not None]
    parts = [_counted(captures, "capture")]
    if tables:
        count = sum(len(table["conn_id"]) for table in tables)
        others = sum(run.other_ends for run in side.runs)
        parts.append(_counted(count, "connection") + ("" if count or not others else (
            f" (--where holds for {others:,} ends that receive, but of two ends the sender's "
            "counts: write rport for lport)"
        )))  # fmt: skip
    flows = [run.flows for run in side.runs if run.flows is not None]
    if flows:
        count = sum(len(one["bytes"]) for one in flows)
        parts.append(f"{_counted(count, 'flow')} of schema magnet")
    unproven = sum(not run.proven for run in side.runs)
    return ", ".join(parts) + (f"; NOT PROVEN: {unproven}" if unproven else "")


def _print_settings(report: Report, console: Console) -> None:
    if not report.settings:
        _say(console, "No setting differs that the headers have.")
        return
    table = Table(box=None, pad_edge=False, title="Settings that differ", title_justify="left",
                  title_style="bold")  # fmt: skip
    for name in ("setting", for_terminal(report.a.name), for_terminal(report.b.name)):
        table.add_column(name, overflow="fold")
    for one in report.settings[:_MOST_SETTINGS]:
        sides = (" | ".join(map(_cut, values)) for values in (one.a, one.b))
        table.add_row(*map(for_terminal, (one.name, *sides)))
    console.print(table)
    if len(report.settings) > _MOST_SETTINGS:
        _say(console, f"and {len(report.settings) - _MOST_SETTINGS} more: --json has them")


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _print_metrics(report: Report, console: Console) -> None:
    found = list(report.compared.values())
    if not found:
        _say(console, "No data: neither side has a connection that moved data.")
        return
    # What every unit of both sides has in common, such as a limit that never was, needs no line.
    alike = [one for one in found if _is_alike(one)]
    table = Table(box=None, pad_edge=False, title=f"Medians of a {report.unit}",
                  title_justify="left", title_style="bold")  # fmt: skip
    table.add_column("metric", no_wrap=True)
    for name in (for_terminal(report.a.name), for_terminal(report.b.name), "change", "", "95 %",
                 "p", "n"):  # fmt: skip
        left = name in ("", "95 %")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for one in found:
        if one not in alike:
            table.add_row(*_row(one), style=_style(one))
    console.print(table)
    if alike:
        rare = [one for one in alike if one.metric.kind == SHARE and _median(one) < LEAST_SHARE]
        same = [one for one in alike if one not in rare]
        low = [one.metric.name.removeprefix("share_") for one in rare]
        told = [f"{one.metric.name} {value_text(one.metric, one.a)}" for one in same]
        told += [f"shares of {', '.join(low)} (below {LEAST_SHARE:.0%})"] if low else []
        _say(console, f"The same in all units: {', '.join(told)}")
    for text in _notes(report):
        _say(console, text)


def _is_alike(one: Compared) -> bool:
    return one.p is None and one.a is not None and one.b is not None


def _median(one: Compared) -> float:
    return one.a.median if one.a else 0.0


def _style(one: Compared) -> str:
    return _STYLE[one.is_worse] if one.result == DIFFERS else ""


def _row(one: Compared) -> tuple[str, ...]:
    by = MEDIAN if one.result == SAME else one.by
    a, b = (value_text(one.metric, side, by) for side in (one.a, one.b))
    count = f"{one.a.n if one.a else 0}, {one.b.n if one.b else 0}"
    p = "" if one.p is None else "< 0.0001" if one.p < 0.0001 else f"{one.p:.4f}"
    if one.result == NO_DATA:
        return one.metric.name, a, b, NO_DATA, "", "", p, count
    if one.result == SAME:
        return one.metric.name, a, b, "~", "", "", p, count
    change = change_text(one.metric, one.change)
    interval = interval_text(one)
    word = TOO_FEW if one.result == TOO_FEW else _WORD[one.is_worse]
    return one.metric.name, a, b, change, word, interval, p, count


def value_text(metric: Metric, side: Spread | None, by: str = MEDIAN) -> str:
    if side is None:
        return "-"
    if by == MEAN:
        return f"mean {number_text(metric, side.mean)}"
    return number_text(metric, side.median)


def number_text(metric: Metric, value: float) -> str:
    """A value of a metric with its unit."""
    if metric.kind == RATE:
        return human_rate(value)
    if metric.kind == TIME:
        return f"{value / 1e6:.3g} s" if value >= 1e6 else (
            f"{value / 1e3:.3g} ms" if value >= 1e3 else f"{value:.3g} us")  # fmt: skip
    return f"{100 * value:.3g} %"


def _notes(report: Report) -> list[str]:
    """How it was compared, and what that cannot tell."""
    tests = " and ".join(
        _counted(family.tests, "test")
        + (" that --fail-if names" if _is_named(report, family) else "")
        for family in report.families if family.tests
    )  # fmt: skip
    notes = [
        f"~: no difference at p <= {report.alpha:g} (Mann-Whitney, p after Holm for "
        f"{tests or 'no test'}); changes of medians, or of means where these are equal, by "
        "bootstrap."
    ]
    few = [one for one in report.compared.values() if one.result == TOO_FEW]
    for family in report.families:
        mine = [one for one in few if one.metric.name in family.names]
        if mine:
            notes.append(
                f"too few: to see any difference in {_counted(family.tests or 1, 'test')}, each "
                f"side needs {_counted(family.needed, report.unit)}"
                + ("; --metrics with fewer names needs less." if family.tests > 1 else ".")
            )
    if report.unit == CONNECTION and any(
        one.result == DIFFERS for one in report.compared.values()
    ):
        notes.append(
            "The connections of one capture share its minute: several captures of each side, in "
            "turn, are surer."
        )
    return notes


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _is_named(report: Report, family: Any) -> bool:
    named = (metric.name for one in report.judged for metric in one.condition.metrics)
    return any(name in family.names for name in named)


def _say(console: Console, text: str) -> None:
    console.print(for_terminal(text), soft_wrap=True)


def as_json(report: Report) -> dict[str, Any]:
    """All of it. A change from 0, which is infinite, is null, as are intervals that are none."""
    sides = {
        side.name: [
            {"file": str(run.path), "proven": run.proven, "verdict": run.verdict,
             "connections": None if run.connections is None else len(run.connections["conn_id"]),
             "flows": None if run.flows is None else len(run.flows["bytes"])}
            for run in side.runs
        ]
        for side in (report.a, report.b)
    }  # fmt: skip
    metrics = []
    for one in report.compared.values():
        spreads = {
            name: dataclasses.asdict(spread) if spread else None
            for name, spread in (("a", one.a), ("b", one.b))
        }
        metrics.append({
            "metric": one.metric.name, "result": one.result, **spreads,
            "change": plain(one.change), "is_difference": one.metric.kind == SHARE,
            "of": one.by, "interval": one.interval, "p": one.p, "larger": one.larger,
            "worse": one.is_worse,
        })  # fmt: skip
    return {
        "unit": report.unit, "alpha": report.alpha, "sides": sides,
        "settings": [dataclasses.asdict(one) for one in report.settings],
        "metrics": metrics,
        "fail_if": [{"condition": one.condition.text, "failed": one.failed, "why": one.why}
                    for one in report.judged],
    }  # fmt: skip
