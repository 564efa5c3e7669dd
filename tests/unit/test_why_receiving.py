# SPDX-License-Identifier: Apache-2.0
"""What a receiver waits for: each rule; piece by piece as at once; against a plain reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tcpkmon.formats.analysis.why import (
    RECEIVING,
    Snapshots,
    connection_of,
    cut,
    verdict,
)
from tests.unit.test_why import MS, block_of, columns, table_of

WINDOW = 60_000
ARRIVES = {"snd_sb_cc": 0, "rcv_wnd": WINDOW, "rcv_rtt_us": 9_500, "seg_len": 1_000}


def snapshots(times_ms: list[float], lost: list[int] | None = None, **values: Any) -> Snapshots:
    times = (np.array(times_ms) * MS).astype(np.int64)
    values = {**ARRIVES, **values}
    values.setdefault("seg_seq", values["rcv_nxt"])
    return Snapshots(columns(**values), times, np.array(lost or [0] * len(times), np.int64))


def receiving(whole: Snapshots) -> list[str]:
    steps = cut(block_of(whole))[1]
    assert steps.receiving is not None
    return [(*RECEIVING, "")[one] for one in steps.receiving]


def test_a_reader_that_is_behind() -> None:
    """Half of the room is full of what it did not read; or was, and nothing could come."""
    told = receiving(snapshots(
        [0, 1, 50, 51, 100], rcv_nxt=[0, 1000, 2000, 2010, 2020],
        rcv_sb_cc=[0, 30_000, 50_000, 1_000, 0], rcv_wnd=[WINDOW, 30_000, WINDOW, 1_500, WINDOW],
    ))  # fmt: skip
    assert told == ["", "rx_app", "rx_app", "", "rx_app"]


@pytest.mark.parametrize("rate, told", [(6_000, "rx_autotune"), (3_000, "")])
def test_a_window_that_is_full_in_each_round_trip(rate: int, told: str) -> None:
    """10 ms: 60 kB of a window of 60 kB, or 30 kB."""
    numbers = [at * rate for at in range(60)]
    assert receiving(snapshots(list(range(60)), rcv_nxt=numbers))[-10:] == [told] * 10


@pytest.mark.parametrize("scale, told", [(0, "rx_autotune"), (7, "")])
def test_a_window_that_cannot_be_told(scale: int, told: str) -> None:
    """The kernel counts with 6 MB, and can tell 64 kB without a scale: those arrive each 10 ms."""
    numbers = [at * 6_000 for at in range(60)]
    whole = snapshots(list(range(60)), rcv_nxt=numbers, rcv_wnd=6 << 20, rcv_wscale=scale)
    assert receiving(whole)[-10:] == [told] * 10
    said = verdict(connection_of(table_of(whole), 0))[0]
    assert ("no larger one can be told" in said) == bool(told)


def test_a_segment_that_is_missing() -> None:
    told = receiving(snapshots(
        [0, 1, 2, 30, 31, 40], rcv_nxt=[0, 1000, 1000, 1000, 4000, 5000],
        seg_seq=[0, 2000, 3000, 1000, 4000, 5000],
    ))  # fmt: skip
    assert told == ["", "", "rx_reorder", "rx_reorder", "", ""]


def test_a_hole_that_one_segment_does_not_fill() -> None:
    """1000 and 3000 are missing; 1000 comes at 20 ms, 3000 at 30 ms."""
    told = receiving(snapshots(
        [0, 1, 2, 20, 25, 30, 31], rcv_nxt=[0, 1000, 1000, 1000, 3000, 3000, 5000],
        seg_seq=[0, 2000, 4000, 1000, 2000, 3000, 5000],
    ))  # fmt: skip
    assert told == ["", "", *["rx_reorder"] * 4, ""]


def test_a_capture_without_the_column_has_null() -> None:
    """The window needs the receiver's measurement of the round trip, the reader does not."""
    whole = snapshots([0, 1], rcv_nxt=[0, 1000], rcv_sb_cc=[0, 70_000])
    del whole.columns["rcv_rtt_us"]
    table = table_of(whole)
    assert np.isnan(table["us_rx_autotune"]).all() and table["us_rx_app"].tolist() == [1000]
    del whole.columns["seg_seq"]
    table = table_of(whole)
    assert np.isnan(table["us_rx_app"]).all() and np.isnan(table["us_rx_reorder_max"]).all()
