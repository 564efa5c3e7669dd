# SPDX-License-Identifier: Apache-2.0
"""Clock pairs: uncertainty, steps, and times of day that do not run back."""

from __future__ import annotations

from tcpkmon.collector.sequencer.clock_pairs import STEP_NS, Clocks, offset_of, read_pair

HOUR_NS = 3600 * 10**9


class Fake:
    """Two clocks that are set by hand; each reading takes `cost_ns`."""

    def __init__(self) -> None:
        self.now_ns = 10**12
        self.offset_ns = 1_700_000_000 * 10**9
        self.costs_ns = [100]
        self._reads = 0

    def mono(self) -> int:
        self._tick()
        return self.now_ns

    def real(self) -> int:
        self._tick()
        return self.now_ns + self.offset_ns

    def _tick(self) -> None:
        self.now_ns += self.costs_ns[self._reads % len(self.costs_ns)]
        self._reads += 1


def test_best_of_several_readings() -> None:
    fake = Fake()
    # Readings of three calls each; the third one is the quick one.
    fake.costs_ns = [5000] * 6 + [10, 10, 10] + [5000] * 6
    pair = read_pair(fake.mono, fake.real)
    assert pair.uncertainty_ns == 10
    assert offset_of(pair) == fake.offset_ns


def test_steps_are_told_and_used() -> None:
    fake = Fake()
    clocks = Clocks(fake.mono, fake.real)
    assert clocks.offset_ns == fake.offset_ns
    for step_ns in (HOUR_NS, -HOUR_NS, 2 * STEP_NS):
        assert clocks.check() is None
        fake.offset_ns += step_ns
        entry = clocks.check()
        assert entry is not None and entry.step_ns == step_ns
        assert entry.realtime_ns - entry.mono_ns == fake.offset_ns
        assert clocks.offset_ns == fake.offset_ns
        assert clocks.check() is None


def test_small_differences_change_no_conversion_until_they_add_up() -> None:
    fake = Fake()
    clocks = Clocks(fake.mono, fake.real)
    first = clocks.offset_ns
    seen = []
    for _ in range(12):
        fake.offset_ns += STEP_NS // 5
        entry = clocks.check()
        if entry is not None:
            seen.append(entry.step_ns)
        elif not seen:
            assert clocks.offset_ns == first
    assert len(seen) == 2
    assert all(STEP_NS < step_ns < 2 * STEP_NS for step_ns in seen)
