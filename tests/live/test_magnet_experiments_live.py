# SPDX-License-Identifier: Apache-2.0
"""MAGNeT's experiments in short: M2 and M5 to M8 must be as wanted; of M1, M3 and M4, which are
about time, that all is measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts.experiments import interleaved, running
from scripts.experiments.figure import Figure
from scripts.experiments.results import Results
from scripts.magnet import layers, loss, modulation, overhead, packets, state, stream
from scripts.magnet.page import EXPERIMENTS
from scripts.magnet.wire import SLOW, TRANSFERS
from tests.live.experimenting import run_script

pytestmark = pytest.mark.live


def run(folder: Path, *names: str) -> Results:
    """These experiments, one round of each in small sizes; none may fail to run."""
    results = Results(rounds=1, quick=True)
    measures = {name: EXPERIMENTS[name].measure for name in names}
    running.measure(results, measures, str(folder), ("tcpdump", "cc"))
    assert not results.skipped
    return results


def check(results: Results, count: int) -> None:
    """So many figures, all as wanted."""
    found: Sequence[Figure] = [
        one for each in EXPERIMENTS.values() for one in each.figures(results)
    ]
    assert len(found) == count, found
    assert not [one for one in found if not one.reached]


@pytest.mark.full
def test_m1_overhead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = (overhead.OFF, overhead.LEAN)
    every = overhead.find_tools
    monkeypatch.setattr(
        overhead,
        "find_tools",
        lambda context, lab: [one for one in every(context, lab) if one.name in cases],
    )
    results = run(tmp_path, "M1")
    for case in cases:
        (records,), (lost,) = (results.all("M1", what, case) for what in ("records", "lost"))
        assert (records == 0) == (case == overhead.OFF)
        assert lost == 0
        for work in TRANSFERS:
            for name in (case, interleaved.bare(case)):
                assert (results.median("M1", work, name) or 0) > 0


@pytest.mark.full
def test_m2_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "QUICK_SECONDS", 0.2)
    monkeypatch.setattr(loss, "QUICK_FLOOD_SECONDS", 0.2)
    monkeypatch.setattr(loss, "SATURATED", (SLOW,))
    monkeypatch.setattr(loss, "FLOODS", {})
    check(run(tmp_path, "M2"), 3)


@pytest.mark.full
def test_m3_cost_of_a_packet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets, "OPTIONS", {packets.LEAN: ()})
    results = run(tmp_path, "M3")
    assert (results.median("M3", packets.KERNEL, packets.LEAN) or 0) > 0
    assert (results.median("M3", packets.READER, packets.LEAN) or 0) > 0
    # Data and acknowledgements: IP and device at both ends.
    assert (results.median("M3", packets.RECORDS, packets.LEAN) or 0) >= 4


@pytest.mark.full
def test_m4_paced_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "QUICK_SECONDS", 0.1)
    monkeypatch.setattr(stream, "PAPER", {stream.SERVER: 1.0011})
    results = run(tmp_path, "M4")
    for case in stream.PAPER:
        bare = results.all("M4", stream.BARE + case, "s")
        assert len(bare) == len(results.all("M4", case, "s")) == stream.TRIALS
        assert min(bare) >= 0.1


def test_m5_modulation(tmp_path: Path) -> None:
    results = run(tmp_path, "M5")
    check(results, 4)
    packets_ = modulation.column(results, modulation.SIZE, "DEV_SEND")
    assert len(packets_) > 2 * modulation.QUICK_WRITES


@pytest.mark.full
def test_m6_cascade(tmp_path: Path) -> None:
    check(run(tmp_path, "M6"), 2)


@pytest.mark.full
def test_m7_state(tmp_path: Path) -> None:
    results = run(tmp_path, "M7")
    check(results, 2)
    assert len(state.state(results)) == 2 * (
        len(state.SAME) + len(state.SEQUENCES) + len(state.PORTS)
    )
    for case in ("IPv4, DEV_SEND", "IPv4, DEV_RECV", "IPv6, DEV_SEND", "IPv6, DEV_RECV"):
        assert (results.median("M7", "packets", case) or 0) > 10


@pytest.mark.full
def test_m8_layers(tmp_path: Path) -> None:
    results = run(tmp_path, "M8")
    check(results, 7)
    assert len(layers.pairs_of(results, layers.QUEUE)[0]) > 100
    assert len(layers.pairs_of(results, layers.HOLE)[0]) == layers.QUICK_HOLES


@pytest.mark.full
def test_the_command(tmp_path: Path) -> None:
    run_script("magnet-experiments", tmp_path, EXPERIMENTS)
