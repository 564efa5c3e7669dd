# SPDX-License-Identifier: Apache-2.0
"""Swap on a device in memory, a cgroup with little memory, and a program that outgrows it.

python -m tests.live.memory_workload PROCS MEGABYTES
    joins the cgroup of that file, writes to so much memory twice; prints how long it took [ns].
"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


class NotHere(OSError):
    """What this machine lacks."""


@contextmanager
def swap_in_memory() -> Iterator[str]:
    """Swap on a zram device of ours: its path. Raises NotHere."""
    if shutil.which("zramctl") is None or shutil.which("mkswap") is None:
        raise NotHere("needs zramctl and mkswap")
    made = subprocess.run(
        ["zramctl", "--find", "--size", "64M"], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise NotHere(f"no zram device: {made.stderr.strip()}")
    device = made.stdout.strip()
    try:
        with swap_on(device):
            yield device
    finally:
        subprocess.run(["zramctl", "--reset", device], check=True)


@contextmanager
def swap_on(device: str) -> Iterator[None]:
    """Swap on a device, of which the kernel reads nothing ahead."""
    cluster = Path("/proc/sys/vm/page-cluster")
    before = cluster.read_text()
    subprocess.run(["mkswap", device], check=True, capture_output=True)
    subprocess.run(["swapon", device], check=True)
    cluster.write_text("0")
    try:
        yield
    finally:
        cluster.write_text(before)
        subprocess.run(["swapoff", device], check=True)


@contextmanager
def small_cgroup(limit_bytes: int) -> Iterator[Path]:
    """A cgroup whose processes may have so much memory; the file that takes them in. NotHere."""
    two = Path("/sys/fs/cgroup/cgroup.controllers")
    is_two = two.exists() and "memory" in two.read_text().split()
    above = Path("/sys/fs/cgroup") if is_two else Path("/sys/fs/cgroup/memory")
    folder = above / f"tcpkmon-test-{os.getpid()}"
    try:
        folder.mkdir()
        limit = folder / ("memory.max" if is_two else "memory.limit_in_bytes")
        limit.write_text(str(limit_bytes))
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        raise NotHere(f"no memory cgroup: {error}") from error
    try:
        yield folder / "cgroup.procs"
    finally:
        folder.rmdir()


def outgrow(procs: Path, megabytes: int = 24) -> Sequence[str]:
    """The command of a process that outgrows the cgroup."""
    return (sys.executable, "-m", "tests.live.memory_workload", str(procs), str(megabytes))


def swapped() -> tuple[int, int, int]:
    """The machine's pages read from swap and written to it, and its major faults."""
    rows = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(rows["pswpin"]), int(rows["pswpout"]), int(rows["pgmajfault"])


def main() -> None:
    Path(sys.argv[1]).write_text(str(os.getpid()))
    begun_ns = time.perf_counter_ns()
    memory = mmap.mmap(-1, int(sys.argv[2]) << 20)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for _ in range(2):
        for at in range(0, len(memory), mmap.PAGESIZE):
            # No page of zeros: it needs no swap.
            memory[at : at + 8] = (at + 1).to_bytes(8, "little")
    print(time.perf_counter_ns() - begun_ns)


if __name__ == "__main__":
    main()
