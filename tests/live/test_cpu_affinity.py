# SPDX-License-Identifier: Apache-2.0
"""A SCHED_FIFO thread leaves a CPU that is full of work for one that is idle."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tcpkmon.collector.linux import cpu_affinity
from tcpkmon.collector.linux.cpu_affinity import Placing
from tcpkmon.collector.linux.privileges import run_first
from tests.live.capturing import capturing, wait_until

CPUS = sorted(os.sched_getaffinity(0))
SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"

pytestmark = pytest.mark.skipif(len(CPUS) != 2, reason="all but one are to be busy: two CPUs")


@contextmanager
def busy(cpu: int) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", SPIN, str(cpu)]) as process:
        try:
            yield
        finally:
            process.kill()


def wakes_up(seconds: float) -> Iterator[int]:
    """Where a thread that begins on the first CPU and wakes up every 20 ms is each time."""
    os.sched_setaffinity(0, CPUS[:1])
    os.sched_setaffinity(0, CPUS)
    moving = Placing()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        moving.move()
        yield cpu_affinity._this_cpu()
        time.sleep(0.02)


@contextmanager
def running_first() -> Iterator[None]:
    assert run_first()
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def test_it_goes_where_it_disturbs_nobody() -> None:
    with busy(CPUS[0]), running_first():
        # Others may use the second CPU for a while.
        assert any(cpu != CPUS[0] for cpu in wakes_up(20.0))
        assert os.sched_getaffinity(0) == set(CPUS)


def test_collect_leaves_a_busy_cpu(tmp_path: Path) -> None:
    with capturing(tmp_path / "a.pm", "--ports", "9") as running:
        stat = Path(f"/proc/{running.process.pid}/stat")

        def cpu() -> int:
            return int(stat.read_text().rpartition(")")[2].split()[cpu_affinity._CPU_FIELD])

        first = cpu()
        # A SCHED_FIFO thread would stay there.
        with busy(first):
            wait_until(lambda: cpu() != first, timeout_s=20)
        running.stop()


def test_the_writing_thread_stays_with_the_reader(tmp_path: Path) -> None:
    """The kernel would send it to the other CPU each time the reader wakes it."""
    with capturing(tmp_path / "a.pm", "--ports", "9") as running:
        reader = running.process.pid
        tasks = Path(f"/proc/{reader}/task")

        def writers() -> list[int]:
            """All threads but the reader that are SCHED_FIFO."""
            threads = [int(task.name) for task in tasks.iterdir()]
            first = [one for one in threads if os.sched_getscheduler(one) & 1]
            return [one for one in first if one != reader]

        wait_until(lambda: len(writers()) == 1, timeout_s=20)
        (writer,) = writers()
        for cpu in CPUS:
            with busy(cpu):
                left = set(CPUS) - {cpu}
                wait_until(lambda left=left: os.sched_getaffinity(writer) == left, timeout_s=20)
        assert os.sched_getaffinity(reader) == set(CPUS)
        running.stop()


def test_the_writing_thread_may_leave_where_there_is_much_to_do() -> None:
    """By a thread that uses all of its CPU, in place of a flood of records."""
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        moving = Placing(lambda: sleeper.pid)
        moving.move()
        time.sleep(2 * cpu_affinity.INTERVAL_S)
        moving.move()
        assert len(os.sched_getaffinity(sleeper.pid)) == 1
        end = time.monotonic() + 10
        while len(os.sched_getaffinity(sleeper.pid)) == 1 and time.monotonic() < end:
            moving.move()
        assert os.sched_getaffinity(sleeper.pid) == set(CPUS)
    finally:
        sleeper.kill()
        sleeper.wait()
