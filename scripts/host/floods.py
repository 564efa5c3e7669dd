# SPDX-License-Identifier: Apache-2.0
"""Work that makes events of one group of the monitor as fast as it can."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from scripts.experiments.context import ROOT
from tests.live.disk_workload import BLOCK, loop_device
from tests.live.memory_workload import little_memory, outgrow

PAGES = 20_000
TURNS = 2000
READS = 1000
PROGRAMS = 40
SWAPPED = 8192
"""Pages that a process writes to swap and reads again, about."""


@dataclass(frozen=True)
class Flood:
    """run: ns that `count` operations took."""

    group: int
    count: int
    run: Callable[[], int]


@contextlib.contextmanager
def floods(folder: Path, missing: Callable[[int, str], None]) -> Iterator[list[Flood]]:
    """One for each group; missing: called with a group that this machine cannot have, and why."""
    with ExitStack() as stack:
        master, slave = os.openpty()
        stack.callback(os.close, master)
        stack.callback(os.close, slave)
        found = [
            Flood(1, TURNS, lambda: lines(master, slave)),
            Flood(2, PROGRAMS, programs),
            Flood(3, PAGES, faults),
        ]
        try:
            procs = stack.enter_context(little_memory())
            found.append(Flood(4, SWAPPED, lambda: swap(procs)))
        except OSError as error:
            missing(4, str(error))
        device = stack.enter_context(loop_device(folder))
        if device is None:
            missing(5, "this machine makes no loop device")
        else:
            fd = os.open(device.path, os.O_RDONLY | os.O_DIRECT)
            stack.callback(os.close, fd)
            found.append(Flood(5, READS, lambda: reads(fd)))
        found.append(Flood(6, PROGRAMS, programs))
        yield found


def lines(master: int, slave: int) -> int:
    """A user types a line, a program answers: both are here."""
    begun = time.perf_counter_ns()
    for _ in range(TURNS):
        os.write(master, b"x\n")
        os.read(slave, 10)
        os.write(slave, b"y\n")
        while b"y" not in os.read(master, 100):
            pass
    return time.perf_counter_ns() - begun


def programs() -> int:
    begun = time.perf_counter_ns()
    for _ in range(PROGRAMS):
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    return time.perf_counter_ns() - begun


def faults() -> int:
    """Touches pages of new memory, by one call."""
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        some = b"\1" * PAGES
        begun = time.perf_counter_ns()
        memory[:: mmap.PAGESIZE] = some
        return time.perf_counter_ns() - begun


def swap(procs: Path) -> int:
    done = subprocess.run(outgrow(procs), cwd=ROOT, capture_output=True, check=True)
    return int(done.stdout)


def reads(fd: int) -> int:
    """Random ones, one after the other."""
    buffer, chosen = mmap.mmap(-1, BLOCK), random.Random(5)
    blocks = os.lseek(fd, 0, os.SEEK_END) // BLOCK
    begun = time.perf_counter_ns()
    for _ in range(READS):
        os.preadv(fd, [buffer], chosen.randrange(blocks) * BLOCK)
    return time.perf_counter_ns() - begun
