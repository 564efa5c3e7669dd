# SPDX-License-Identifier: Apache-2.0
"""A capture starts on a machine of many CPUs: what all of their rings take, and one after another.

TCPKMON_GUEST_CPUS=64 scripts/vmtest 6.12 -- tests/vm/test_vm_cpus.py
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.linux.syscalls import online_cpus
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.prepare import prepare
from tcpkmon.collector.plan.filters import Filters, parse
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.ring import rings
from tcpkmon.collector.ring.rings import Rings
from tests.live.capturing import capturing, connected, within

PAGES = 16


def opened_s(kernel: Kernel, dtype: object) -> tuple[float, float]:
    """Seconds in which the rings of all CPUs are opened, and closed."""
    begun = time.monotonic()
    found = Rings(kernel.loaded.maps, dtype, PAGES, 4096)  # type: ignore[arg-type]
    opened = time.monotonic()
    assert found.cpus == online_cpus()
    found.close()
    return opened - begun, time.monotonic() - opened


def test_the_rings_of_all_cpus_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = len(online_cpus())
    prepared = prepare(Request(Filters(), "-", existing=False, locations="SEGMENT_RECEIVED"))
    filters = parse()
    with Kernel(prepared, filters) as kernel:
        kernel.load()
        together = [opened_s(kernel, prepared.dtype) for _ in range(2)][-1]
        monkeypatch.setattr(rings, "_MOST_THREADS", 1)
        apart = opened_s(kernel, prepared.dtype)
    filters.close()
    print(f"{cpus} CPUs: rings opened and closed within {together[0]:.2f} and {together[1]:.2f} s,"
          f" one after another within {apart[0]:.2f} and {apart[1]:.2f} s")  # fmt: skip
    if cpus >= 16:
        # Emulated, the CPUs' own time is most of it: without emulation it is a tenth.
        assert sum(together) < 0.75 * sum(apart)


def test_a_capture_on_all_of_them(lab: Lab, tmp_path: Path) -> None:
    with (
        capturing(tmp_path / "a.pm", *within(lab), "--buffer-size", "0.25") as running,
        connected(lab) as pair,
    ):
        pair.exchange(1000)
        outcome = running.stop()
    outcome.check_complete()
    assert len(outcome.records.at("SEGMENT_RECEIVED")) > 1
