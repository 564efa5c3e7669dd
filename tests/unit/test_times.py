# SPDX-License-Identifier: Apache-2.0
"""Times as text, against datetime and decimal arithmetic."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpkmon.collector.sequencer.clock_pairs import STEP_NS, Clocks, offset_of, read_pair
from tcpkmon.formats.base.times import format_ns, format_utc

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Spans of nanoseconds to years, from any time of a 64-bit clock.
TIMES = st.tuples(
    st.integers(-(2**40), 2**62),
    st.lists(st.integers(0, 2**40) | st.integers(0, 2**57), min_size=1),
).map(lambda pair: [pair[0] + offset for offset in pair[1]])


@given(TIMES, st.sampled_from([6, 9]))
def test_seconds_with_decimals(times: list[int], digits: int) -> None:
    found = format_ns(np.array(times, np.int64), digits)
    step = 10 ** (9 - digits)
    for text, time_ns in zip(found, times, strict=True):
        cut = abs(time_ns) // step * step * (-1 if time_ns < 0 else 1)
        assert Decimal(text) == Decimal(cut) / 10**9
        assert len(text.partition(".")[2]) == digits


@given(TIMES, st.sampled_from("T "))
def test_dates_in_utc(times: list[int], between: str) -> None:
    found = format_utc(np.array(times, np.int64), between)
    for text, time_ns in zip(found, times, strict=True):
        wanted = EPOCH + timedelta(microseconds=time_ns // 1000)
        assert text == wanted.strftime(f"%Y-%m-%d{between}%H:%M:%S.%fZ")


@pytest.mark.parametrize("write", [format_ns, format_utc])
def test_no_times(write: object) -> None:
    assert len(write(np.empty(0, np.int64))) == 0


def test_around_a_second_and_ten() -> None:
    times = np.array([9_999_999_999, 10_000_000_000, 10_000_000_001], np.int64)
    assert format_ns(times[1:], 9) == ["10.000000000", "10.000000001"]
    assert format_ns(times, 9)[0] == "9.999999999"
    assert format_ns(times[:1]) == ["9.999999"]
    assert format_utc(times)[0] == "1970-01-01T00:00:09.999999Z"
    assert format_utc(times, " ", 9)[0] == "1970-01-01 00:00:09.999999999Z"


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
