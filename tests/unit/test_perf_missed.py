# SPDX-License-Identifier: Apache-2.0
"""What programs at events of perf missed: what was due less what ran, read one after the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.program import Missed
from tcpkmon.collector.plan.probes import Chosen


def test_it_never_falls() -> None:
    """Runs between the two readings hide some for a moment."""
    now = {"due": 0, "ran": 0}

    def heads() -> Any:
        return {"guards": {"again": np.array([[now["ran"]]], np.uint32)}}

    kernel = SimpleNamespace(
        loaded=SimpleNamespace(missed=lambda: {"fault": Missed(0, 0, 0, 0, now["due"])}),
        heads=heads,
        _prepared=SimpleNamespace(
            plan=SimpleNamespace(probes=(Chosen("fault", ("FAULT",), "perf", "page_faults:1"),)),
            numbers={"FAULT": 40},
        ),
        _behind={},
    )
    found = []
    for due, ran in ((100, 95), (200, 200), (300, 301), (400, 388), (500, 490)):
        now.update(due=due, ran=ran)
        programs = Kernel.programs(cast(Kernel, kernel), heads())
        found.append(programs["fault"].missed)
    assert found == [5, 5, 5, 12, 12]
