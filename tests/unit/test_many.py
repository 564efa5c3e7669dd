# SPDX-License-Identifier: Apache-2.0
"""More connections than the tables held before: from the records to rotation, top, verify and why.

With TCPKMON_FULL 1,000,000 that are open and 50,000 new ones a second.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tcpkmon
from scripts.many.main import timed
from scripts.many.simulated import EACH, Simulation
from tcpkmon.collector.writer.states import MOST
from tcpkmon.formats.analysis.why import connections
from tcpkmon.formats.base.control import EXISTING
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.registry import format_of


@pytest.mark.parametrize(
    ("opened", "new", "seconds"),
    [(20_000, 4_000, 1.0), pytest.param(1_000_000, 50_000, 10.0, marks=pytest.mark.full)],
)
def test_connections_beyond_the_usual_tables(
    tmp_path: Path, opened: int, new: int, seconds: float
) -> None:
    assert opened > MOST, "more than a file repeats without the option"
    simulation = Simulation(tmp_path / "many", opened, 1 << (2 * opened - 1).bit_length())
    simulation.open()
    simulation.run(seconds, new, rotate_s=seconds / 2)
    simulation.ask()
    table = simulation.watching.table()
    assert table.is_whole and len(table) == opened
    figures = simulation.close()
    assert figures.shown == opened
    assert figures.records == opened + round(seconds * new) * EACH
    told = simulation.watching.metrics()
    assert told["error"] == "" and told["connections"] == opened
    assert told["opened"] == {"client": seconds * new}
    # All of the capture is proven, and each file has all that is open when it begins.
    *parts, chain = format_of(tmp_path / "many").verify(tmp_path / "many")
    assert all(part.exit_code == 0 for part in (*parts, chain)), chain.problems
    paths = [segment.path(tmp_path / "many") for segment in find_segments(tmp_path / "many")]
    assert len(paths) == 3
    for number, path in enumerate(paths):
        with tcpkmon.open(path) as capture:
            existing = capture.column("location") == EXISTING
            ids = capture.column("conn_id")[existing]
            assert len(ids) == len(np.unique(ids)) == opened, number
    assert len(connections(paths[0])["conn_id"]) == opened + seconds / 2 * new
    # Some 2 kB a connection.
    _, _, mib = timed(["why", str(paths[0])])
    assert mib < 300 + 2.5 * (opened + seconds / 2 * new) / 1024
