# SPDX-License-Identifier: Apache-2.0
"""System calls of a log of the schema syscall: each start with its exit, and those without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.analysis.intervals import Batched, Intervals, Matcher, Statistics
from tcpkmon.formats.klogger.table import LogFormat

START, EXIT = "SYSCALL_START", "SYSCALL_EXIT"


@dataclass(frozen=True)
class Calls:
    """The calls of a log.

    pairs: the calls of which the log has start and exit, by (tid, number). without_exit: by name,
    starts without an exit: calls that never return (exit_group), whose exit has no number any more
    (rt_sigreturn), and those under way when the log ended. without_start: by name, exits alone,
    such as a child's from clone.
    """

    pairs: Intervals
    without_exit: dict[str, int]
    without_start: dict[str, int]
    name: Callable[[int], str]

    def by_name(self) -> dict[str, Statistics]:
        """The durations of each call, the one that took most time first."""
        numbers, durations = self.pairs.keys[1], self.pairs.durations_ns
        each = {n: Statistics.of(durations[numbers == n]) for n in np.unique(numbers).tolist()}
        order = sorted(each.items(), key=lambda item: -item[1].total_ns)
        return {self.name(number): one for number, one in order}


def match_calls(log: Batched) -> Calls:
    """Matches starts and exits by thread. UsageError for a log without these events."""
    matcher = Matcher((START,), EXIT, ("tid",), ("number",))
    seen: dict[str, Counter[int]] = {START: Counter(), EXIT: Counter()}
    name: Callable[[int], str] = str
    for batch in log.batches():
        for event in seen:
            batch.format.require(event, "tid", "number")
        matcher.feed(batch)
        name = _names(batch.format)
        for event, counter in seen.items():
            counter.update(batch.rows(event)["number"].tolist())
    pairs = matcher.intervals()
    matched = Counter(pairs.keys[1].tolist())
    starts, exits = ({name(n): k for n, k in sorted((c - matched).items())} for c in seen.values())
    return Calls(pairs, starts, exits, name)


def _names(log: LogFormat) -> Callable[[int], str]:
    field = log.event(START).find_field("number")
    names = log.enums.get(field.type, {}) if field else {}
    return lambda number: names.get(number, str(number))
