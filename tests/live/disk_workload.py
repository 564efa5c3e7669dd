# SPDX-License-Identifier: Apache-2.0
"""A block device of a test's own, and programs that use it.

python -m tests.live.disk_workload PATH DEPTH COUNT REALTIME AT_ONCE
    random direct reads: COUNT by each of DEPTH threads, and AT_ONCE that are submitted together
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


def read_blocks(
    path: str, depth: int, count: int, realtime: int = 0, at_once: int = 0
) -> Sequence[str]:
    """The command that reads `count` random blocks in each of `depth` threads."""
    words = (path, depth, count, realtime, at_once)
    return (sys.executable, "-m", "tests.live.disk_workload", *map(str, words))


def read_at_once(fd: int, count: int, blocks: int) -> None:
    """Submits all reads, and waits for them."""
    libc = ctypes.CDLL(None, use_errno=True)
    context = ctypes.c_ulong()
    assert libc.syscall(SYS_IO_SETUP, count, ctypes.byref(context)) == 0
    buffer = mmap.mmap(-1, BLOCK)
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    orders = ctypes.create_string_buffer(64 * count)
    begin = ctypes.addressof(orders)
    for number in range(count):
        offset = random.randrange(blocks) * BLOCK
        # struct iocb: data, key, flags, opcode (0: pread), priority, fd, buffer, bytes, offset ...
        IOCB.pack_into(orders, 64 * number, 0, 0, 0, 0, 0, fd, address, BLOCK, offset, 0, 0, 0)
    pointers = (ctypes.c_void_p * count)(*range(begin, begin + 64 * count, 64))
    assert libc.syscall(SYS_IO_SUBMIT, context, ctypes.c_long(count), pointers) == count
    events = ctypes.create_string_buffer(32 * count)
    number = ctypes.c_long(count)
    assert libc.syscall(SYS_IO_GETEVENTS, context, number, number, events, None) == count


def main() -> None:
    """Reads; the first `realtime` threads have the realtime class and read until the others end."""
    path, *numbers = sys.argv[1:]
    depth, count, realtime, at_once = map(int, numbers)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    blocks = os.lseek(fd, 0, os.SEEK_END) // BLOCK
    libc = ctypes.CDLL(None)
    ended = threading.Event()

    def read(number: int) -> None:
        chosen, buffer = random.Random(number), mmap.mmap(-1, BLOCK)
        if number < realtime:
            assert libc.syscall(SYS_IOPRIO_SET, IOPRIO_THREAD, 0, IOPRIO_REALTIME) == 0
        left = count
        while left if number >= realtime else not ended.is_set():
            os.preadv(fd, [buffer], chosen.randrange(blocks) * BLOCK)
            left -= 1

    threads = [threading.Thread(target=read, args=(number,)) for number in range(depth)]
    for thread in threads:
        thread.start()
    if at_once:
        read_at_once(fd, at_once, blocks)
    for thread in threads[realtime:]:
        thread.join()
    ended.set()


if __name__ == "__main__":
    main()
