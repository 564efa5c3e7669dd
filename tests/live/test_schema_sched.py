# SPDX-License-Identifier: Apache-2.0
"""The schema sched: each event is caused, counted another way, and found exactly that often."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.full import first
from tests.live.capturing import wait_until
from tests.live.held_page import state_of
from tests.live.schema_logs import Log, Record, Scenario, play

TIMES = 40
TRIES = 5

# Tells its switches as the kernel counts them, before and after it sleeps, at known moments.
SLEEPER = """
import gc, json, os, sys, time
gc.disable()

def switches():
    with open("/proc/thread-self/status") as file:
        found = dict(line.split(":") for line in file)
    return [int(found[f"{kind}voluntary_ctxt_switches"]) for kind in ("", "non")]

def moment():
    while True:
        before, now = switches(), time.monotonic_ns()
        if switches() == before:
            return [now, *before]

os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
os.nice(5)
moment(), time.sleep(0.002), sys.stdin.readline()
begin = moment()
for _ in range(int(sys.argv[1])):
    time.sleep(0.002)
end = moment()
with open("/proc/thread-self/schedstat") as file:
    runtime = int(file.read().split()[0])
print(json.dumps([begin, end, runtime]))
"""


def sleeper() -> subprocess.Popen[str]:
    """A process that sleeps TIMES times, once told to."""
    return subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(TIMES)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def between(records: list[Record], begin: int, end: int) -> list[Record]:
    return [record for record in records if begin < record["time_ns"] < end]


def check_ways(log: Log, *events: str) -> None:
    for event in events:
        assert log.ways[event].startswith("btf:sched_"), log.ways


def run_sleeper() -> tuple[int, str]:
    """Its pid, and what it told."""
    with sleeper() as process:
        told, _ = process.communicate("go\n")
        assert process.returncode == 0
    return process.pid, told


def a_sleeper() -> Scenario:
    runs = [run_sleeper() for _ in range(TRIES)]
    log = yield
    seen = [(pid, told) for pid, told in runs if is_whole(log, *json.loads(told)[:2])]
    assert seen, f"switches are missing from all {TRIES} runs"
    for pid, told in seen:
        check_sleeper(log, pid, told)


def is_whole(log: Log, begin: list[int], end: list[int]) -> bool:
    """Whether each thread that came in went out again, on all CPUs, in that time.

    The sandbox that this project was written in hides its own threads: its kernel runs no
    tracepoint, for BPF or perf, while one of them (or an interrupt in it) runs.
    """
    switches = [one for one in log.records if one["event"] in {"SCHEDIN", "SCHEDOUT"}]
    for cpu in {one["on_cpu"] for one in switches}:
        here = [one for one in switches if one["on_cpu"] == cpu]
        for begun, then in itertools.pairwise(here):
            if begun["time_ns"] > end[0] or then["time_ns"] < begin[0]:
                continue
            if begun["event"] == "SCHEDIN" and (
                then["event"] != "SCHEDOUT" or then["pid"] != begun["pid"]
            ):
                return False
    return True


def check_sleeper(log: Log, pid: int, told: str, least: int = TIMES) -> None:
    """Every event of its sleeps, as often as /proc counts them, with what /proc tells.

    least: how often it slept at least; where a CPU is slow, time is over before it does.
    """
    (begin, *before), (end, *after), runtime = json.loads(told)
    voluntary, others = (new - old for old, new in zip(before, after, strict=True))
    assert voluntary >= least

    def found(event: str, **values: object) -> list[Record]:
        return between(log.of(event, pid=pid, **values), begin, end)

    out = found("SCHEDOUT")
    assert len([one for one in out if one["reason"] == "BLOCKED"]) == voluntary
    assert len(out) == voluntary + others
    assert len(found("SCHEDIN")) == len(out)
    # What it does besides sleeping is to wait for pages.
    slept = len(found("REMOVE_FROM_RUNQ", state="INTERRUPTIBLE"))
    assert least <= slept <= TIMES
    assert len(found("REMOVE_FROM_RUNQ")) == voluntary
    assert len(found("ADD_TO_RUNQ", is_new=0)) == len(found("ADD_TO_RUNQ")) == voluntary
    # Each sleep ends with one, be it that the thread had not gone to sleep yet. Where its time is
    # over before its timer starts, newer kernels start none (hrtimer_start_range_ns_user).
    tries = found("TRY_TO_WAKEUP", state="INTERRUPTIBLE", wakes=1)
    assert slept <= len(tries) <= TIMES
    assert len([one for one in tries if not one["running"]]) <= slept
    for event in ("SCHEDOUT", "SCHEDIN", "REMOVE_FROM_RUNQ", "ADD_TO_RUNQ", "TRY_TO_WAKEUP"):
        for record in found(event):
            assert (record["policy"], record["prio"]) == ("SCHED_BATCH", 125)
            assert record["tgid"] == pid
            assert record["comm"] == Path(sys.executable).name[:15]
    assert [one["voluntary"] + one["involuntary"] for one in out] == list(
        range(sum(before) + 1, sum(after) + 1)
    )
    times = [one["runtime"] for one in out]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] <= runtime
    # It goes where the record says, and the next one comes after it.
    for record in out:
        (next_in,) = [
            one for one in log.of("SCHEDIN", prev_pid=pid, on_cpu=record["on_cpu"])
            if one["time_ns"] >= record["time_ns"]
        ][:1]  # fmt: skip
        assert next_in["pid"] == record["next_pid"]


def who_woke() -> Scenario:
    """Each write into a pipe wakes the reader that sleeps there, once."""
    read_end, write_end = os.pipe()
    reader = subprocess.Popen(
        ["/bin/sh", "-c", "while read line; do :; done"], stdin=read_end, pass_fds=()
    )
    for _ in range(TIMES):
        wait_until(lambda: state_of(reader.pid) == "S")
        os.write(write_end, b"\n")
    wait_until(lambda: state_of(reader.pid) == "S")
    os.close(write_end)
    reader.wait()
    os.close(read_end)
    log = yield
    assert log.ways["TRY_TO_WAKEUP"].split(":")[1] in {"sched_waking", "try_to_wake_up"}
    me = threading.get_native_id()
    woken = log.of("TRY_TO_WAKEUP", pid=reader.pid, waker=me)
    # The last one tells that the pipe was closed.
    assert len(woken) == TIMES + 1
    assert {one["wakes"] for one in woken} == {1}
    # It may still be on its way off the CPU.
    assert {(one["running"], one["queued"]) for one in woken} <= {(0, 0), (1, 0), (1, 1)}


def processes_that_are_made_execute_and_end() -> Scenario:
    """One FORK, one EXEC, one EXIT for each child, with its name and its status."""
    begun = time.monotonic_ns()
    children: list[tuple[int, int]] = []
    for number in range(TIMES // 2):
        child = subprocess.Popen(
            ["/bin/sh", "-c", f"exit {number}", "name"], env={"ONE": "1", "TWO": "2"}
        )
        assert child.wait() == number
        children.append((child.pid, number))
    killed = subprocess.Popen(["/bin/sleep", "1000"])
    wait_until(lambda: Path(f"/proc/{killed.pid}/comm").read_text() == "sleep\n")
    killed.kill()
    killed.wait()
    ended_ns = time.monotonic_ns()
    log = yield
    check_ways(log, "FORK", "EXEC", "EXIT")
    forks = between(log.of("FORK", tgid=os.getpid()), begun, ended_ns)
    assert [one["child_pid"] for one in forks] == [*(pid for pid, _ in children), killed.pid]
    for pid, status in children:
        fork = log.one("FORK", child_pid=pid)
        assert (fork["child_tgid"], fork["kind"], fork["pid"]) == (
            pid, "PROCESS", threading.get_native_id()
        )  # fmt: skip
        executed = log.one("EXEC", pid=pid)
        assert (executed["filename"], executed["comm"]) == ("/bin/sh", "sh")
        assert executed["argc"] == 4
        assert executed["envc"] == 2
        assert (executed["tgid"], executed["old_pid"]) == (pid, pid)
        ended = log.one("EXIT", pid=pid)
        assert (ended["status"], ended["signal"], ended["group_dead"]) == (status, 0, 1)
        assert ended["minor_faults"] > 0
        assert fork["time_ns"] < executed["time_ns"] < ended["time_ns"]
        assert log.one("ADD_TO_RUNQ", pid=pid, is_new=1)["time_ns"] > fork["time_ns"]
        assert log.one("REMOVE_FROM_RUNQ", pid=pid, state="DEAD")["time_ns"] > ended["time_ns"]
        last = log.one("SCHEDOUT", pid=pid, reason="EXITED")
        assert last["state"] == "DEAD"
        # What a hypervisor or an interrupt took is part of the one and not of the other.
        assert 0.5 * last["runtime"] < ended["runtime"] < 1.5 * last["runtime"]
        assert ended["started"] <= fork["time_ns"] <= ended["time_ns"]
    ended = log.one("EXIT", pid=killed.pid)
    assert (ended["status"], ended["signal"]) == (0, signal.SIGKILL)


def a_stopped_process_is_off_the_run_queue() -> Scenario:
    process = subprocess.Popen(["/bin/sleep", "1000"])
    for _ in range(3):
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(process.pid) == "T")
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: state_of(process.pid) == "S")
    process.kill()
    process.wait()
    log = yield
    assert len(log.of("REMOVE_FROM_RUNQ", pid=process.pid, state="STOPPED")) == 3
    assert len(log.of("SCHEDOUT", pid=process.pid, state="STOPPED", reason="BLOCKED")) == 3
    assert len(log.of("TRY_TO_WAKEUP", pid=process.pid, state="STOPPED", wakes=1)) == 3


def whose_processes_are() -> Scenario:
    """A child of root that becomes another user, and forks: each event tells who its thread is."""
    child = subprocess.Popen(
        ["/bin/sh", "-c", "(exec /bin/true); /bin/sleep 0.1; exit 0"], user=65534, group=65534,
        extra_groups=[], cwd="/",
    )  # fmt: skip
    assert child.wait() == 0
    log = yield
    born = log.one("FORK", child_pid=child.pid)
    assert (born["uid"], born["tgid"]) == (0, os.getpid())
    assert born["runtime"] > 0 and born["cgroup"] > 0
    executed = log.one("EXEC", tgid=child.pid)
    assert executed["uid"] == 65534
    for name in ("TRY_TO_WAKEUP", "ADD_TO_RUNQ", "REMOVE_FROM_RUNQ", "SCHEDOUT", "SCHEDIN"):
        later = [one for one in log.of(name, pid=child.pid)
                 if one["time_ns"] > executed["time_ns"]]  # fmt: skip
        assert {one["uid"] for one in later} == {65534}, name
    made = log.of("FORK", tgid=child.pid)
    assert [one["uid"] for one in made] == [65534] * len(made) and made
    assert log.one("EXIT", tgid=child.pid)["uid"] == 65534
    assert log.one("PROCESS_EXISTS", pid=os.getpid())["uid"] == 0


def traps_are_the_switches_that_preempt() -> Scenario:
    busy = "import time\nend = time.monotonic() + 0.3\nwhile time.monotonic() < end: pass"
    for child in [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(4)]:
        assert child.wait() == 0
    log = yield
    forced = [(one["pid"], one["next_pid"]) for one in log.of("SCHEDOUT", reason="PREEMPTED")]
    assert forced
    assert sorted((one["pid"], one["next_pid"]) for one in log.of("TRAP")) == sorted(forced)


@pytest.mark.parametrize("kinds", first(1, ["", "raw"]))
def test_events_of_threads(tmp_path: Path, kinds: str) -> None:
    scenarios = [
        a_sleeper(), who_woke(), processes_that_are_made_execute_and_end(), whose_processes_are(),
        a_stopped_process_is_off_the_run_queue(), traps_are_the_switches_that_preempt(),
    ]  # fmt: skip
    more = ["--using", "traps"]
    play(tmp_path / "log", "sched", scenarios=scenarios, kinds=kinds, more=more)
