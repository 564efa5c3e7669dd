# SPDX-License-Identifier: Apache-2.0
"""The condenser's figures against the kernel's own counters: U3 of the event monitor's experiments.

Page-ins, page-outs, logins and the counts of disk requests have tests of their own schemata.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tcpkmon.collector import capturing
from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.history import condense
from tcpkmon.formats.verify import verify_folder
from tests.live.disk_workload import ROOT, Device, loop_device, read_blocks, slowed
from tests.live.schema_logs import logging

pytestmark = pytest.mark.full
FORKS = 300
POINTS = 0.01
"""CPU utilisation may differ by that."""
DISK_POINTS = 0.02
SLOW = 500
"""Reads a second."""
SPIN = "import time\nuntil = time.monotonic() + 2\nwhile time.monotonic() < until: pass"


def processes() -> int:
    """How many processes and threads were made since the boot."""
    lines = Path("/proc/stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("processes"))


def busy_share(since: list[int] | None = None) -> tuple[list[int], float]:
    """The counters of all CPUs, and the share of the time since then in which they were busy."""
    now = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    spent = [b - a for a, b in zip(since or now, now, strict=True)]
    return now, 1 - (spent[3] + spent[4]) / max(sum(spent), 1)


def test_forks_are_those_that_the_kernel_counts(tmp_path: Path) -> None:
    with logging(tmp_path / "log", "sched", more=("--locations", "FORK")) as running:
        begun_ns, before = time.monotonic_ns(), processes()
        for _ in range(FORKS):
            if not (pid := os.fork()):
                os._exit(0)
            os.waitpid(pid, 0)
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        after, ended_ns = processes(), time.monotonic_ns()
        log = running.finish()
    found = [one for one in log.of("FORK") if begun_ns <= one["time_ns"] <= ended_ns]
    assert len(found) == after - before > FORKS


def test_cpu_utilisation(tmp_path: Path) -> None:
    with logging(tmp_path / "log", "sched") as running:
        before, _ = busy_share()
        subprocess.run([sys.executable, "-c", SPIN], check=True)
        _, theirs = busy_share(before)
        running.finish()
    with open_log(tmp_path / "log") as log:
        ours = condense(log).cpu
    assert ours is not None
    assert ours.total == pytest.approx(theirs, abs=POINTS)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    with loop_device(tmp_path) as made:
        if made is None:
            pytest.skip("this machine makes no loop device")
        yield made


def test_disk_utilisation(tmp_path: Path, device: Device) -> None:
    """Requests of some milliseconds: the kernel's io_ticks go by jiffies."""
    reading = read_blocks(device.path, 4, 100)
    with (
        slowed(tmp_path, SLOW) as slow,
        logging(tmp_path / "log", "disk", more=("--using", "requests")) as running,
    ):
        before = device.read_stat()[9]
        for _ in range(3):
            subprocess.run((*slow, *reading), cwd=ROOT, check=True)
            time.sleep(0.2)
        ticks_s = (device.read_stat()[9] - before) / 1e3
        running.finish()
    if not slow:
        pytest.skip("this machine's cgroups cannot slow a disk")
    with open_log(tmp_path / "log") as log:
        report = condense(log)
    [ours] = [one for one in report.devices if one.number == device.number]
    elapsed_s = report.head["elapsed_s"]
    assert ours.utilisation == pytest.approx(ticks_s / elapsed_s, abs=DISK_POINTS)
    assert 0.2 < ours.utilisation < 0.9


def test_lossy_buffers(tmp_path: Path) -> None:
    """U5: what is missing from all buffers is what the ledger lost; lossy ones can be left out."""
    flood = ["sh", "-c", "for i in $(seq 200); do /bin/true; done"]
    path = tmp_path / "log"
    with capturing.start("sched", path, buffer_mb=1 / 64) as capture:
        os.kill(capture.pid, signal.SIGSTOP)
        try:
            subprocess.run(flood, check=True)
        finally:
            os.kill(capture.pid, signal.SIGCONT)
        time.sleep(0.5)
        subprocess.run([*flood[:2], ":"], check=True)
    report = verify_folder(path)[-1]
    assert report.exit_code == 3 and not report.problems
    with open_log(path) as log:
        whole = condense(log)
        without = condense(log, discard_lossy=0)
    assert whole.head["lost"] == without.head["lost"] == report.lost_total > 0
    assert without.head["discarded_buffers"] > 0 == whole.head["discarded_buffers"]
    assert without.head["events"] + without.head["discarded_events"] == whole.head["events"]
    assert any("left out" in note for note in without.notes)
