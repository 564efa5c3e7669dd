# SPDX-License-Identifier: Apache-2.0
"""Oracle 1: `perf record -e tcp:tcp_probe` sees the same segments with the same values."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.collector.lab import traffic
from tcpkmon.collector.lab.lab import Bottleneck, Lab
from tcpkmon.collector.lab.traffic import Workload
from tests.live.capturing import WAIT_S, Records, capturing, within

# perf needs tracefs. Where it is not mounted, perf gets it alone: in a mount namespace of its own.
RECORD = (
    "{ mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing; } && "
    'exec perf record -q -a -k CLOCK_MONOTONIC -e tcp:tcp_probe -m 1024 -D -1 "$@"'
)
COMPARED = ("snd_nxt", "snd_una", "snd_cwnd", "ssthresh", "snd_wnd", "srtt", "rcv_wnd")
LINE = re.compile(
    r"src=\S*:(\d+) dest=\S*:(\d+) .*snd_nxt=(0x[0-9a-f]+) snd_una=(0x[0-9a-f]+) "
    r"snd_cwnd=(\d+) ssthresh=(\d+) snd_wnd=(\d+) srtt=(\d+) rcv_wnd=(\d+)"
)
CWR, RECOVERY = 2, 3
SPINNER = """
import os, sys
os.sched_setaffinity(0, [int(sys.argv[1])])
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
print("spinning", flush=True)
while os.getppid() != 1:
    pass
"""

Streams = dict[tuple[int, int], list[tuple[int, ...]]]


@contextmanager
def perf(data: Path) -> Iterator[None]:
    """Records every tcp_probe event of the machine from before the body until after it."""
    order, orders = os.pipe()
    answers, answer = os.pipe()
    try:
        with subprocess.Popen(
            [
                *("unshare", "-m", "--propagation", "private", "sh", "-c", RECORD, "sh"),
                *("-o", str(data), f"--control=fd:{order},{answer}"),
            ],
            pass_fds=(order, answer),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            os.close(answer)
            os.close(order)
            try:
                os.write(orders, b"enable\n")
                ready, _, _ = select.select([answers], [], [], WAIT_S)
                assert ready, "perf does not answer"
                assert os.read(answers, 16).startswith(b"ack"), process.communicate()[1]
                yield
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=WAIT_S)
            finally:
                process.kill()
    finally:
        os.close(orders)
        os.close(answers)


@contextmanager
def awake() -> Iterator[None]:
    """No CPU idles inside: a process of the least priority keeps each of them from it.

    Since 6.11 perf guards against recursion by a counter of the task, and a CPU's idle task was
    seen with it stuck: perf then misses, silently, whatever a softirq does on that CPU while it
    idles. A BPF program sees it all the same.
    """
    spinners: list[subprocess.Popen[str]] = []
    try:
        for cpu in os.sched_getaffinity(0):
            spinner = subprocess.Popen(
                [sys.executable, "-c", SPINNER, str(cpu)], stdout=subprocess.PIPE, text=True
            )
            spinners.append(spinner)
            assert spinner.stdout is not None
            assert spinner.stdout.readline() == "spinning\n"
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.communicate()


def seen_by_perf(data: Path, port: int) -> Streams:
    """What perf recorded at each end of the connections on this port, in order."""
    text = subprocess.run(
        ["perf", "script", "-i", str(data), "--ns", "-F", "time,trace"],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=WAIT_S,
    ).stdout
    streams: Streams = defaultdict(list)
    for line in text.splitlines():
        found = LINE.search(line)
        assert found, line
        here, there, *values = (int(text, 0) for text in found.groups())
        if port in (here, there):
            streams[here, there].append(tuple(values))
    return streams


def seen_by_collect(records: Records) -> Streams:
    """The same of a capture. tcp_probe tells tcp_current_ssthresh(), not snd_ssthresh."""
    cwnd, ssthresh = records["snd_cwnd_segs"], records["snd_ssthresh"]
    reducing = np.isin(records["ca_state"], (CWR, RECOVERY))
    current = np.where(reducing, ssthresh, np.maximum(ssthresh, (cwnd >> 1) + (cwnd >> 2)))
    columns = [records["snd_nxt"], records["snd_una"], cwnd, current] + [
        records[name] for name in ("snd_wnd", "srtt_us", "rcv_wnd")
    ]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    streams: Streams = defaultdict(list)
    for here, there, row in zip(
        records["lport"].tolist(), records["rport"].tolist(), rows, strict=True
    ):
        streams[here, there].append(row)
    return streams


@pytest.mark.skipif(not shutil.which("perf"), reason="there is no perf (linux-perf) here")
@pytest.mark.parametrize(("kind", "rings"), [
    ("raw", "bpf"), *(pytest.param("btf", one, marks=pytest.mark.full) for one in ("bpf", "perf")),
])  # fmt: skip
def test_perf_sees_the_same(tmp_path: Path, kind: str, rings: str) -> None:
    with Lab(Bottleneck(rate_mbit=200, queue_bytes=100_000, loss_percent=3.0)) as lab:
        work = Workload("10.77.0.2", count=300, size=10_000, connections=3, parallel=3, reply=7)
        exchange = traffic.Exchange(work, lab.a.namespace.fd, lab.b.namespace.fd)
        options = ("--locations", "SEGMENT_RECEIVED", "--buffer-size", "16", "-v", *within(lab))
        options += ("--columns", "full")
        with ExitStack() as stack:
            run = stack.enter_context(
                capturing(tmp_path / "a.pm", *options, "--rings", rings, kinds=f"{kind},iter")
            )
            stack.enter_context(awake())
            stack.enter_context(perf(tmp_path / "perf.data"))
            exchange.go()
            exchange.finish()
            outcome = run.stop()
    outcome.check_complete()
    assert f"{rings} rings" in outcome.errors
    assert f"SEGMENT_RECEIVED by {kind}:tcp_probe" in outcome.errors
    ours = seen_by_collect(outcome.records)
    theirs = seen_by_perf(tmp_path / "perf.data", exchange.port)
    assert {key: len(rows) for key, rows in ours.items()} == {
        key: len(rows) for key, rows in theirs.items()
    }
    assert ours == theirs
    assert len(ours) == 6
    assert len(outcome.records) > 1000
    # The comparison means something: the values moved.
    for place, name in enumerate(COMPARED):
        assert len({row[place] for rows in ours.values() for row in rows}) > 1, name
