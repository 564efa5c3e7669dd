# SPDX-License-Identifier: Apache-2.0
"""A CPU goes off and on under load: its ring comes back, and every event is accounted for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tcpkmon.collector.ring.rings import TRANSPORTS
from tests.live.faults import Collector
from tests.vm.hotplug import (
    CPU,
    ONLINE,
    RATE,
    arguments,
    calls_on,
    check_exact,
    flooding,
    set_online,
    wait_for_ring,
)

ROUNDS = 10


@pytest.mark.usefixtures("machine_of_its_own")
@pytest.mark.parametrize("rings", TRANSPORTS)
def test_a_cpu_goes_off_and_on_ten_times(tmp_path: Path, rings: str) -> None:
    assert ONLINE.read_text().strip() == "1"
    path = tmp_path / "hotplug.pm"
    calls = 0
    try:
        with (
            flooding() as flood,
            Collector(*arguments(flood, path), "--rings", rings).ready(300) as collector,
        ):
            for _ in range(ROUNDS):
                flood.begin(CPU, rate=RATE)
                flood.advance(100)
                set_online(False)  # the kernel moves the flood to another CPU
                flood.advance(100)
                set_online(True)
                flood.advance(50)
                calls += flood.halt()
            wait_for_ring(path)
            first = calls
            flood.begin(CPU, 200, RATE)
            calls += flood.end()
            done = collector.finish(timeout_s=300)
    finally:
        set_online(True)
    assert done.code == 0, done.stderr
    rows = check_exact(path, calls, 0 if "lost: none" in done.stderr else 3)
    assert set(rows) == {0, 1}
    tail = calls_on(path, CPU)
    assert set(range(first, first + 200)) <= set(tail.tolist()), "a new ring takes everything"
    lost = {cpu: row["lost_total"] for cpu, row in rows.items()}
    print(f"hotplug: {calls} calls, lost by CPU {lost}")
