# SPDX-License-Identifier: Apache-2.0
"""The condenser's figures against the kernel's own counters: U3 of the event monitor's experiments.

Page-ins, page-outs, logins and the counts of disk requests have tests of their own schemata.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tcpkmon.collector import capturing
from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.history import condense
from tcpkmon.formats.verify import verify_folder
from tests.live.schema_logs import logging

pytestmark = pytest.mark.full
FORKS = 300


def processes() -> int:
    """How many processes and threads were made since the boot."""
    lines = Path("/proc/stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("processes"))


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
