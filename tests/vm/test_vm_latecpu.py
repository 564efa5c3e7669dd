# SPDX-License-Identifier: Apache-2.0
"""A CPU that was off when the machine booted comes on while capturing, and gets its ring."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.live.faults import Collector
from tests.vm.hotplug import (
    CPU,
    ONLINE,
    RATE,
    arguments,
    calls_on,
    check_exact,
    flooding,
    set_online,
    wait_for_ring,
)


@pytest.mark.usefixtures("machine_of_its_own", "compiled_here")
def test_a_cpu_comes_on_late(tmp_path: Path) -> None:
    if "TCPKMON_LATE_CPU" not in os.environ:
        pytest.skip("needs a guest that booted with CPU 1 off: tests/vm/guest.sh tells")
    assert ONLINE.read_text().strip() == "0"
    path = tmp_path / "late.pm"
    try:
        with flooding() as flood, Collector(*arguments(flood, path)).ready(300) as collector:
            flood.begin(0, 200, RATE)
            calls = flood.end()
            set_online(True)
            flood.begin(CPU, rate=RATE)
            flood.advance(50)
            calls += flood.halt()
            wait_for_ring(path)
            first = calls
            flood.begin(CPU, 200, RATE)
            calls += flood.end()
            done = collector.finish(timeout_s=300)
    finally:
        set_online(True)  # for the tests that follow
    assert done.code == 0, done.stderr
    rows = check_exact(path, calls, 0 if "lost: none" in done.stderr else 3)
    assert set(rows) == {0, 1}
    assert rows[0]["lost_total"] == 0
    assert set(range(first, first + 200)) <= set(calls_on(path, CPU).tolist())
    print(f"late CPU: {calls} calls, {rows[1]['lost_total']} lost before it had a ring")
