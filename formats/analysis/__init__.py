# SPDX-License-Identifier: Apache-2.0
"""Klogger logs in Python: events as objects, intervals, statistics."""

from tcpkmon.formats.analysis.disk import Queue, Requests, device_name, queues, requests
from tcpkmon.formats.analysis.event import Event
from tcpkmon.formats.analysis.intervals import (
    RECORD_CPU,
    Interval,
    Intervals,
    Matcher,
    ProcessTime,
    Statistics,
    cpu_times,
    match_pairs,
)
from tcpkmon.formats.analysis.log import Log, open_log
from tcpkmon.formats.analysis.samples import Samples, collapse_stacks, count_samples
from tcpkmon.formats.analysis.sched import Sleeping, latencies, sleep_times, sleeps
from tcpkmon.formats.analysis.stalls import Stall, find_stalls
from tcpkmon.formats.analysis.syscalls import Calls, match_calls

__all__ = [
    "RECORD_CPU",
    "Calls",
    "Event",
    "Interval",
    "Intervals",
    "Log",
    "Matcher",
    "ProcessTime",
    "Queue",
    "Requests",
    "Samples",
    "Sleeping",
    "Stall",
    "Statistics",
    "arrays",
    "beside",
    "causes",
    "check",
    "collapse_stacks",
    "conform",
    "count_samples",
    "cpu_times",
    "device_name",
    "diff",
    "disk",
    "drops",
    "exchanges",
    "explaining",
    "find_stalls",
    "gather",
    "latencies",
    "latency",
    "listeners",
    "match_calls",
    "match_pairs",
    "open_log",
    "pairing",
    "queues",
    "requests",
    "sleep_times",
    "sleeps",
    "trial",
    "why",
]
