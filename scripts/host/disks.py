# SPDX-License-Identifier: Apache-2.0
"""H2 and H3: requests of a device of our own beside /proc/diskstats, and mq-deadline's queue."""

from __future__ import annotations

import subprocess
from pathlib import Path

from scripts.experiments.context import ROOT, Context
from scripts.host.checks import agree, bound, figures_of, note_unseen, tables_of
from scripts.host.monitor import recording
from tcpkmon.formats.analysis import Queue, open_log, queues, requests
from tests.live.disk_workload import BLOCK, REALTIME_DEPTH, Device, loop_device, read_blocks

NAME = "H2"
TITLE = "H2, H3: disks"
READS, QUICK_READS = 3200, 640
DEPTH = 32
READERS, REALTIME = 64, 2
BEST_EFFORT = 2
"""The class of requests that are not realtime."""


def measure(context: Context) -> None:
    context.say(f"{NAME}: direct reads, one at a time and {DEPTH}; {READERS} readers")
    with loop_device(context.folder) as device:
        if device is None or not device.choose("mq-deadline"):
            context.results.skip(NAME, "all", "no loop device with mq-deadline here")
            return
        note_unseen(context.results, NAME)
        _sums(context, device, 1)
        _sums(context, device, DEPTH)
        _queue(context, device)


def _read(device: Device, depth: int, count: int, *more: int) -> None:
    subprocess.run(read_blocks(device.path, depth, count, *more), cwd=ROOT, check=True)


def _sums(context: Context, device: Device, depth: int) -> None:
    count = int(context.pick(READS, QUICK_READS))
    with recording(context.folder, "disk", options=["--using", "requests"]) as log:
        before = device.read_stat()
        _read(device, depth, count // depth)
        after = device.read_stat()
    reads, _, sectors, milliseconds = (b - a for a, b in zip(before[:4], after[:4], strict=True))
    with open_log(log) as events:
        found = requests(events).where(device=device.number, operation=0)
    total_ns = int((found["completed_ns"] - found["inserted_ns"]).sum())
    results, case = context.results, f"depth {depth}"
    agree(results, NAME, f"{case}: reads, diskstats", len(found), reads)
    agree(results, NAME, f"{case}: bytes, diskstats", int(found["bytes"].sum()), sectors * 512)
    agree(results, NAME, f"{case}: bytes that were asked for", int(found["bytes"].sum()),
          count * BLOCK)  # fmt: skip
    agree(results, NAME, f"{case}: requests inserted, issued, completed in this order",
          int(((found.queued_ns >= 0) & (found.served_ns > 0)).sum()), count)  # fmt: skip
    # The kernel's clock has ticks of a millisecond, and rounds up.
    agree(results, NAME, f"{case}: ms of all reads, diskstats", total_ns / 1e6, milliseconds,
          0.05 * milliseconds + 0.01 * reads)  # fmt: skip
    share = 100 * float(found.queued_ns.sum()) / max(1, total_ns)
    if depth == 1:
        bound(results, NAME, f"{case}: share of the time in the queue, %", share, most=10)


def _queue(context: Context, device: Device) -> None:
    aging = device.queue / "iosched" / "prio_aging_expire"
    if aging.exists():
        aging.write_text("60")  # ms, after which others do not wait for realtime requests
    with recording(context.folder, "disk", options=["--using", "queue"], buffer_mb=64) as log:
        _read(device, READERS, 10, REALTIME)
    found = _snapshots(log, device)
    results = context.results
    if not any(one.exact for one in found):
        results.skip(NAME, "H3", "this kernel does not show the scheduler's lists")
        return
    agree(results, NAME, "queue: snapshots with as many positions as the scheduler counts",
          sum(one.length == len(one.positions) for one in found), len(found))  # fmt: skip
    ordered = sum(
        one.positions == tuple(sorted(one.positions, key=lambda x: (x >= 0, abs(x))))
        for one in found
    )
    agree(results, NAME, "queue: sorted, realtime ones (negative) first", ordered, len(found))
    bound(results, NAME, "queue: longest", max(one.length for one in found), 10, 1000)
    bound(results, NAME, "queue: realtime requests in it, most",
          max(sum(x < 0 for x in one.positions) for one in found),
          1, REALTIME * REALTIME_DEPTH)  # fmt: skip
    with open_log(log) as events:
        waited = requests(events).where(device=device.number, priority_class=BEST_EFFORT)
    total_ns = float((waited["completed_ns"] - waited["inserted_ns"]).sum())
    bound(results, NAME, "queue: share of the time in it, of requests not realtime, %",
          100 * float(waited.queued_ns.sum()) / max(1.0, total_ns), least=50)  # fmt: skip


def _snapshots(log: Path, device: Device) -> list[Queue]:
    with open_log(log) as events:
        return [one for one in queues(events) if one.device == device.number]


NOTE = (
    "A device of ours over a file, without a page cache below. H2: sums. H3: the queue of "
    f"mq-deadline, {READERS} readers of which {REALTIME} have the realtime class. The device takes "
    "32 requests at once: they wait in the queue only behind realtime ones."
)
figures, tables = figures_of(NAME), tables_of(NAME, NOTE)
