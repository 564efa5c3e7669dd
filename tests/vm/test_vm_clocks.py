# SPDX-License-Identifier: Apache-2.0
"""The time of day is set while capturing: monotonic time goes on, each step stands in the file."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import tcpkmon
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.formats.base.control import Clock
from tests.live.capturing import capturing, connected, wait_until, within
from tests.live.faults import verify

HOUR_NS = 3600 * 10**9
STEPS = (HOUR_NS, -HOUR_NS, -HOUR_NS, HOUR_NS)
SEGMENTS = ("--locations", "SEGMENT_RECEIVED")


def _steps(path: Path) -> list[int]:
    """The steps of at least a minute that the file, which may still be written, tells of."""
    with tcpkmon.open(path) as capture:
        clocks = [entry for _, entry in capture.controls() if isinstance(entry, Clock)]
    return [clock.step_ns for clock in clocks if abs(clock.step_ns) > 60 * 10**9]


@pytest.mark.usefixtures("machine_of_its_own")
def test_steps_of_the_clock(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "clock.pm"
    with capturing(path, *SEGMENTS, *within(lab)) as running, connected(lab) as pair:
        for count, step_ns in enumerate(STEPS, start=1):
            pair.exchange()
            time.clock_settime_ns(time.CLOCK_REALTIME, time.time_ns() + step_ns)

            def told(count: int = count) -> bool:
                pair.exchange()
                return len(_steps(path)) >= count

            wait_until(told, timeout_s=300)
        pair.exchange()
    outcome = running.stop()
    steps = _steps(path)
    assert len(steps) == len(STEPS)
    for found, made in zip(steps, STEPS, strict=True):
        assert abs(found - made) < 5 * 10**9  # setting the clock takes its time, emulated
    verify(path, 0 if outcome.capture.lost == 0 else 3)
    capture = outcome.capture
    mono = capture.mono_ns()
    assert mono is not None
    records = ~capture.control()
    assert np.all(np.diff(mono[records]) >= 0), "monotonic time never runs backwards"
    epoch = np.diff(capture.time_ns()[records])
    # Times of day leap where the clock did, and nowhere else.
    assert np.count_nonzero(np.abs(epoch) > 60 * 10**9) == len(STEPS)
