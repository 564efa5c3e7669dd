# SPDX-License-Identifier: Apache-2.0
"""Perf events that run BPF programs each PERIOD-th time, on every CPU: page faults, clock ticks.

The kernel runs no such program while another BPF program of perf or a kprobe, or a change of a BPF
map, is under way on that CPU, and it counts no such miss. The event counts on, though: so what is
missing is known. Not so with a clock: it counts time, and a tick that never came (a virtual CPU
that its host stopped, or let sleep) looks the same.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
from collections.abc import Collection, Sequence
from contextlib import suppress

from tcpkmon.collector.linux.bpf import PERF_EVENT_IOC_SET_BPF
from tcpkmon.collector.linux.perf_names import Counter, find_counter
from tcpkmon.collector.linux.places import Places
from tcpkmon.collector.linux.syscalls import (
    online_cpus,
    perf_attributes,
    perf_event_open,
    refused,
)
from tcpkmon.formats.base.errors import KernelError

_TARGET = re.compile(r"(\w+):([1-9][0-9]{0,14})(ns|us|ms|s|)", re.ASCII)
_UNITS = {"": 1, "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_CLOCKS = {"cpu_clock", "task_clock"}
SHORTEST_NS = 100_000
"""The shortest period of a clock: 10,000 times a second and CPU."""
_IOC_DISABLE, _IOC_ENABLE = 0x2401, 0x2400
_DISABLED, _RUNNING = 1 << 0, 1 << 1


def parse_event(target: str) -> tuple[Counter, int] | None:
    """The event and its period, in times that it happens or, of a clock, ns; None if unknown."""
    match = _TARGET.fullmatch(target)
    counter = find_counter(match[1]) if match is not None else None
    if match is None or counter is None:
        return None
    period = int(match[2]) * _UNITS[match[3]]
    is_clock = counter.name in _CLOCKS
    if (match[3] and not is_clock) or (is_clock and period < SHORTEST_NS):
        return None
    return counter, period


def expect_event(target: str) -> str:
    """What was expected instead of this target, or ''."""
    if parse_event(target):
        return ""
    return "an event and its period, such as page_faults:1 or cpu_clock:10ms (100us at least)"


class PerfEvent(Places):
    """Programs at a perf event of each CPU."""

    def __init__(self, target: str, programs: Sequence[int]) -> None:
        found = parse_event(target)
        if found is None:
            raise KernelError(f"there is no perf event {target}", expect_event(target))
        self._counter, self.period = found
        self._due = 0
        self._paused = False
        self._seen_ns: dict[int, int] = {}
        super().__init__(online_cpus()[0], programs)

    def find(self) -> Collection[int]:
        return online_cpus()

    def open(self, place: int, program: int) -> list[int]:
        counter = self._counter
        attributes = perf_attributes(
            counter.type, counter.config, period=self.period, read_format=_RUNNING,
            flags=counter.flags | _DISABLED,
        )  # fmt: skip
        try:
            fd = perf_event_open(attributes, place)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return []  # the CPU has just gone offline
            raise refused(error, f"opening the perf event {counter.name}") from error
        try:
            fcntl.ioctl(fd, PERF_EVENT_IOC_SET_BPF, program)
            if not self._paused:
                fcntl.ioctl(fd, _IOC_ENABLE, 0)
        except OSError as error:
            os.close(fd)
            raise refused(error, f"attaching to the perf event {counter.name}") from error
        return [fd]

    def is_dead(self, fds: Sequence[int]) -> bool:
        """An event does not come back with its CPU: it no longer runs."""
        if self._paused:
            return False
        now = {fd: _read(fd)[1] for fd in fds}
        dead = any(self._seen_ns.get(fd) == running for fd, running in now.items())
        self._seen_ns |= now
        return dead

    def close(self, fds: list[int]) -> None:
        for fd in fds:
            with suppress(OSError):  # its CPU is gone
                fcntl.ioctl(fd, _IOC_DISABLE, 0)
            self._due += self._due_of(fd)
            self._seen_ns.pop(fd, None)
        super().close(fds)

    def pause(self, paused: bool) -> None:
        """While it is paused it neither counts nor runs the programs: it costs nothing."""
        if paused == self._paused:
            return
        self._paused = paused
        self._seen_ns.clear()
        for fd in self.fds:
            with suppress(OSError):  # its CPU is gone
                fcntl.ioctl(fd, _IOC_DISABLE if paused else _IOC_ENABLE, 0)

    def set_period(self, period: int) -> None:
        """Attaches anew, with another period (ns of a clock, else times); KernelError."""
        if period < (SHORTEST_NS if self._counter.name in _CLOCKS else 1):
            raise KernelError(f"a period of {period} is too short", expect_event(""))
        while self._at:
            self.close(self._at.popitem()[1])
        self.period = period
        self.refresh()

    def read_due(self) -> int | None:
        """How many times the programs should have run so far; None for a clock."""
        if self._counter.name in _CLOCKS:
            return None
        return self._due + sum(self._due_of(fd) for fd in self.fds)

    def _due_of(self, fd: int) -> int:
        return _read(fd)[0] // self.period


def _read(fd: int) -> tuple[int, int]:
    """An event's count, and for how long it has run [ns]; zeros where it has no room."""
    raw = os.read(fd, 16)
    count, running_ns = struct.unpack("=QQ", raw) if len(raw) == 16 else (0, 0)
    return count, running_ns
