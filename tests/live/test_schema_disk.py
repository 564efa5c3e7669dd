# SPDX-License-Identifier: Apache-2.0
"""The schema disk: a device of the test's own is read, and /proc/diskstats counts the same."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.formats.analysis import Queue, Requests, open_log, queues, requests
from tests.live.disk_workload import (
    BLOCK,
    REALTIME_DEPTH,
    ROOT,
    Device,
    loop_device,
    read_blocks,
    slowed,
)
from tests.live.schema_logs import Log, Scenario, logging, play

READS = 256
IN_FLIGHT = 62 + 2 * REALTIME_DEPTH
"""Requests of 64 readers, two of which are realtime ones."""
SLOW = 2000
"""Reads a second of the slowed device: all requests are there before many of them are served."""
REQUESTS = ("--using", "requests")
QUEUE = ("--using", "queue")


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    with loop_device(tmp_path) as made:
        if made is None:
            pytest.skip("this machine makes no loop device")
        if not made.choose("mq-deadline"):
            pytest.skip("this kernel has no mq-deadline")
        if (aging := made.queue / "iosched" / "prio_aging_expire").exists():
            aging.write_text("200")  # ms, after which others do not wait for realtime requests
        yield made


def run(device: Device, depth: int, count: int, *more: int, before: Sequence[str] = ()) -> int:
    """The threads of a process of its own read the device; its pid."""
    command = (*before, *read_blocks(device.path, depth, count, *more))
    program = subprocess.Popen(command, cwd=ROOT)
    assert program.wait() == 0
    return program.pid


def check_order(found: Requests) -> None:
    """Each request was queued, then issued, then completed."""
    assert (found.queued_ns >= 0).all()
    assert (found.served_ns > 0).all()


def check_reads(
    folder: Path, device: Device, before: list[int], after: list[int], pid: int
) -> Requests:
    """The requests by which a process reads are those of diskstats, in number and bytes.

    Others come later: udev looks at a device that was written.
    """
    with open_log(folder) as events:
        found = requests(events).where(device=device.number, operation=0, tgid=pid)
    check_order(found)
    assert len(found) == after[0] - before[0]
    assert found["bytes"].sum() == (after[2] - before[2]) * 512 == len(found) * BLOCK
    return found


def sums_are_those_of_diskstats(
    folder: Path, device: Device, depth: int, kind: str
) -> Scenario:
    """H2: O_DIRECT reads, one after the other and 32 at a time."""
    before = device.read_stat()
    pid = run(device, depth, READS // depth)
    after = device.read_stat()
    log = yield
    found = check_reads(folder, device, before, after, pid)
    assert len(found) == READS // depth * depth
    milliseconds = after[3] - before[3]
    assert len(set(found["tid"].tolist())) == depth
    total_ns = int((found["completed_ns"] - found["inserted_ns"]).sum())
    # The kernel's clock starts a little earlier and stops a little later: on a busy machine by up
    # to 0.1 ms a request.
    assert -0.01 * READS < milliseconds - total_ns / 1e6 < 0.05 * milliseconds + 0.1 * READS
    if depth == 1:
        assert found.queued_ns.sum() < 0.1 * total_ns
    for event in ("DISK_INSERT", "DISK_ISSUE", "DISK_COMPLETE"):
        assert log.ways[event].startswith(kind)


def snapshots(folder: Path, device: Device, rebuild: bool) -> dict[tuple[int, int], Queue]:
    with open_log(folder) as events:
        found = (queue for queue in queues(events, rebuild) if queue.device == device.number)
        return {(queue.time_ns, queue.request): queue for queue in found}


def test_the_queue_of_mq_deadline(tmp_path: Path, device: Device) -> None:
    """H3: 64 readers, of which two have the realtime class, so that the others wait for them; then
    more than a thousand requests, submitted at once."""
    most = device.queue / "nr_requests"
    most.write_text("2048")
    if int(most.read_text()) < 2048:
        pytest.skip("the device's queue is too short")
    room = (*QUEUE, "--buffer-size", "128")  # 63 records for each insertion
    with slowed(tmp_path, SLOW) as slow, logging(tmp_path / "log", "disk", more=room) as running:
        run(device, 64, 4, 2, before=slow)
        first_until = time.monotonic_ns()
        run(device, 2, 0, 2, 1300, before=slow)
    log = running.finish()
    everything = snapshots(tmp_path / "log", device, rebuild=False)
    if not any(queue.exact for queue in everything.values()):
        pytest.skip("this kernel does not show the scheduler's lists")
    rebuilt = snapshots(tmp_path / "log", device, rebuild=True)
    assert everything.keys() == rebuilt.keys()
    read = {key: queue for key, queue in everything.items() if queue.time_ns < first_until}
    for key, queue in read.items():
        # `length` is what the scheduler counts: inserted, less merged and dispatched.
        assert queue.length == len(queue.positions)
        assert queue.positions == tuple(
            sorted(queue.positions, key=lambda x: (x >= 0, x if x >= 0 else -x))
        )
        assert set(queue.positions) <= set(rebuilt[key].positions)
        assert len(rebuilt[key].positions) - queue.length <= IN_FLIGHT
    assert max(queue.length for queue in read.values()) > 32
    realtime = [sum(x < 0 for x in queue.positions) for queue in read.values()]
    assert 0 < max(realtime) <= 2 * REALTIME_DEPTH
    sectors = {-1 - x for queue in read.values() for x in queue.positions if x < 0}
    asked = log.of("DISK_INSERT", device=device.number, priority_class="REALTIME")
    assert sectors <= {record["sector"] for record in asked}
    with open_log(tmp_path / "log") as events:
        found = requests(events).where(device=device.number, priority_class=2)
    first = found["inserted_ns"] < first_until
    total_ns = (found["completed_ns"] - found["inserted_ns"])[first]
    assert found.queued_ns[first].sum() > 0.5 * total_ns.sum()
    long = [queue for queue in everything.values() if queue.length > 1000]
    assert {len(queue.positions) for queue in long} == {1000}, "it is cut"
    longest = max(long, key=lambda queue: queue.length)
    assert set(longest.positions) <= set(rebuilt[longest.time_ns, longest.request].positions)


def an_operation(device: Device, operation: str) -> Scenario:
    before = device.read_stat()
    begun = time.monotonic_ns()
    fd = os.open(device.path, os.O_RDWR | os.O_SYNC)
    if operation == "write":
        os.pwrite(fd, bytes(BLOCK), 8 * BLOCK)
    elif operation == "flush":
        os.fsync(fd)
    else:
        subprocess.run(
            ["blkdiscard", "-o", str(BLOCK), "-l", str(16 * BLOCK), device.path], check=True
        )
    os.close(fd)
    after, ended = device.read_stat(), time.monotonic_ns()
    log = yield
    column = {"write": 4, "flush": 15, "discard": 11}[operation]
    ends = [
        one for one in log.of("DISK_COMPLETE", device=device.number, operation=operation.upper())
        if begun < one["time_ns"] < ended
    ]  # fmt: skip
    assert len(ends) == after[column] - before[column] > 0
    assert {(end["error"], end["last"]) for end in ends} == {("OK", 1)}
    if operation == "write":
        # The second stands for the flush, which follows by O_SYNC.
        places = [(end["sector"], end["bytes"]) for end in ends]
        assert places == [(8 * BLOCK // 512, BLOCK), (0, 0)]
        assert ends[0]["flags"] & 1
        assert ends[0]["tgid"] == os.getpid()
    elif operation == "discard":
        assert [(end["sector"], end["bytes"]) for end in ends] == [(BLOCK // 512, 16 * BLOCK)]
    else:
        # Any thread may start it, for several requests.
        assert (ends[0]["tid"], ends[0]["uid"]) == (0, 0xFFFFFFFF)


def requests_that_are_merged(folder: Path, device: Device) -> Scenario:
    """Sixteen neighbours, written at once, become one request."""
    before, begun = device.read_stat(), time.monotonic_ns()
    write_neighbours(device)
    after = device.read_stat()
    log = yield
    check_merges(log, folder, device, before, after, begun)


@pytest.mark.parametrize("kind", ["btf", "raw"])
def test_requests(tmp_path: Path, device: Device, kind: str) -> None:
    folder = tmp_path / "log"
    scenarios = [
        *(sums_are_those_of_diskstats(folder, device, depth, kind) for depth in (1, 32)),
        *(an_operation(device, name) for name in ("write", "flush", "discard")),
        requests_that_are_merged(folder, device),
    ]
    kinds = "" if kind == "btf" else kind
    play(folder, "disk", scenarios=scenarios, kinds=kinds, more=REQUESTS)


def write_neighbours(device: Device) -> None:
    fd = os.open(device.path, os.O_RDWR)
    for number in reversed(range(16)):
        os.pwrite(fd, os.urandom(BLOCK), (2 * number) * BLOCK)
    for number in range(16):
        os.pwrite(fd, os.urandom(BLOCK), (2 * number + 1) * BLOCK)
    os.fdatasync(fd)
    os.close(fd)


def check_merges(
    log: Log, folder: Path, device: Device, before: list[int], after: list[int], since: int = 0
) -> None:
    merges = [one for one in log.of("DISK_MERGE", device=device.number) if one["time_ns"] > since]
    assert len(merges) == sum(after[n] - before[n] for n in (1, 5, 12))
    with open_log(folder) as events:
        found = requests(events).where(device=device.number, operation=1)
    here = found["inserted_ns"] > since
    assert found["bytes"][here].sum() == 32 * BLOCK == (after[6] - before[6]) * 512
    assert np.all(found["completed_ns"] > found["inserted_ns"])
