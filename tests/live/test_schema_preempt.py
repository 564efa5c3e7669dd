# SPDX-License-Identifier: Apache-2.0
"""The schema preempt: told where the kernel lacks its tracepoints; else recorded."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from pathlib import Path

from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.plan.columns import SCHEMATA
from tests.live.schema_logs import logging

EVENTS = {"PREEMPT_OFF": ("preempt_disable", "preempt_enable"),
          "IRQS_OFF": ("irq_disable", "irq_enable")}  # fmt: skip
OTHERS = {"preempt_disable": "softirq_entry", "preempt_enable": "softirq_exit",
          "irq_disable": "irq_handler_entry", "irq_enable": "irq_handler_exit"}  # fmt: skip
"""Tracepoints in pairs that each kernel has."""



def test_a_kernel_without_it_says_so() -> None:
    tcpkmon = Path(sys.executable).with_name("tcpkmon")
    said = subprocess.run([tcpkmon, "msmod", "-l"], check=True, capture_output=True, text=True)
    for event, (_, end) in EVENTS.items():
        [line] = [one for one in said.stdout.splitlines() if one.startswith(f"{event}:")]
        has = Btf.from_kernel().find("typedef", f"btf_trace_{end}") is not None
        assert ("not on this kernel: this kernel offers none of" in line) != has
        assert ("from_function" in line) == has


def test_sections_are_logged(tmp_path: Path) -> None:
    """Where a kernel lacks the tracepoints: the same programs at others, that come in pairs too."""
    folder = tmp_path / "own"
    folder.mkdir()
    text = (SCHEMATA / "preempt.bpf.c").read_text()
    for ours, other in OTHERS.items():
        text = text.replace(f":{ours}", f":{other}")
    (folder / "own.bpf.c").write_text(text)
    (folder / "own.conf").write_text((SCHEMATA / "preempt.conf").read_text())
    with logging(tmp_path / "log", str(folder)) as running:
        began_ns = time.monotonic_ns()
        time.sleep(1)
        ended_ns = time.monotonic_ns()
        log = running.finish()
    found = log.of("PREEMPT_OFF")
    assert found, log.missing
    assert all(began_ns - 60 * 10**9 < one["since"] < one["time_ns"] for one in found)
    assert sum(began_ns <= one["time_ns"] <= ended_ns for one in found) > 10  # timers, at least
    # Of a CPU, none begins before the one before it was over.
    for cpu in {one["on_cpu"] for one in found}:
        mine = [one for one in found if one["on_cpu"] == cpu]
        assert all(a["time_ns"] <= b["since"] for a, b in itertools.pairwise(mine))
