# SPDX-License-Identifier: Apache-2.0
"""Where the reader runs: on the CPU that has most time to spare.

The kernel leaves a SCHED_FIFO thread that wakes up where it ran last, even on a CPU full of traffic
beside an idle one. So it looks itself, now and then.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
INTERVAL_S = 0.25
ENOUGH = 0.25
"""Share of a CPU's time that another one must have more to spare to be worth moving."""
MOST = 0.005
"""Share of the time that looking may take: /proc/stat is long where there are many CPUs."""
_CPUS_MAX = 8192
_IDLE, _IOWAIT = 4, 5
_CPU_FIELD = 36
"""Of /proc/thread-self/stat, behind the name: the CPU that the thread ran on last."""


class Placing:
    """Moves the thread that calls move() to another CPU, now and then."""

    def __init__(self) -> None:
        self._allowed = os.sched_getaffinity(0)
        if len(self._allowed) == os.cpu_count():
            # Nobody pinned it: CPUs that come online later are allowed too.
            self._allowed = set(range(_CPUS_MAX))
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._next = 0.0
        self._idle_s: dict[int, float] = {}
        self._looked = self._used_s = 0.0

    def move(self) -> None:
        """Goes to the idlest CPU of those that this thread may use, if that is worth it."""
        now = time.monotonic()
        if now < self._next:
            return
        before_s, self._idle_s = self._idle_s, self._read_idle()
        since_s, self._looked = now - self._looked, now
        used_s = time.process_time()
        own_s, self._used_s = used_s - self._used_s, used_s
        spare_s = {
            cpu: idle_s - before_s[cpu]
            for cpu, idle_s in self._idle_s.items()
            if cpu in self._allowed and cpu in before_s
        }
        here = _this_cpu()
        if here in spare_s:
            # What this process used, it would use elsewhere too.
            spare_s[here] += own_s
            best = max(spare_s, key=spare_s.__getitem__)
            if spare_s[best] - spare_s[here] > ENOUGH * since_s:
                self._go_to(best)
        self._next = now + max(INTERVAL_S, (time.monotonic() - now) / MOST)

    def _go_to(self, cpu: int) -> None:
        # Not there any more, or not allowed any more: then it stays where it is.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {cpu})
            # The kernel may move it again if need be, and does not of itself.
            os.sched_setaffinity(0, self._allowed)

    def _read_idle(self) -> dict[int, float]:
        """Seconds that each CPU has been idle."""
        found = {}
        for line in STAT.read_bytes().splitlines():
            if not line.startswith(b"cpu"):
                break
            words = line.split()
            if words[0] != b"cpu":
                ticks = int(words[_IDLE]) + int(words[_IOWAIT])
                found[int(words[0][3:])] = ticks * self._tick_s
        return found


def _this_cpu() -> int:
    text = Path("/proc/thread-self/stat").read_text(encoding="ascii", errors="replace")
    return int(text.rpartition(")")[2].split()[_CPU_FIELD])
