# SPDX-License-Identifier: Apache-2.0
"""Klogger logs in Python: events as objects, intervals, statistics."""

from formats.analysis.condense import condense
from formats.analysis.condense_figure import draw_condensed
from formats.analysis.condensed import Condensed, Device, Group, Shares, Slice, Times
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
from formats.analysis.processes import NO_USER
from formats.analysis.records_1987 import write_records_1987
from formats.analysis.samples import Samples, collapse_stacks, count_samples
from formats.analysis.sched import Sleeping, latencies, sleep_times, sleeps
from formats.analysis.stalls import Stall, find_stalls
from formats.analysis.syscalls import Calls, match_calls
from formats.analysis.translate import Translator

__all__ = [
    "NO_USER",
    "Calls",
    "Condensed",
    "Device",
    "Event",
    "Group",
    "Interval",
    "Intervals",
    "Log",
    "ProcessTime",
    "Queue",
    "Requests",
    "Samples",
    "Shares",
    "Sleeping",
    "Slice",
    "Stall",
    "Statistics",
    "Times",
    "Translator",
    "check",
    "collapse_stacks",
    "condense",
    "count_samples",
    "cpu_times",
    "device_name",
    "diff",
    "draw_condensed",
    "find_stalls",
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
    "write_records_1987",
]
