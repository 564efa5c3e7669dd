# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon pair` on captures of both ends of a link whose delays and losses are known."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from drifting import drifting

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.link import FATES, Link, Way
from tcpkmon.formats.analysis.pairing import fit, pair
from tcpkmon.formats.commands.pair import command
from tests.full import first
from tests.live.capturing import capturing_each, connected, receive

SIZE = 600_000
TIGHT = ("--columns", "full", "--locations", "all")


def captured(folder: Path, link: Link, options: tuple[str, ...]) -> tuple[Path, Path, Any]:
    """Both ends of some transfers and exchanges over a link, and what that did to each packet."""
    with Lab(link=link) as lab:
        sides = {"a": lab.a, "b": lab.b}
        given = {name: ("--netns", side.name, *options) for name, side in sides.items()}
        with capturing_each(folder, given), connected(lab) as both:
            for _ in range(3):
                reader = threading.Thread(target=receive, args=(both.server, SIZE))
                reader.start()
                both.client.sendall(bytes(SIZE))
                reader.join()
                both.exchange()
        assert lab.wire is not None
        trace = lab.wire.trace()
    return folder / "a.pm", folder / "b.pm", trace[trace["fate"] == FATES.index("delivered")]


def test_both_ends_of_a_link(tmp_path: Path) -> None:
    link = Link(Way(delay_ms=6, rate_mbit=20, lose=(100_000, 103_000)), Way(delay_ms=2))
    *paths, _ = captured(tmp_path, link, TIGHT)
    found, _ = pair(paths[:1], paths[1:])
    assert len(found.pairs) == 1 and found.only == (0, 0) and found.wall is not None
    at = np.array([found.pairs[0].a.times[0], found.pairs[0].a.times[-1]])
    low, high = found.clocks.bounds(at)
    assert (low <= 0).all() and (high >= 0).all()  # one clock
    assert (high - low < 9_500_000).all()  # 8 ms are the least that two ways of 6 and 2 allow
    for way, delay_us in (("a2b", 6000), ("b2a", 2000)):
        _, least, most = found.spans(found.pairs[0], way)
        assert len(most) and least.min() / 1000 <= delay_us + 700 and most.min() / 1000 >= delay_us
    missed = found.missing()
    ours = (missed["way"] == "a2b") & (missed["offset"] < 103_000)
    ours &= missed["offset"] + missed["bytes"] > 100_000
    assert ours.any() and missed["certain"][ours].all()
    assert missed["bytes"][ours].sum() >= 3_000

    done = CliRunner().invoke(command, [str(path) for path in paths], standalone_mode=False)
    assert done.exception is None, done.output
    assert "A to B" in done.output and "limits of both ends" in done.output
    print(done.output)


ASYMMETRIC = Link(Way(delay_ms=12, rate_mbit=20, loss_percent=1), Way(delay_ms=3))
OUT_OF_ORDER = Link(
    Way(delay_ms=2, jitter_ms=3, jitter_reorders=True, rate_mbit=50, reorder_percent=1,
        reorder_ms=8), Way(delay_ms=9, jitter_ms=2, jitter_reorders=True),
)  # fmt: skip


def left_at(trace: Any, offsets: Any) -> tuple[Any, Any]:
    """Of bytes of one way: which were delivered once, and when that packet left."""
    trace = trace[trace["data"] > 0]
    begins, first, counts = np.unique(trace["seq"], return_index=True, return_counts=True)
    place = np.maximum(np.searchsorted(begins, offsets, "right") - 1, 0)
    packet = trace[first[place]]
    inside = offsets < packet["seq"].astype(np.int64) + packet["data"]
    return inside & (counts[place] == 1), packet["in_ns"].astype(np.int64)


@pytest.mark.parametrize(
    ("link", "offset_ns", "drift", "options"),
    first(1, [
        (ASYMMETRIC, 5_000_000_000_123, 70e-6, TIGHT),
        (OUT_OF_ORDER, -400_000_000, -150e-6, TIGHT),
        (OUT_OF_ORDER, 86_400_000_000_000, 200e-6, ()),
    ]),
    ids=["asymmetric", "out of order", "default columns"],
)  # fmt: skip
def test_clocks_that_drift(
    tmp_path: Path, link: Link, offset_ns: int, drift: float, options: tuple[str, ...]
) -> None:
    """One of the captures as by a clock that drifts: what that clock did, each segment's delay, and
    what the times of day differ by are within the bounds; these are near those of the wire."""
    path, other, trace = captured(tmp_path, link, options)
    moved = tmp_path / "moved.pm"
    clock = drifting(other, moved, offset_ns, drift)
    (plain, _), (found, _) = pair((path,), (other,)), pair((path,), (moved,))
    (one,), (same,) = found.pairs, plain.pairs
    at = np.linspace(one.a.times[0], one.a.times[-1], 100).astype(np.int64)
    low, high = found.clocks.bounds(at)
    truth = clock(at) - at
    assert len(found.clocks.lines) == 1
    assert (low <= truth).all() and (truth <= high).all()
    slow, fast = found.clocks.drift
    assert slow <= drift <= fast
    assert found.wall is not None and plain.wall is not None
    middle = (one.a.times[0] + one.a.times[-1]) // 2
    more = clock(middle) - middle - offset_ns
    assert found.wall[0] - 100_000 <= more <= found.wall[1] + 100_000  # a reading of two clocks
    inside = count = 0
    for number, way in enumerate(("a2b", "b2a")):
        true, told = plain.spans(same, way)[0], found.spans(one, way)
        last = true.high - 1 - (same.b if number else same.a).acked[0]
        known, left = left_at(trace[trace["way"] == number], last)
        took = (true.arrived - left) * (1 if number else 1 + drift)
        is_in = (told[1] <= took + 5) & (took <= told[2] + 5)
        inside, count = inside + int(is_in[known].sum()), count + int(known.sum())
    assert count > 1000 and inside >= 0.99 * count
    inner = (trace["in_ns"] >= at[0]) & (trace["out_ns"] <= at[-1])
    left, came = (trace[name][inner].astype(np.int64) for name in ("in_ns", "out_ns"))
    forth = trace["way"][inner] == 0
    best = fit((left[forth], clock(came[forth]) - left[forth]),
               (came[~forth], clock(left[~forth]) - came[~forth]))  # fmt: skip
    assert best is not None
    best_low, best_high = best.bounds(at)
    ratio = float(((high - low) / (best_high - best_low)).max())
    print(f"{len(left):,} packets; bounds {np.median(high - low) / 1000:,.0f} us wide, those of "
          f"the wire {np.median(best_high - best_low) / 1000:,.0f} us, at most {ratio:.3f} times")
    if options:
        assert ratio <= 1.5
