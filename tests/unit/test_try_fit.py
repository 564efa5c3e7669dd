# SPDX-License-Identifier: Apache-2.0
"""tcpkmon try's fit against paths that are known: what it says of them, with its error, is so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from tcpkmon.collector.commands.trial import link_of
from tcpkmon.formats.analysis.trying import Fitted, approach, fit, spans
from tests.unit.known_path import PACKET, simulate

FULL = Fitted(20, True, 30, 0, 0, 90_000, True)
PATHS = {
    "full": FULL,
    "slow": Fitted(3, True, 60, 0, 0, 60_000, True),
    "deep": Fitted(50, True, 20, 0, 0, 400_000, True),
    "jitter": replace(FULL, jitter_ms=4),
    "loss": replace(FULL, loss_percent=0.5),
    "never filled": Fitted(30, False, 40, 0, 2, 150_000, False),
    "window": Fitted(40, False, 40, 0, 0, 300_000, False, 60_000),
    "window and jitter": Fitted(40, False, 40, 5, 0, 300_000, False, 60_000),
}
NEAR = {"rate_mbit": 0.02, "rtt_ms": 0.06, "jitter_ms": 0.1, "queue_bytes": 0.03,
        "window_bytes": 0.01}  # fmt: skip
"""What the path's truth may be beyond the spans, relative; of the loss, 0.1 points. A queue and a
jitter together hide the least round trip, by half of the jitter."""


def played(path: Fitted, seed: int | Iterator[int]) -> Fitted:
    seed = seed if isinstance(seed, int) else next(seed)
    segments = 4000 if path.rate_mbit > 5 else 1500
    return fit(simulate(link_of(path).there, segments, seed, path.window_bytes))


@pytest.mark.parametrize("name", PATHS)
def test_the_stated_error_covers_the_truth(name: str) -> None:
    """Of eight captures, in seven and more: five to seven plays cover it in 94 to 98 % of them."""
    truth = PATHS[name]
    missed = Counter[str]()
    for seed in range(8):
        seeds = iter(range(1000 * (seed + 1), 1000 * (seed + 2)))
        wanted = played(truth, seed)
        set_to, implied = approach(wanted, wanted, partial(played, seed=seeds))
        implied += [set_to.implied(wanted, played(set_to, seeds)) for _ in range(3)]
        found = spans(wanted, implied)
        assert ("window_bytes" in found) == ("window" in name)
        assert "jitter_ms" in found if truth.jitter_ms else "jitter_ms" not in found
        assert truth.is_full or not wanted.is_full
        if name in ("full", "slow", "deep", "jitter"):
            assert "queue_bytes" in found and "rate_mbit" in found
        for what, (low, high) in found.items():
            value = getattr(truth, what)
            beyond = NEAR[what] * value if what in NEAR else 0.1
            beyond += truth.jitter_ms / 2 if what == "rtt_ms" else 0
            missed[what] += not low - beyond <= value <= high + beyond
    assert max(missed.values()) <= 1, missed


@pytest.mark.parametrize("name", ["full", "slow", "deep", "window", "never filled"])
def test_a_path_is_known_to_a_packet_after_corrections(name: str) -> None:
    """Where neither jitter nor chance is in it: what is set is the path, not only a span around."""
    truth = PATHS[name]
    seeds = iter(range(100))
    set_to, _ = approach(played(truth, 7), played(truth, 7), partial(played, seed=seeds))
    packet_ms = PACKET * 8 / 1000 / truth.rate_mbit
    assert set_to.rate_mbit == pytest.approx(truth.rate_mbit, rel=0.02)
    assert set_to.rtt_ms == pytest.approx(truth.rtt_ms, abs=4 * packet_ms)
    assert set_to.loss_percent == pytest.approx(truth.loss_percent, abs=0.3)
    if truth.overflowed:
        assert set_to.queue_bytes == pytest.approx(truth.queue_bytes, rel=0.1, abs=2 * PACKET)
