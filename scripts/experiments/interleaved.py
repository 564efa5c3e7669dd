# SPDX-License-Identifier: Apache-2.0
"""Work with a tool between the same without it: what the tool costs, though machines drift."""

from __future__ import annotations

from typing import Protocol

from scripts.experiments.context import Context
from scripts.experiments.load import Done
from scripts.experiments.tools import Tool

BARE = "nothing"
READER = "cpu_us"
LOST_TIME = "time lost, us a record"


def bare(case: str) -> str:
    """The case without a tool, measured before and after this one."""
    return f"{BARE} around {case}"


def cpu_subject(subject: str) -> str:
    """The subject's CPU microseconds of both ends, for each round trip, byte or connection."""
    return f"{subject}, CPU us"


class Working(Protocol):
    """Does all of its work once."""

    def warm(self) -> None: ...

    def run(self) -> dict[str, Done]: ...


def measure_one(
    context: Context,
    section: str,
    worker: Working,
    tool: Tool,
    case: str,
    before: dict[str, Done],
) -> dict[str, Done]:
    """The work with the tool, and without it before and after; returns the last."""
    with tool.running(context.folder, worker.warm) as it:
        during = worker.run()
        outcome = it.end()
    after = worker.run()
    records = max(1, outcome.records)
    lost_s = _add(context, section, case, before, during, after)
    add = context.results.add
    add(section, "records", case, outcome.records)
    add(section, "lost", case, outcome.lost)
    add(section, READER, case, 1e6 * outcome.cpu_s / records)
    add(section, "bytes", case, outcome.bytes / records)
    add(section, LOST_TIME, case, 1e6 * lost_s / records)
    return after


def _add(
    context: Context,
    section: str,
    case: str,
    before: dict[str, Done],
    during: dict[str, Done],
    after: dict[str, Done],
) -> float:
    """The work with the tool; and without it, the mean of before and after (the machine drifts).

    Returns the seconds that all the work took longer.
    """
    add = context.results.add
    lost_s = 0.0
    for subject, work in during.items():
        around = before[subject], after[subject]
        rate = sum(done.rate for done in around) / 2
        add(section, subject, case, work.rate)
        add(section, subject, bare(case), rate)
        add(section, cpu_subject(subject), case, work.cpu_us)
        add(section, cpu_subject(subject), bare(case), sum(done.cpu_us for done in around) / 2)
        lost_s += work.seconds * (1 - work.rate / rate)
    return lost_s
