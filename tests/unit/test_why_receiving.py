# SPDX-License-Identifier: Apache-2.0
"""What a receiver waits for: each rule; piece by piece as at once; against a plain reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 99))
def test_piece_by_piece(seed: int, cuts: int) -> None:
    """Times are added up as in a plain loop; pieces change only how a mean of arrivals begins."""
    chance = np.random.default_rng(seed)
    count = 200
    numbers = np.cumsum(chance.choice([0, 0, 1000, 20_000], count))
    ids = chance.integers(1, 4, count).astype(np.uint64)
    whole = snapshots(
        np.cumsum(chance.choice([0, 1, 5, 40], count)).tolist(),
        np.cumsum(chance.random(count) < 0.03).tolist(),
        conn_id=ids, rcv_nxt=numbers, seg_seq=numbers + chance.choice([0, 0, 1000], count),
        rcv_sb_cc=chance.choice([0, 0, 30_000, 70_000], count),
        location=chance.choice([1, 1, 1, 2], count),
    )  # fmt: skip
    table = table_of(whole)
    for n, one in enumerate(table["conn_id"].tolist()):
        wanted, told = plain(whole, one), connection_of(table, n)
        for name in ("rx_app", "rx_reorder"):
            assert told.receiving_least_ns[name] == wanted[f"{name}.certain"]
            assert table[f"us_{name}"][n] == pytest.approx(wanted[name] / 1000)
            assert table[f"us_{name}_min"][n] == pytest.approx(wanted[f"{name}.certain"] / 1000)
            assert table[f"us_{name}_max"][n] == pytest.approx(
                (wanted[f"{name}.certain"] + wanted["unsure"]) / 1000
            )


def plain(whole: Snapshots, one: int) -> dict[str, int]:
    """One snapshot after the other."""
    found = dict.fromkeys(
        ("rx_app", "rx_reorder", "rx_app.certain", "rx_reorder.certain", "unsure"), 0
    )
    before: dict[str, int] | None = None
    beyond = 0
    for at in np.flatnonzero(whole["conn_id"] == one).tolist():
        now = {name: int(whole[name][at]) for name in
               ("location", "rcv_nxt", "seg_seq", "seg_len", "rcv_sb_cc", "rcv_wnd")}  # fmt: skip
        now |= {"time": int(whole.times_ns[at]), "lost": int(whole.lost[at])}
        is_ahead = now["location"] == 1 and now["seg_seq"] > now["rcv_nxt"]
        came = now["seg_len"] if now["location"] == 1 and now["seg_seq"] <= now["rcv_nxt"] else 0
        now |= {"unread": now["rcv_sb_cc"] + came, "room": now["rcv_wnd"] - came}
        if before is not None:
            span = now["time"] - before["time"]
            sure = 0 if now["lost"] > before["lost"] else span
            found["unsure"] += span - sure
            full = before["unread"] >= max(before["room"], 1) and span > 21 * MS
            name = ""
            if beyond > now["rcv_nxt"]:
                name = "rx_reorder"
            elif now["rcv_sb_cc"] >= now["rcv_wnd"] or full:
                name = "rx_app"
            if name:
                found[name] += span
                found[f"{name}.certain"] += sure
        if is_ahead:
            beyond = max(beyond, now["seg_seq"] + now["seg_len"])
        before = now
    return found


def test_a_capture_without_the_column_has_null() -> None:
    """The window needs the receiver's measurement of the round trip, the reader does not."""
    whole = snapshots([0, 1], rcv_nxt=[0, 1000], rcv_sb_cc=[0, 70_000])
    del whole.columns["rcv_rtt_us"]
    table = table_of(whole)
    assert np.isnan(table["us_rx_autotune"]).all() and table["us_rx_app"].tolist() == [1000]
    del whole.columns["seg_seq"]
    table = table_of(whole)
    assert np.isnan(table["us_rx_app"]).all() and np.isnan(table["us_rx_reorder_max"]).all()
