# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon pair` on captures of both ends of a link whose delays and losses are known."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
from capturing import capturing_each, connected, receive
from click.testing import CliRunner

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.link import Link, Way
from tcpkmon.formats.analysis.pairing import fit, pair
from tcpkmon.formats.analysis.pairing.messages import causes
from tcpkmon.formats.commands.pair import command

SIZE = 600_000
OFFSET_NS, DRIFT = 5_000_000_000_123, 70e-6


def test_both_ends_of_a_link(tmp_path: Path) -> None:
    link = Link(Way(delay_ms=6, rate_mbit=20, lose=(100_000, 103_000)), Way(delay_ms=2))
    with Lab(link=link) as lab:
        options = {
            name: ("--netns", side.name, "--columns", "full", "--locations", "all")
            for name, side in (("a", lab.a), ("b", lab.b))
        }
        with capturing_each(tmp_path, options), connected(lab) as both:
            for _ in range(3):
                reader = threading.Thread(target=receive, args=(both.server, SIZE))
                reader.start()
                both.client.sendall(bytes(SIZE))
                reader.join()
                both.exchange()
    paths = tmp_path / "a.pm", tmp_path / "b.pm"
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

    one, start = found.pairs[0], int(found.pairs[0].a.times[0])

    def shifted(times: np.ndarray) -> np.ndarray:
        return times + OFFSET_NS + np.rint((times - start) * DRIFT).astype(np.int64)

    other = replace(one.b, times=shifted(one.b.times))
    forth, back = causes(one.a, other), causes(other, one.a)
    clocks = fit((forth[0], forth[1] - forth[0]), (back[1], back[0] - back[1]))
    assert clocks is not None
    low, high = clocks.bounds(at)
    truth = shifted(at) - at
    assert (low <= truth).all() and (truth <= high).all()
    assert clocks.drift[0] <= DRIFT <= clocks.drift[1]

    done = CliRunner().invoke(command, [str(path) for path in paths], standalone_mode=False)
    assert done.exception is None, done.output
    assert "A to B" in done.output and "limits of both ends" in done.output
    print(done.output)
