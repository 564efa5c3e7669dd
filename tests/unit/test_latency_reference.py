# SPDX-License-Identifier: Apache-2.0
"""formats/analysis/latency finds what a plain and slow reference finds, byte by byte."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.analysis.latency import Latency
from tcpkmon.formats.analysis.latency.stages import State
from tests.full import examples
from tests.unit.latency_reference import RECEIVER, SENDER, Answer, Traffic, explain, make_traffic


def find(folder: Path, traffic: Traffic, piece: int) -> list[Answer | None]:
    """What the analysis says of each byte; None: nothing."""
    found: list[Answer | None] = [None] * traffic.size
    with open_log(folder) as log:
        latency = Latency(log, piece)
        latency._most_open = 1 << 30
        for some in latency:
            for at in range(len(some)):
                parts = {name: int(values[at]) for name, values in some.parts.items()}
                state = State(int(some.state[at])).name
                told = {name: ns for name, ns in parts.items() if ns}
                assert int(some.whole[at]) == sum(told.values())
                assert all(ns >= 0 for ns in parts.values())
                for number in range(int(some.ranges.lo[at]), int(some.ranges.hi[at])):
                    byte = (number - traffic.first_seq) % (1 << 32)
                    assert found[byte] is None, "a byte was put out twice"
                    found[byte] = (state, told)
    return found


def compare(traffic: Traffic, piece: int) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        traffic.write(folder)
        found = find(folder, traffic, piece)
    finally:
        shutil.rmtree(folder)
    for byte, (ours, right) in enumerate(zip(found, explain(traffic), strict=True)):
        if ours is None:  # no record covers it
            assert right[0] in ("BEGAN", "LOST", "MISSING", "ENDED"), (byte, right)
            continue
        state, parts = right
        wanted = (state, {name: ns for name, ns in parts.items() if ns})
        assert ours == wanted, f"byte {byte}"


EXAMPLES = examples(25)
ENDS = st.sampled_from([(SENDER, RECEIVER), (SENDER, RECEIVER), (SENDER,), (RECEIVER,)])


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    """So small that a transfer has many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tcpkmon.formats.analysis.latency.records.LEAST_BATCH", 1)
        yield


@given(seed=st.integers(0, 1 << 32), ends=ENDS, piece=st.sampled_from([8, 40, 1 << 19]))
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_whole_capture(seed: int, ends: tuple[int, ...], piece: int) -> None:
    traffic = make_traffic(random.Random(seed))
    traffic.ends = ends
    compare(traffic, piece)


@given(
    seed=st.integers(0, 1 << 32), ends=ENDS, share=st.sampled_from([0.003, 0.02, 0.2]),
    piece=st.sampled_from([8, 1 << 19]),
)  # fmt: skip
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_capture_with_losses(seed: int, ends: tuple[int, ...], share: float, piece: int) -> None:
    traffic = make_traffic(random.Random(seed), lossy=share)
    traffic.ends = ends
    compare(traffic, piece)


@given(seed=st.integers(0, 1 << 32), ends=ENDS, cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)))
@example(seed=3142, ends=(SENDER, RECEIVER), cuts=(1.0, 0.5625))  # what had come before it began
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_capture_that_begins_late_or_ends_early(
    seed: int, ends: tuple[int, ...], cuts: tuple[float, float]
) -> None:
    traffic = make_traffic(random.Random(seed))
    traffic.ends = ends
    last = traffic.records[-1].time
    traffic.begin, traffic.end = (int(cut * last) for cut in sorted(cuts))
    before = [r for r in traffic.records if r.time < traffic.begin and r.event == "TCP_RECV"]
    traffic.anchor = max((r.hi for r in before), default=0)
    compare(traffic, 1 << 19)


@pytest.mark.full
def test_longer_transfers() -> None:
    for seed in range(40):
        choose = random.Random(seed)
        traffic = make_traffic(choose, 600, choose.choice([0, 0, 0.001]))
        compare(traffic, choose.choice([8, 64, 1 << 19]))
