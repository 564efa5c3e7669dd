# SPDX-License-Identifier: Apache-2.0
"""Programs that keep a CPU busy, and the CPU time that the kernel counts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SPIN = "while True: pass"
READ = "f = open('/dev/zero', 'rb', 0); b = bytearray(1 << 20)\nwhile True: f.readinto(b)"



@contextmanager
def running(*programs: tuple[str, int, int]) -> Iterator[list[int]]:
    """Python programs, each on a CPU and with a nice value; their process numbers."""
    words = [
        ["taskset", "--cpu-list", str(cpu), "nice", "-n", str(nice), sys.executable, "-c", code]
        for code, cpu, nice in programs
    ]
    started = [subprocess.Popen(one) for one in words]
    try:
        time.sleep(0.3)
        yield [one.pid for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()


def machine_times() -> dict[str, int]:
    """All CPUs' ticks of 10 ms by state, from /proc/stat."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, idle, wait, irq, softirq, *_ = map(int, words)
    return {"USER": user, "NICE": nice, "SYSTEM": system + irq + softirq, "IDLE": idle + wait}


def cpu_time_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
