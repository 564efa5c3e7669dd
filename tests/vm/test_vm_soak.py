# SPDX-License-Identifier: Apache-2.0
"""The daemon goes on while the time of day is set and a CPU goes off and on: every call is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.usefixtures("machine_of_its_own")
def test_clock_and_cpus_change_under_a_daemon(tmp_path: Path) -> None:
    report = Path(os.environ.get("TCPKMON_RESULTS", tmp_path)) / "soak.log"
    with report.open("w") as log:
        words = [sys.executable, "-m", "tests.truth", "soak", "--minutes", "0.8", "--guest"]
        done = subprocess.run(words, stdout=log, stderr=log, timeout=400, check=False)
    assert done.returncode == 0, report.read_text()
