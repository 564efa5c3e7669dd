# SPDX-License-Identifier: Apache-2.0
"""Klogger logs in Python: events as objects, intervals, statistics."""

from formats.analysis.disk import Queue, Requests, device_name, queues, requests
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
from formats.analysis.samples import Samples, collapse_stacks, count_samples
from formats.analysis.sched import Sleeping, latencies, sleep_times, sleeps
from formats.analysis.stalls import Stall, find_stalls
from formats.analysis.syscalls import Calls, match_calls

__all__ = [
    "Calls",
    "Event",
    "Interval",
    "Intervals",
    "Log",
    "ProcessTime",
    "Queue",
    "Requests",
    "Samples",
    "Sleeping",
    "Stall",
    "Statistics",
    "check",
    "collapse_stacks",
    "count_samples",
    "cpu_times",
    "device_name",
    "diff",
    "disk",
    "exchanges",
    "explaining",
    "find_stalls",
    "gather",
    "latencies",
    "latency",
    "match_calls",
    "match_pairs",
    "open_log",
    "queues",
    "requests",
    "sleep_times",
    "sleeps",
    "why",
]
