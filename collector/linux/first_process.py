# SPDX-License-Identifier: Apache-2.0
"""The CPU time of process 1, by its CPU clock."""

from __future__ import annotations

import os
import time

_CPU_CLOCK = ~1 << 3 | 2
"""clock_getcpuclockid(1): CPUCLOCK_SCHED of a process."""
_FIRST_NAMESPACE = 0xEFFFFFFC
"""The inode of the namespace of processes that the kernel boots with (PROC_PID_INIT_INO)."""


def find_cpu_clock() -> int | None:
    """The clock of the CPU time that all threads of process 1 have had, those that ended too.

    For time.clock_gettime_ns(). It needs no right and no file, so it can be read when privileges
    are given up. A thread that has a CPU just now counts as of its last tick. None in a container
    that numbers its processes itself: its process 1 is another one.
    """
    try:
        if os.stat("/proc/self/ns/pid").st_ino != _FIRST_NAMESPACE:
            return None
        time.clock_gettime_ns(_CPU_CLOCK)
    except OSError:
        return None
    return _CPU_CLOCK
