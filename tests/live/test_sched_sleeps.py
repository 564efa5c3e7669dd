# SPDX-License-Identifier: Apache-2.0
"""The schema sched: known sleeps have their place and class, and who waits has his latency."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tcpkmon.formats.analysis import latencies, open_log, sleep_times
from tcpkmon.formats.analysis.intervals import Statistics
from tests.full import first
from tests.live.sched_workload import KINDS, PERF_LINE, RECORD, SLEEPER
from tests.live.schema_logs import Scenario, logging, play

TIMES = 5


def known_sleeps_have_their_class(folder: Path) -> Scenario:
    command = [sys.executable, "-c", SLEEPER, str(TIMES), str(folder)]
    done = subprocess.run(command, capture_output=True, check=True)
    log = yield
    pids = json.loads(done.stdout)
    for kind, pid in pids.items():
        found = log.of("SLEEP", tid=pid)
        right = [one for one in found if one["class"] == KINDS[kind]]
        assert len(right) >= TIMES, (kind, found)
        assert {one["tgid"] for one in found} == {pid}
        assert all(one["place"] >> 63 and one["symbol"] for one in found), found
        assert {one["priority"] for one in found} == {120}
        # Each that fell asleep was woken, as it ran on: a sleep for each removal, and vice versa.
        gone = log.of("REMOVE_FROM_RUNQ", pid=pid)
        assert len(found) == len([one for one in gone if one["state"] != "DEAD"])
        assert len(log.of("ADD_TO_RUNQ", pid=pid, is_new=0)) == len(found)
    with open_log(folder / "log") as file:
        times = {(one.tgid, one.sleep_class): one.sleeps for one in sleep_times(file)}
    for kind, pid in pids.items():
        found_ns = times[pid, KINDS[kind]].total_ns
        if kind != "disk":
            assert found_ns > TIMES * 8e6, (kind, times[pid, KINDS[kind]])


def a_priority_that_changes_in_the_queue() -> Scenario:
    """Two threads on one CPU: while one waits, and while it runs, its priority changes."""
    script = """
import os, sys
os.sched_setaffinity(0, {0})
sys.stdout.write("x"), sys.stdout.flush()
while True:
    pass
"""
    both = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for one in both:
            assert one.stdout is not None and one.stdout.read(1) == b"x"
        pid, other = both[0].pid, both[1].pid
        for nice in range(1, 6):
            os.setpriority(os.PRIO_PROCESS, pid, nice)
            time.sleep(0.05)
        os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
        time.sleep(0.05)
    finally:
        for one in both:
            one.kill()
            one.communicate()
    log = yield
    found = log.of("RESHUFFLE", pid=pid)
    changes = [(one["old_priority"], one["priority"], one["cause"]) for one in found]
    assert changes == [
        *((119 + n, 120 + n, "PRIORITY") for n in range(1, 6)),
        (125, 125, "POLICY"),
    ]
    assert (found[-1]["old_policy"], found[-1]["policy"]) == ("SCHED_NORMAL", "SCHED_BATCH")
    assert not log.of("RESHUFFLE", pid=other)
    for one in found:
        event = log.of("SCHEDIN" if one["queued"] else "SCHEDOUT", pid=pid)
        assert one["since"] < one["time_ns"]
        (then,) = [e for e in event if one["time_ns"] <= e["time_ns"]][:1]
        assert (then["prio"], then["policy"]) == (one["priority"], one["policy"])


# A thread holds a lock with priority inheritance and works; one of real time waits for the lock.
INHERITING = """
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None)
os.sched_setaffinity(0, {0})
attributes, mutex = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
libc.pthread_mutexattr_init(attributes)
PTHREAD_PRIO_INHERIT = 1
assert libc.pthread_mutexattr_setprotocol(attributes, PTHREAD_PRIO_INHERIT) == 0
assert libc.pthread_mutex_init(mutex, attributes) == 0
libc.pthread_mutex_lock(mutex)

def wait():
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_unlock(mutex)

thread = threading.Thread(target=wait)
thread.start()
for _ in range(5):
    time.sleep(0.01)
libc.pthread_mutex_unlock(mutex)
for _ in range(5):
    time.sleep(0.01)
thread.join()
"""


def an_inherited_priority() -> Scenario:
    process = subprocess.Popen([sys.executable, "-c", INHERITING])
    assert process.wait() == 0
    log = yield
    found = log.of("RESHUFFLE", pid=process.pid)
    changes = [(one["old_priority"], one["priority"], one["cause"]) for one in found]
    assert changes == [(120, 89, "INHERITED"), (89, 120, "INHERITED")]


@pytest.mark.parametrize("kinds", first(1, ["", "raw"]))
def test_sleeps_and_priorities(tmp_path: Path, kinds: str) -> None:
    scenarios = [
        known_sleeps_have_their_class(tmp_path), a_priority_that_changes_in_the_queue(),
        an_inherited_priority(),
    ]  # fmt: skip
    play(tmp_path / "log", "sched", scenarios=scenarios, kinds=kinds)


def test_latencies_are_those_of_perf(tmp_path: Path) -> None:
    """Three busy processes on one CPU, and one that sleeps: counts and means are perf's."""
    busy = "import os; os.sched_setaffinity(0, {0}); os.read(0, 1)\nfor i in range(10**8): pass"
    naps = (
        "import os, time; os.sched_setaffinity(0, {0}); os.read(0, 1)\n"
        "while True: time.sleep(0.003)"
    )
    made = [
        subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE)
        for text in (busy, busy, busy, naps)
    ]
    data = tmp_path / "perf.data"
    try:
        with logging(tmp_path / "log", "sched") as running:
            record = ["unshare", "-m", "--propagation", "private", "sh", "-c", RECORD, "sh", data]
            watch = subprocess.Popen(record, stderr=subprocess.PIPE, text=True)
            for one in made:
                assert one.stdin is not None
                one.stdin.write(b"x"), one.stdin.flush()
            _, errors = watch.communicate()
            for one in made:
                one.kill()
        if watch.returncode:
            pytest.skip(f"perf sched does not record here: {errors}")
    finally:
        for one in made:
            one.kill()
            one.communicate()
    shown = subprocess.run(
        ["perf", "sched", "latency", "-p", "-i", data], capture_output=True, text=True, check=True
    ).stdout
    told = {int(line["pid"]): line for line in PERF_LINE.finditer(shown)}
    running.finish()
    script = ["perf", "script", "-i", data, "-F", "time", "--ns"]
    times = subprocess.run(script, capture_output=True, text=True, check=True).stdout.split()
    first, last = (int(times[at].strip(":").replace(".", "")) for at in (0, -1))
    with open_log(tmp_path / "log") as file:
        ours: dict[int, Statistics] = latencies(file.choose(since=first, until=last)).by_key()
    waited_ms = perf_ms = 0.0
    for one in made:
        line, found = told[one.pid], ours[one.pid]
        assert found.count > 50
        assert found.count == pytest.approx(int(line["count"]), rel=0.1)
        waited_ms += found.total_ns / 1e6
        perf_ms += float(line["mean"]) * int(line["count"])
    assert waited_ms == pytest.approx(perf_ms, rel=0.1)
