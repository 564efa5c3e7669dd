# SPDX-License-Identifier: Apache-2.0
"""Rates and costs of a capture: what status says of batches and beats that are made up here."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.session import pulse as module
from tcpkmon.collector.session.pulse import SPAN, Pulse

ROW = np.dtype([("seq", "=u4"), ("time", "=i8"), ("rest", "=u4")])


def batch(cpu: int, times_ns: list[int], read_ns: int) -> Batch:
    rows = np.zeros(len(times_ns), ROW)
    rows["time"] = times_ns
    return Batch(cpu, rows, read_ns)


def test_rates_are_those_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    written = [0]
    with Pulse("-", lambda: written[0], lambda: 10 * written[0]) as pulse:
        assert pulse.told()["rates"] == {"records/s": 0, "bytes/s": 0}
        for n in range(SPAN + 4):
            pulse.beat()
            clock[0] += 1
            written[0] += 1000 if n < 3 else 50
        told = pulse.told()
    assert told["rates"] == {"records/s": 50, "bytes/s": 500}, "the burst before is over"
    assert told["disk_free_bytes"] is None


def test_peaks_of_rings_and_lag() -> None:
    with Pulse("-", lambda: 0, lambda: 0) as pulse:
        pulse.drained([batch(0, [50, 60], 1050), batch(1, [], 2000), batch(0, [70, 80], 1060)], 16)
        told = pulse.told()
        assert (told["ring_fill"], told["reader_lag_s"]) == (0.25, 1e-6)
        for _ in range(SPAN + 2):
            pulse.beat()
        told = pulse.told()
        assert (told["ring_fill"], told["reader_lag_s"]) == (0, 0), "forgotten after the span"


def test_cost_and_disk_are_those_of_this_process(tmp_path: Path) -> None:
    with Pulse(str(tmp_path / "x.pm"), lambda: 0, lambda: 0) as pulse:
        pulse.beat()
        began_s, until = time.monotonic(), time.process_time() + 0.2
        while time.process_time() < until:
            pass
        pulse.beat()
        expected = 100 * 0.2 / (time.monotonic() - began_s)  # others have the CPUs too
        told = pulse.told()
    free = os.statvfs(tmp_path)
    assert told["disk_free_bytes"] == pytest.approx(free.f_bavail * free.f_frsize, rel=0.1)
    assert told["cost"]["cpu_percent"] == pytest.approx(expected, rel=0.3)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    memory = told["cost"]["memory_bytes"]
    assert memory == pytest.approx(pages * os.sysconf("SC_PAGESIZE"), rel=0.2)
