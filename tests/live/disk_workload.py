# SPDX-License-Identifier: Apache-2.0
"""A block device of a test's own, and programs that use it.

python -m tests.live.disk_workload PATH DEPTH COUNT REALTIME AT_ONCE
    random direct reads: COUNT by each of DEPTH threads, and AT_ONCE that are submitted together.
    Every second block: no two can be merged.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BLOCK = 4096
LIBC = ctypes.CDLL(None, use_errno=True)
REALTIME_DEPTH = 16
SYS_IO_SETUP, SYS_IO_GETEVENTS, SYS_IO_SUBMIT = 206, 208, 209
IOCB = struct.Struct("=QIIHhIQQqQII")
SYS_IOPRIO_SET, IOPRIO_THREAD, IOPRIO_REALTIME = 251, 1, 1 << 13 | 4
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Device:
    """A loop device without a page cache below it."""

    path: str

    @property
    def number(self) -> int:
        """As events have it."""
        number = os.stat(self.path).st_rdev
        return os.major(number) << 20 | os.minor(number)

    @property
    def queue(self) -> Path:
        return Path("/sys/block", Path(self.path).name, "queue")

    def choose(self, scheduler: str) -> bool:
        """Sets the scheduler; whether the kernel has it."""
        file = self.queue / "scheduler"
        try:
            file.write_text(scheduler)
        except OSError:
            return False
        return f"[{scheduler}]" in file.read_text()

    def read_stat(self) -> list[int]:
        """The counters of /proc/diskstats: reads, merged, sectors, ms; the same of writes ..."""
        return list(map(int, (self.queue.parent / "stat").read_text().split()))


@contextmanager
def loop_device(folder: Path, megabytes: int = 16) -> Iterator[Device | None]:
    """A device over a new file; None where this machine makes none."""
    image = folder / "image"
    with image.open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
    made = subprocess.run(
        ["losetup", "--direct-io=on", "-f", "--show", image],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if made.returncode:
        yield None
        return
    try:
        yield Device(made.stdout.strip())
    finally:
        subprocess.run(["losetup", "-d", made.stdout.strip()], check=True)


@contextmanager
def slowed(folder: Path, reads_per_s: int) -> Iterator[Sequence[str]]:
    """The words before a command whose reads of the disk below `folder` are that slow; none where
    this machine's cgroups cannot."""
    number = os.stat(folder).st_dev
    limit = f"{os.major(number)}:{os.minor(number)} "
    ways = (
        ("/sys/fs/cgroup/blkio", "blkio.throttle.read_iops_device", f"{limit}{reads_per_s}"),
        ("/sys/fs/cgroup", "io.max", f"{limit}riops={reads_per_s}"),
    )
    for parent, name, value in ways:
        group = Path(parent, f"tcpkmon-slow-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(value)
            yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    yield ()


def read_blocks(
    path: str, depth: int, count: int, realtime: int = 0, at_once: int = 0
) -> Sequence[str]:
    """The command that reads `count` random blocks in each of `depth` threads."""
    words = (path, depth, count, realtime, at_once)
    return (sys.executable, "-m", "tests.live.disk_workload", *map(str, words))


class Reads:
    """Direct reads of a device that are under way at the same time, by io_submit."""

    def __init__(self, fd: int, most: int) -> None:
        self._fd, self._most = fd, most
        self._context = ctypes.c_ulong()
        self._buffer = mmap.mmap(-1, BLOCK)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        assert LIBC.syscall(SYS_IO_SETUP, most, ctypes.byref(self._context)) == 0

    def submit(self, blocks: Sequence[int]) -> None:
        """Gives these reads to the kernel at once."""
        count = len(blocks)
        orders = ctypes.create_string_buffer(64 * count)
        begin = ctypes.addressof(orders)
        for number, block in enumerate(blocks):
            # data, key, flags, opcode (0: pread), priority, fd, buffer, bytes, offset ...
            order = (0, 0, 0, 0, 0, self._fd, self._address, BLOCK, block * BLOCK, 0, 0, 0)
            IOCB.pack_into(orders, 64 * number, *order)
        pointers = (ctypes.c_void_p * count)(*range(begin, begin + 64 * count, 64))
        given = LIBC.syscall(SYS_IO_SUBMIT, self._context, ctypes.c_long(count), pointers)
        assert given == count

    def wait(self, least: int) -> int:
        """Waits until so many are done; how many are."""
        events = ctypes.create_string_buffer(32 * self._most)
        numbers = (ctypes.c_long(least), ctypes.c_long(self._most))
        done = LIBC.syscall(SYS_IO_GETEVENTS, self._context, *numbers, events, None)
        assert done >= least
        return int(done)


def main() -> None:
    """Reads; the first `realtime` threads have the realtime class and read until the others end."""
    path, *numbers = sys.argv[1:]
    depth, count, realtime, at_once = map(int, numbers)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    blocks = range(0, os.lseek(fd, 0, os.SEEK_END) // BLOCK, 2)
    ended = threading.Event()

    def read_realtime(number: int) -> None:
        assert LIBC.syscall(SYS_IOPRIO_SET, IOPRIO_THREAD, 0, IOPRIO_REALTIME) == 0
        chosen, reads = random.Random(number), Reads(fd, REALTIME_DEPTH)
        reads.submit(chosen.sample(blocks, REALTIME_DEPTH))
        while not ended.is_set():
            reads.submit(chosen.sample(blocks, reads.wait(REALTIME_DEPTH // 2)))
        reads.wait(REALTIME_DEPTH)

    def read(number: int) -> None:
        chosen, buffer = random.Random(number), mmap.mmap(-1, BLOCK)
        for _ in range(count):
            os.preadv(fd, [buffer], chosen.choice(blocks) * BLOCK)

    threads = [
        threading.Thread(target=read_realtime if number < realtime else read, args=(number,))
        for number in range(depth)
    ]
    for thread in threads:
        thread.start()
    if at_once:
        reads = Reads(fd, at_once)
        reads.submit(random.sample(blocks, at_once))
        reads.wait(at_once)
    for thread in threads[realtime:]:
        thread.join()
    ended.set()


if __name__ == "__main__":
    main()
