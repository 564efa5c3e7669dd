# SPDX-License-Identifier: Apache-2.0
"""What a log of the schema sched says of threads: how long they waited for a CPU, and slept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.intervals import Batched, Intervals, Matcher, Statistics
from tcpkmon.formats.analysis.log import Log
from tcpkmon.formats.klogger.batch import LogBatch

IDLE = 0


@dataclass(frozen=True)
class Sleeping:
    """The sleeps of a process of one class, over all its threads."""

    tgid: int
    sleep_class: str
    sleeps: Statistics


def latencies(log: Batched) -> Intervals:
    """From the moment when a thread could run to its CPU: an interval for each, key `pid`.

    It could run when it was woken, when it was made, or when it lost its CPU to another thread, as
    `perf sched latency` counts too. UsageError for a log without the schema sched.
    """
    matcher = Matcher(("ADD_TO_RUNQ", "SCHEDOUT"), "SCHEDIN", ("pid",))
    return _without_idle(_feed(matcher, log.batches()))


def sleeps(log: Batched) -> Intervals:
    """From falling asleep until made runnable: keys thread, process, class (a number), place."""
    matcher = Matcher(("SLEEP",), "ADD_TO_RUNQ", ("tid=pid",), carry=("tgid", "class", "place"))
    return _feed(matcher, log.batches())


def sleep_times(log: Log) -> list[Sleeping]:
    """The time that each process slept, by what it waited for; the longest first."""
    found = sleeps(log)
    names = log.format.enums.get("sleep_class", {})
    by_class = Intervals(found.keys[1:3], found.starts_ns, found.stops_ns).by_key()
    rows = [
        Sleeping(tgid, names.get(kind, str(kind)), statistics)
        for (tgid, kind), statistics in by_class.items()
    ]
    return sorted(rows, key=lambda one: (-one.sleeps.total_ns, one.tgid, one.sleep_class))


def _feed(matcher: Matcher, batches: Iterable[LogBatch]) -> Intervals:
    for batch in batches:
        matcher.feed(batch)
    return matcher.intervals()


def _without_idle(found: Intervals) -> Intervals:
    good: NDArray[np.bool_] = found.keys[0] != IDLE
    keys = tuple(column[good] for column in found.keys)
    return Intervals(keys, found.starts_ns[good], found.stops_ns[good])
