# SPDX-License-Identifier: Apache-2.0
"""Moves the reader, and the writing thread with it, to the CPU that is idle for the most time.

When a SCHED_FIFO thread wakes up, the kernel runs it on the CPU where it ran last, even if that is
full of traffic and another CPU is idle. So the reader compares the CPUs itself from time to time.
And when the reader wakes the writing thread, which is SCHED_FIFO too, the kernel looks for a CPU
without such a thread: full of traffic or not. So the writing thread is bound to the reader's CPU,
as long as there is time for both.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Set
from pathlib import Path

STAT = Path("/proc/stat")
INTERVAL_S = 0.25
ENOUGH = 0.25
"""The reader moves where another CPU is idle for more time, by this share of the time."""
TOGETHER, TOO_MUCH = 0.25, 0.5
"""The two share a CPU where the process took at most the first share of its time, and until it
takes more than the second one."""
SOON_S = 0.002
"""So often that is looked at, at most: a flood fills a ring within 6 ms."""
MOST = 0.005
"""Share of the time that reading /proc/stat may take: it is long where there are many CPUs."""
_CPUS_MAX = 8192
_IDLE, _IOWAIT = 4, 5
_CPU_FIELD = 36
"""Index in /proc/thread-self/stat, after the name: the CPU on which the thread ran last."""


class Placing:
    """Moves the thread that calls move() to another CPU where that is worth it.

    writer: the thread ID of the writing thread; None: there is none yet.
    """

    def __init__(self, writer: Callable[[], int | None] = lambda: None) -> None:
        self._writer = writer
        self._allowed = os.sched_getaffinity(0)
        if len(self._allowed) == os.cpu_count():
            # It is not pinned: CPUs that come online later are allowed too.
            self._allowed = set(range(_CPUS_MAX))
        self._bound: Set[int] = self._allowed
        """The CPUs that the writing thread may use."""
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._next = 0.0
        self._idle_s: dict[int, float] = {}
        self._looked = self._used_s = 0.0
        self._soon = self._soon_used_s = 0.0
        self._is_busy = False

    def move(self) -> None:
        """Moves to the idlest CPU that this thread may use, if that is worth it; the writer too."""
        now = time.monotonic()
        if now - self._soon > SOON_S:
            used_s, since_s = time.process_time(), now - self._soon
            self._is_busy = used_s - self._soon_used_s > TOO_MUCH * since_s
            if self._is_busy:
                self._bind_writer(self._allowed)
            self._soon, self._soon_used_s = now, used_s
        if now < self._next:
            return
        self._next = now + INTERVAL_S  # also after an error
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
            # This process would use the same time on another CPU.
            spare_s[here] += own_s
            best = max(spare_s, key=spare_s.__getitem__)
            if spare_s[best] - spare_s[here] > ENOUGH * since_s:
                self._go_to(best)
                here = _this_cpu()
            if not self._is_busy:
                self._bind_writer({here} if own_s <= TOGETHER * since_s else self._allowed)
        self._next = now + max(INTERVAL_S, (time.monotonic() - now) / MOST)

    def _go_to(self, cpu: int) -> None:
        # The CPU may have gone off, or may no longer be allowed: then the thread stays.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {cpu})
            # From here the kernel may move it again where it has to.
            os.sched_setaffinity(0, self._allowed)

    def _bind_writer(self, cpus: Set[int]) -> None:
        thread = self._writer()
        if thread is None or cpus == self._bound:
            return
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, cpus)
            self._bound = cpus

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
