# SPDX-License-Identifier: Apache-2.0
"""A Perfetto trace of a host that works: calls and threads are where the process says they were."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tcpkmon.formats.base import cli
from tcpkmon.formats.commands.export import command
from tests.live.schema_logs import logging
from tests.unit.timeline_reader import read

pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

NAP_S = 0.03
TIMES = 5
SLEEPER = f"""
import json, time
told = []
for _ in range({TIMES}):
    before = time.monotonic_ns()
    time.sleep({NAP_S})
    told.append([before, time.monotonic_ns()])
print(json.dumps(told))
"""


def test_calls_and_threads_of_a_sleeper(tmp_path: Path) -> None:
    folder, out = tmp_path / "log", tmp_path / "out.pftrace"
    with logging(folder, "sched", "syscall") as running:
        sleeper = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE)
        told, _ = sleeper.communicate()
        assert sleeper.returncode == 0
    running.finish()
    assert cli.run(command, [str(folder), "-o", str(out)], prog="tcpkmon export") == 0
    trace = read(out)
    assert trace.nested() and not trace.dropped
    name = trace.threads()[sleeper.pid, sleeper.pid]
    (group,) = (
        number for number, one in trace.tracks.items() if one.thread.tid == sleeper.pid
    )  # fmt: skip
    assert name.startswith("python")
    # Each nap is a call of the thread, within the times that it read itself.
    calls = [track for track, one in trace.tracks.items() if one.parent_uuid == group]
    times = sorted(
        (event.time, event.kind, event.name) for event in trace.events if event.track in calls
    )
    naps = [
        (begin, end) for (begin, _, what), (end, _, _) in pairwise(times)
        if what.endswith("nanosleep")
    ]  # fmt: skip
    assert len(naps) == TIMES
    for (begin, end), (before, after) in zip(naps, json.loads(told), strict=True):
        assert before <= begin and end <= after
        assert end - begin >= NAP_S * 1e9
    # It ran on some CPU before and after the naps, and in none of them.
    ran = sorted(
        one[1:] for cpu in trace.groups() if cpu.startswith("CPU ")
        for one in trace.slices(cpu, "threads") if one[0].endswith(f" ({sleeper.pid})")
    )  # fmt: skip
    assert ran
    for begin, end in naps:
        inside = [one for one in ran if begin < one[0] and one[1] < end]
        assert not inside
