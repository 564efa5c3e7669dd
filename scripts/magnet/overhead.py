# SPDX-License-Identifier: Apache-2.0
"""M1: how much slower transfers are while they are recorded, beside tcpdump."""

from __future__ import annotations

import math
from dataclasses import replace

from scripts.experiments import interleaved, tools
from scripts.experiments.context import Context
from scripts.experiments.figure import Figure, Value
from scripts.experiments.report import NONE, Table
from scripts.experiments.results import Results
from scripts.experiments.stats import Spread, spread
from scripts.experiments.tools import Tool
from scripts.magnet.wire import FAST, SLOW, TRANSFERS, magnet, wired
from tcpkmon.collector import capturing
from tcpkmon.collector.lab.lab import Lab

NAME = "M1"
TITLE = "M1: overhead"
OFF = "attached, switched off"
RECEIVER, SENDER = "recording at the receiver", "recording at the sender"
TCPDUMP = {RECEIVER: "tcpdump at the receiver", SENDER: "tcpdump at the sender"}
LEAN, FULL = "recording at both ends", "recording at both ends, --data"
CASES = (OFF, RECEIVER, SENDER, *TCPDUMP.values(), LEAN, FULL)
PAPER = {
    SLOW: {OFF: 0.01, RECEIVER: 3.56, SENDER: 3.67, TCPDUMP[RECEIVER]: 5.04, TCPDUMP[SENDER]: 5.42},
    FAST: {OFF: 1.53, RECEIVER: 3.30, SENDER: 4.19, TCPDUMP[RECEIVER]: 36.74,
           TCPDUMP[SENDER]: 25.30},
}  # fmt: skip
"""Throughput lost in 2001, percent."""
MOST_OFF, MOST_ON = 1.53, 4.5


def find_tools(context: Context, lab: Lab) -> list[Tool]:
    """One for each case."""
    off = magnet(lab, OFF, "ab")
    found = [
        replace(off, prepare=lambda pid: capturing.attach(pid).disable()),
        magnet(lab, RECEIVER, "b"),
        magnet(lab, SENDER, "a"),
        tools.tcpdump(TCPDUMP[RECEIVER], lab.b),
        tools.tcpdump(TCPDUMP[SENDER], lab.a),
        magnet(lab, LEAN, "ab"),
        magnet(lab, FULL, "ab", "--data"),
    ]
    return tools.usable(context, NAME, found)


def measure(context: Context) -> None:
    """Nothing, a case, nothing, the next case and so on, under all transfers."""
    with wired(context) as wire:
        known = find_tools(context, wire.lab)
        for _ in context.each_round(NAME):
            before = wire.run()
            for tool in known:
                if not context.results.is_skipped(NAME, tool.name):
                    with tools.tolerating(context, NAME, tool):
                        before = interleaved.measure_one(
                            context, NAME, wire, tool, tool.name, before
                        )


def times(results: Results, case: str, work: str) -> list[float]:
    """By round, the logarithm of how many times as long the transfer took as without the tool."""
    bare = results.all(NAME, work, interleaved.bare(case))
    return [math.log(b / a) for a, b in zip(results.all(NAME, work, case), bare, strict=True)]


def lost(results: Results, case: str, work: str) -> Value | None:
    """The throughput lost, percent."""
    found = times(results, case, work)
    return Value.of(found).percent_lost() if len(found) > 1 else None


def figures(results: Results) -> list[Figure]:
    found = []
    for work, paper in PAPER.items():
        for case in (OFF, *TCPDUMP):
            most = MOST_OFF if case == OFF else MOST_ON
            loss = lost(results, case, work)
            if loss is not None:
                found.append(loss.figure(
                    f"{NAME}, {work}: throughput lost, {case}", f"{paper[case]:.2f} %",
                    f"at most {most} %", most, loss.text(2, " %"),
                ))  # fmt: skip
        for case, other in TCPDUMP.items():
            ours, theirs = times(results, case, work), times(results, other, work)
            if min(len(ours), len(theirs)) > 1:
                more = Value.of([a - b for a, b in zip(ours, theirs, strict=False)])
                now = " against ".join(Value.of(one).percent_lost().text(2, " %")
                                       for one in (ours, theirs))  # fmt: skip
                found.append(more.figure(
                    f"{NAME}, {work}: {case}, against {other}",
                    f"{paper[case]:.2f} % against {paper[other]:.2f} %",
                    "less than tcpdump", 1.0, now,
                ))  # fmt: skip
    return found


def tables(results: Results) -> list[Table]:
    done = [work for work in TRANSFERS if results.values.get(NAME, {}).get(work)]
    cases = [case for case in CASES if results.all(NAME, "records", case)]
    bare = [(work, results.spread(NAME, work, interleaved.bare(OFF))) for work in done]
    return [
        Table("Throughput lost, percent", ("", *done), [
            [case, *(_text(lost(results, case, work)) for work in done)] for case in cases
        ], f"Means of {results.rounds} rounds, each beside the same transfer right before and "
           "after without anything; in brackets the 95 % confidence intervals."),
        Table("CPU time of both ends, beside that without anything (1: no more)", ("", *done), [
            [case, *(_spread(results.ratio(NAME, interleaved.cpu_subject(work), case,
                                           interleaved.bare(case))) for work in done)]
            for case in cases
        ]),
        Table("What was recorded",
              ("", "records in a round", "lost by its own count", "bytes a record",
               "the tool's CPU, us a record", "ms a round"),
              [[case, *_recorded(results, case)] for case in cases]),
        Table("The transfers without anything", ("", "Mbit/s"),
              [[work, NONE if rate is None else rate.text(1, 8e-6)] for work, rate in bare]),
    ]  # fmt: skip


def _recorded(results: Results, case: str) -> list[str]:
    """Of a case that records nothing, only that."""
    known = any(results.all(NAME, "records", case))
    shown = (("records", 0), ("lost", 0), ("bytes", 0), (interleaved.READER, 2))
    cells = [
        _spread(results.spread(NAME, subject, case) if known or subject == "records" else None,
                digits)
        for subject, digits in shown
    ]  # fmt: skip
    pairs = zip(*(results.all(NAME, one, case) for one in ("records", interleaved.READER)),
                strict=True)  # fmt: skip
    return [*cells, _spread(spread([max(1, n) * us / 1000 for n, us in pairs]), 1)]


def _text(value: Value | None) -> str:
    return NONE if value is None else value.text(2)


def _spread(found: Spread | None, digits: int = 2) -> str:
    return NONE if found is None else found.text(digits)
