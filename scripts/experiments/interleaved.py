# SPDX-License-Identifier: Apache-2.0
"""Work with a tool between the same without it: what the tool costs, though machines drift."""

from __future__ import annotations

from typing import Protocol

from scripts.experiments.context import Context
from scripts.experiments.load import Done
from scripts.experiments.tools import Tool

BARE = "nothing"
READER = "cpu_us"
READER_SHARE = "reader's share of a CPU"
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
    lost_s = add(context, section, case, before, during, after)
    note = context.results.add
    note(section, "records", case, outcome.records)
    note(section, "lost", case, outcome.lost)
    note(section, READER, case, 1e6 * outcome.cpu_s / records)
    worked_s = sum(done.seconds for done in during.values())
    note(section, READER_SHARE, case, outcome.cpu_s / worked_s)
    note(section, "bytes", case, outcome.bytes / records)
    note(section, LOST_TIME, case, 1e6 * lost_s / records)
    return after


def add(
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
    note = context.results.add
    lost_s = 0.0
    for subject, work in during.items():
        around = before[subject], after[subject]
        rate = sum(done.rate for done in around) / 2
        note(section, subject, case, work.rate)
        note(section, subject, bare(case), rate)
        note(section, cpu_subject(subject), case, work.cpu_us)
        note(section, cpu_subject(subject), bare(case), sum(done.cpu_us for done in around) / 2)
        lost_s += work.seconds * (1 - work.rate / rate)
    return lost_s
