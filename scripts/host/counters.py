# SPDX-License-Identifier: Apache-2.0
"""The kernel's own counters, read at a quiet moment, and what the monitor's log has between two."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tcpkmon.formats.analysis import open_log, requests
from tests.live.disk_workload import Device
from tests.live.memory_workload import swapped

TRIES = 400


@dataclass(frozen=True)
class Counters:
    """At time_ns (CLOCK_MONOTONIC). disk: as in /proc/diskstats. cpu: busy and all ticks."""

    time_ns: int
    processes: int
    major_faults: int
    swapped_out: int
    disk: list[int]
    cpu: tuple[int, int]


def read(device: Device) -> Counters:
    """Read again until nothing has changed meanwhile: then the time is that of the counts."""
    before = _once(device)
    for _ in range(TRIES):
        time.sleep(0.005)
        now = _once(device)
        if (now.processes, now.major_faults, now.swapped_out, now.disk) == (
            before.processes, before.major_faults, before.swapped_out, before.disk
        ):  # fmt: skip
            break
        before = now
    return before


def _once(device: Device) -> Counters:
    _, out, major = swapped()
    lines = Path("/proc/stat").read_text().splitlines()
    stat = {line.split()[0]: line.split()[1:] for line in lines if line}
    user, nice, system, idle, wait, irq, softirq, *_ = map(int, stat["cpu"])
    busy = user + nice + system + irq + softirq
    made = int(stat["processes"][0])
    disk = device.read_stat()
    return Counters(time.monotonic_ns(), made, major, out, disk, (busy, busy + idle + wait))


@dataclass(frozen=True)
class Found:
    """What the log has: counts; reads and bytes of the device; shares (0 to 1)."""

    forks: int
    major_faults: int
    swapped_out: int
    reads: int
    bytes: int
    disk: float
    cpu: float
    logins: int


def find(folder: Path, device: Device, since: Counters, until: Counters) -> Found:
    """From one reading to the other."""
    begin, end = since.time_ns, until.time_ns
    forks = faults = out = logins = 0
    runs: dict[int, list[tuple[int, bool]]] = {}
    with open_log(folder) as log:
        names = ("FORK", "PAGEIN_END", "PAGEOUT_START", "LOGIN", "SCHEDIN")
        for batch in log.choose(*names).batches():
            for event in batch.events():
                at = batch.where(event)
                times = batch.times_ns[at].astype(np.int64)
                inside = (times > begin) & (times < end)
                rows = batch.rows(event, at)
                if event.name == "FORK":
                    forks += int(inside.sum())
                elif event.name == "PAGEIN_END":
                    faults += int((rows["with_io"][inside] != 0).sum())
                elif event.name == "PAGEOUT_START":
                    out += int(rows["pages"][inside].sum())
                elif event.name == "LOGIN":
                    logins += int(inside.sum())
                else:
                    busy = (rows["prev_pid"] != 0).tolist()
                    cpus = batch.cpus[at].tolist()
                    for cpu, when, is_busy in zip(cpus, times.tolist(), busy, strict=True):
                        runs.setdefault(cpu, []).append((when, is_busy))
        found = requests(log.choose(since=begin, until=end)).where(device=device.number)
    return Found(
        forks, faults, out, len(found), int(found["bytes"].sum()),
        found.busy_ns() / (end - begin),
        sum(_busy_ns(one, begin, end) for one in runs.values()) / (end - begin) / max(1, len(runs)),
        logins,
    )  # fmt: skip


def _busy_ns(runs: list[tuple[int, bool]], begin: int, end: int) -> int:
    """How long a CPU was not idle between two times, by its switches in the order of time: when,
    and whether it took the CPU from a thread."""
    total = 0
    for (start, _), (stop, busy) in itertools.pairwise(runs):
        if busy:
            total += max(0, min(stop, end) - max(start, begin))
    return total
