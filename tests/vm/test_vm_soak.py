# SPDX-License-Identifier: Apache-2.0
"""The daemon goes on while the time of day is set and a CPU goes off and on: every call is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.live.faults import run

SOAK = Path(__file__).resolve().parents[2] / "scripts/soak"


@pytest.mark.usefixtures("machine_of_its_own")
def test_clock_and_cpus_change_under_a_daemon() -> None:
    done = run([sys.executable, "-I", str(SOAK), "--minutes", "1.2", "--guest"], timeout=400)
    print(done.stdout.decode())
    assert done.code == 0, (done.stdout.decode(), done.stderr)
