# SPDX-License-Identifier: Apache-2.0
"""Klogger logs in Python: events as objects, intervals, statistics."""

from formats.analysis.event import Event
from formats.analysis.intervals import (
    Interval,
    Intervals,
    ProcessTime,
    Statistics,
    cpu_times,
    match_pairs,
)
from formats.analysis.log import Log, open_log
from formats.analysis.sched import Sleeping, latencies, sleep_times, sleeps

__all__ = [
    "Event", "Interval", "Intervals", "Log", "ProcessTime", "Sleeping", "Statistics",
    "cpu_times", "latencies", "match_pairs", "open_log", "sleep_times", "sleeps",
]  # fmt: skip
