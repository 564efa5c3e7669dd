# SPDX-License-Identifier: Apache-2.0
"""tcpkmon try without a lab: the settings it takes, and how a copy is corrected."""

from __future__ import annotations

import pytest

from tcpkmon.formats.analysis.trying import Fitted, look_alike, parse_variant, what_to_write
from tcpkmon.formats.analysis.trying.seen import Burst, _bursts
from tcpkmon.formats.analysis.why import tally
from tcpkmon.formats.base.errors import UsageError
from tests.unit.test_why import snapshots


def test_settings_are_read() -> None:
    found = parse_variant("net.ipv4.tcp_rmem=4096 131072 6291456,initcwnd=30")
    assert str(found) == "tcp_rmem=6291456,initcwnd=30" and found.main_metric == "duration_us"
    assert parse_variant("tcp_notsent_lowat=16384").main_metric == "latency_whole_us"
    lines = what_to_write(found, {})
    assert "the receiver's host: sysctl -w net.ipv4.tcp_rmem='4096 131072 6291456'" in lines[0]
    assert lines[1].endswith("initcwnd 30")


@pytest.mark.parametrize(
    "text", ["tcp_rmen=1", "tcp_rmem=", "tcp_rmem=-1", "initcwnd=0", "initcwnd=2,initcwnd=3",
             "tcp_congestion_control=a b;c", "tcp_slow_start_after_idle=2"]
)  # fmt: skip
def test_bad_settings_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_variant(text)


def test_a_copy_is_corrected_towards_the_capture() -> None:
    wanted = Fitted(20, True, 30, 0, 0, 60_000, True, 40_000)
    got = Fitted(25, True, 31, 0, 0, 200_000, True, 80_000)
    found = wanted.corrected(wanted, got)
    assert (found.rate_mbit, found.rtt_ms, found.window_bytes) == (16, 29, 20_000)
    assert found.queue_bytes == 30_000  # at most by half


def test_likeness_sees_what_is_off() -> None:
    capture = {"duration_us": 1e6, "srtt_p50_us": 40_000.0, "retrans_ratio": 0.0, "share_rwnd": 1.0}
    near = {**capture, "duration_us": 1.05e6}
    assert all(one.is_alike for one in look_alike(capture, [near] * 3))
    far = {**capture, "duration_us": 2e6, "share_rwnd": 0.2, "share_cwnd": 0.8}
    bad = {one.name for one in look_alike(capture, [far] * 3) if not one.is_alike}
    assert bad == {"duration_us", "limits"}


@pytest.mark.parametrize(("pause_ms", "count"), [(0, 1), (200, 2)])
def test_what_was_written_is_told_by_the_change_of_state_that_closes(
    pause_ms: int, count: int
) -> None:
    """Opened at 40 ms, first written to 60 ms later; the last record of a segment is before the
    last write, and the FIN has a sequence number."""
    una = [1, 1, 1, 41_001, 81_001, 81_001, 121_001, 150_002]
    ends = [1, 1, 81_001, 81_001, 81_001, 141_001, 150_001, 150_002]
    times = [0, 40, 100, 110, 115, 120 + pause_ms, 170 + pause_ms, 210 + pause_ms]
    queued = [end - acked for end, acked in zip(ends, una, strict=True)]
    whole = snapshots(
        times, location=[4, 4, 1, 1, 1, 1, 4, 4], state=[7, 2, 1, 1, 1, 1, 1, 4], snd_una=una,
        snd_max=ends, snd_sb_cc=queued, packets_out=[-(-one // 1000) for one in queued],
        srtt_us=[0, 10_000, *[10_000] * 6], min_rtt_us=10_000,
    )  # fmt: skip
    found = _bursts(whole, tally(iter([whole]))[0])
    assert sum(burst.nbytes for burst in found) == 150_000
    assert len(found) == count and found[0].pause_s == 0
    if count == 2:
        assert found[0] == Burst(0, 81_000)
        assert found[1].pause_s == pytest.approx(0.21, abs=0.01)  # by the records' distance
