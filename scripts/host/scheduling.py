# SPDX-License-Identifier: Apache-2.0
"""H5: run queues: who leaves comes back, known sleeps have their class, latencies as perf's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

from scripts.experiments.context import Context
from scripts.host.checks import agree, figures_of, note_unseen, tables_of
from scripts.host.monitor import recording
from tcpkmon.formats.analysis import latencies, open_log
from tcpkmon.formats.analysis.intervals import Statistics
from tests.live.sched_workload import KINDS, PERF_LINE, RECORD, SLEEPER

NAME = "H5"
TITLE = "H5: run queues and sleeps"
TIMES, QUICK_TIMES = 20, 5
BUSY = "import os; os.sched_setaffinity(0, {0}); os.read(0, 1)\nfor i in range(10**8): pass"
NAPS = (
    "import os, time; os.sched_setaffinity(0, {0}); os.read(0, 1)\nwhile True: time.sleep(0.003)"
)


def measure(context: Context) -> None:
    context.say(f"{NAME}: known sleeps; three busy programs and one that naps, on one CPU")
    note_unseen(context.results, NAME)
    _sleeps(context)
    if "perf" not in context.missing:
        _latencies(context)


def _sleeps(context: Context) -> None:
    times = int(context.pick(TIMES, QUICK_TIMES))
    with recording(context.folder, "sched") as log:
        told = subprocess.run(
            [sys.executable, "-I", "-c", SLEEPER, str(times), str(context.folder)],
            capture_output=True, check=True,
        ).stdout  # fmt: skip
    pids: dict[str, int] = json.loads(told)
    classes, gone, back = Counter[tuple[int, str]](), Counter[int](), Counter[int]()
    with open_log(log) as events:
        for event in events.choose("SLEEP", "REMOVE_FROM_RUNQ", "ADD_TO_RUNQ"):
            if event.type == "SLEEP":
                classes[event["tid"], event["class"]] += 1
            elif event.type == "ADD_TO_RUNQ":
                back[event["pid"]] += not event["is_new"]
            else:
                gone[event["pid"]] += event["state"] != "DEAD"
    results = context.results
    for kind, pid in pids.items():
        right = min(times, classes[pid, KINDS[kind]])
        agree(results, NAME, f"{times} sleeps by {kind}: of class {KINDS[kind]}", right, times)
    came, went = (sum(counts[pid] for pid in pids.values()) for counts in (back, gone))
    agree(results, NAME, "each remrq has its setrq, of all these", came, went)


def _latencies(context: Context) -> None:
    made = [
        subprocess.Popen([sys.executable, "-I", "-c", text], stdin=subprocess.PIPE)
        for text in (BUSY, BUSY, BUSY, NAPS)
    ]
    data = context.folder / "perf.data"
    record = ["unshare", "-m", "--propagation", "private", "sh", "-c", RECORD, "sh", str(data)]
    try:
        with recording(context.folder, "sched") as log:
            watch = subprocess.Popen(record, stderr=subprocess.PIPE, text=True)
            for one in made:
                assert one.stdin is not None
                one.stdin.write(b"x")
                one.stdin.flush()
            _, errors = watch.communicate()
    finally:
        for one in made:
            one.kill()
            one.communicate()
    if watch.returncode:
        context.results.skip(NAME, "latencies", f"perf does not record here: {errors[-200:]}")
        return
    shown, script = (
        subprocess.run(
            ["perf", *words, "-i", str(data)], capture_output=True, text=True, check=True
        ).stdout
        for words in (["sched", "latency", "-p"], ["script", "-F", "time", "--ns"])
    )
    told = {int(line["pid"]): line for line in PERF_LINE.finditer(shown)}
    when = script.split()
    first, last = (int(when[at].strip(":").replace(".", "")) for at in (0, -1))
    with open_log(log) as events:
        ours: dict[int, Statistics] = latencies(events.choose(since=first, until=last)).by_key()
    count = sum(ours[one.pid].count for one in made)
    theirs = sum(int(told[one.pid]["count"]) for one in made)
    agree(context.results, NAME, "waits for a CPU, perf sched latency", count, theirs, 0.1 * theirs)
    mean = sum(ours[one.pid].total_ns for one in made) / 1e6 / count
    perf_ms = sum(int(told[p.pid]["count"]) * float(told[p.pid]["mean"]) for p in made) / theirs
    agree(context.results, NAME, "their mean, ms, perf sched latency", mean, perf_ms, 0.1 * perf_ms)


figures, tables = figures_of(NAME), tables_of(NAME)
