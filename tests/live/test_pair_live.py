# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon pair` on captures of both ends of a link whose delays and losses are known."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.link import FATES, Link, Way
from tcpkmon.formats.analysis.pairing import pair
from tcpkmon.formats.commands.pair import command
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
