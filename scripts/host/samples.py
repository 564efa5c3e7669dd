# SPDX-License-Identifier: Apache-2.0
"""H6: user, nice, system and idle time by samples, beside /proc/stat; the period."""

from __future__ import annotations

import time

from scripts.experiments.context import Context
from scripts.host.checks import agree, figures_of, tables_of
from scripts.host.monitor import BUFFER_MB
from tcpkmon.collector.control import choosing, client
from tcpkmon.collector.linux.syscalls import online_cpus
from tcpkmon.formats.analysis import count_samples, open_log
from tests.live.cpu_workload import READ, SPIN, cpu_time_ns, machine_times, running

NAME = "H6"
TITLE = "H6: samples"
SECONDS, QUICK_SECONDS = 10.0, 2.0
PERIOD_NS = 10_000_000


def measure(context: Context) -> None:
    from tcpkmon.collector import capturing

    context.say(f"{NAME}: half user, a quarter nice, a quarter system")
    seconds = context.pick(SECONDS, QUICK_SECONDS)
    first, last = online_cpus()[0], online_cpus()[-1]
    work = [(SPIN, first, 0), (SPIN, first, 5), (READ, last, 0), (SPIN, last, 0)]
    log = context.folder / "sampler"
    spans = []
    with capturing.start("sampler", log, buffer_mb=BUFFER_MB, force=True) as capture:
        with running(*work):
            begun_ns, before = time.monotonic_ns(), machine_times()
            time.sleep(seconds)
            ended_ns, after = time.monotonic_ns(), machine_times()
        asking = client.Client(choosing.choose(capture.pid))
        with running((SPIN, last, 0)) as (pid,):
            for period_ns in (PERIOD_NS, PERIOD_NS // 2):
                asking.ask({"op": "sampler-period", "ns": period_ns})
                since, used = time.monotonic_ns(), cpu_time_ns(pid)
                time.sleep(seconds / 4)
                spans.append((since, time.monotonic_ns(), cpu_time_ns(pid) - used, period_ns))
    with open_log(log) as events:
        counted = count_samples(events.choose(since=begun_ns, until=ended_ns))
        counts = [
            sum(1 for _ in events.choose("SAMPLE", since=a, until=b, where=[f"pid={pid}"]))
            for a, b, _, _ in spans
        ]
    ticks = {state: after[state] - before[state] for state in before}
    looks = sum(counted.states.values())
    results = context.results
    for state, theirs in ticks.items():
        expected = theirs / sum(ticks.values())
        found = counted.shares.get(state, 0.0)
        found += counted.shares.get("SKIPPED", 0.0) if state == "IDLE" else 0.0
        sigma = (expected * (1 - expected) / max(1, looks)) ** 0.5
        agree(results, NAME, f"{state} of all time, %: /proc/stat, within 3 sigma and a tick",
              100 * found, 100 * expected, 300 * sigma + 1)  # fmt: skip
    for (since, until, used_ns, period_ns), count in zip(spans, counts, strict=True):
        expected, most = used_ns / period_ns, (until - since) / period_ns
        sigma = max(0.0, expected * (1 - expected / most)) ** 0.5
        agree(results, NAME, f"samples of a busy program at {period_ns // 10**6} ms: CPU time by "
              "period, within 3 sigma", count, expected, 3 * sigma + 0.03 * expected + 2)


figures, tables = figures_of(NAME), tables_of(NAME)
