# SPDX-License-Identifier: Apache-2.0
"""Times as text, against datetime and decimal arithmetic."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
