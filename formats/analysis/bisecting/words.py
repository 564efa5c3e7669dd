# SPDX-License-Identifier: Apache-2.0
"""What runs told, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.bisecting.plan import Plan
from tcpkmon.formats.analysis.bisecting.power import POWER, Power
from tcpkmon.formats.analysis.bisecting.telling import Told
from tcpkmon.formats.analysis.diff import (
    METRICS,
    SHARE,
    Compared,
    Run,
    change_text,
    interval_text,
    number_text,
    value_text,
    values_of_run,
)
from tcpkmon.formats.analysis.why.writing import plain

_SUMS = ("retransmissions", "recoveries", "rto_count", "loss_probes", "reo_timeouts", "undo_count",
         "zero_window_count", "zero_window_probes", "rcvq_full", "syn_retrans")  # fmt: skip
_MOSTS = ("cwnd_max", "snd_wnd_max", "rcv_wnd_max", "rcvbuf", "sndbuf", "mss", "rcv_wscale")
"""Columns of the table connections: of a run their sum, or the largest one."""
_FEW = 3
"""So few runs of a side are apart by chance too often."""


def plan_lines(plan: Plan) -> list[str]:
    """What is settled before the first run."""
    looks = ", ".join(str(look.runs) for look in plan.looks)
    sides = f"against {plan.baseline} of the baseline" if plan.baseline else "of each side"
    names = ", ".join(metric.name for metric in plan.metrics)
    return [
        f"at most {plan.runs} runs {sides}, compared after {looks}: {names}; "
        f"equal sides are taken for different in {plan.alpha:.3g} of all cases at most"
    ]


def power_lines(plan: Plan, found: Sequence[Power], pilot: int) -> list[str]:
    """What the plan shows, as the pilot has it."""
    lines = []
    for one in found:
        is_share = one.metric.kind == SHARE
        least = _size(plan.least, is_share)
        needed = "no number of runs shows" if one.needed is None else (
            f"{one.needed} run{'s' * (one.needed != 1)} of a side show")  # fmt: skip
        shows = "only what moves every run" if one.shows == inf else _size(one.shows, is_share)
        lines.append(
            f"{one.metric.name} scatters by {_size(one.scatter, is_share)} in {pilot} runs of a "
            f"side (at most {_size(one.scatter_most, is_share)}): {needed} a change of {least} in "
            f"{POWER:.0%} of all cases; {plan.runs} show {shows}"
        )
    return lines


def _size(value: float, is_share: bool) -> str:
    return f"{100 * value:.2g} points" if is_share else f"{100 * value:.2g} %"


def change_line(one: Compared) -> str:
    """A metric's change and its interval: duration_us 1.2 s -> 1.7 s, +38 % (+31 to +45 %)."""
    values = " -> ".join(value_text(one.metric, side, one.by) for side in (one.a, one.b))
    interval = interval_text(one)
    change = change_text(one.metric, one.change)
    return f"{one.metric.name} {values}, {change}" + (f" ({interval})" if interval else "")


def verdict_lines(told: Told, names: tuple[str, str], plan: Plan) -> list[str]:
    """What changed from the one side to the other, with its interval. names: of the sides."""
    runs = f"{told.runs[1]} runs" + (f" against {told.runs[0]}" if plan.baseline else " of a side")
    where = _from_to(*names)
    lines = [f"{where}: {change_line(one)}; p = {one.p:.2g}, {runs}" for one in told.changed]
    is_share = all(one.metric.kind == SHARE for one in (*told.equal, *told.unsure))
    least = _size(plan.least, is_share)
    if told.equal:
        equal = "; ".join(map(change_line, told.equal))
        lines.append(f"{where}: no difference of {least} or more: {equal}; {runs}")
    if told.unsure:
        unsure = "; ".join(change_line(one) if one.a and one.b else f"{one.metric.name} no data"
                           for one in told.unsure)  # fmt: skip
        lines.append(f"{where}: neither a difference nor that there is none of {least}: {unsure}; "
                     f"{runs}")  # fmt: skip
    return lines


def _from_to(one: str, other: str) -> str:
    """net.x=0 -> 1 for net.x=0 and net.x=1."""
    name, equals, value = other.partition("=")
    return f"{one} -> {value if one.startswith(f'{name}{equals}') and equals else other}"


def apart(plan: Plan, a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    """What else of the runs is so that all runs of one side have more of it than all of the other:
    a hint, no test. Medians."""
    if min(len(a), len(b)) <= _FEW:
        return []
    values = [[_values(run) for run in side] for side in (a, b)]
    mine = {metric.name for metric in plan.metrics}
    known = {metric.name: metric for metric in METRICS if metric.name not in mine}
    lines = []
    for name in (*_SUMS, *known, *_MOSTS):
        one, other = ([run[name] for run in side if name in run] for side in values)
        if len(one) != len(a) or len(other) != len(b):
            continue
        if max(one) < min(other) or max(other) < min(one):
            middles = [float(np.median(side)) for side in (one, other)]
            shown = [number_text(known[name], middle) if name in known else f"{middle:,.10g}"
                     for middle in middles]  # fmt: skip
            lines.append(f"{name} {shown[0]} -> {shown[1]}")
    return lines


def _values(run: Run) -> dict[str, float]:
    found = {name: float(value[0]) for name, value in
             values_of_run(run.connections, run.flows).items()}  # fmt: skip
    for names, whole in ((_SUMS, np.nansum), (_MOSTS, np.nanmax)):
        for name in names:
            table = run.connections
            if table is not None and name in table and len(table[name]):
                column = table[name].astype(np.float64)
                if np.isfinite(column).any():
                    found[name] = float(whole(column))
    return found


def told_json(told: Told) -> dict[str, Any]:
    """Told as plain values."""
    def rows(some: Sequence[Compared]) -> list[dict[str, Any]]:
        return [
            {"metric": one.metric.name, "a": one.a and one.a.median, "b": one.b and one.b.median,
             "change": plain(one.change), "interval": one.interval, "p": one.p,
             "worse": one.is_worse} for one in some
        ]  # fmt: skip

    return {"runs": told.runs, "alpha": told.look.alpha, "changed": rows(told.changed),
            "equal": rows(told.equal), "unsure": rows(told.unsure)}  # fmt: skip
