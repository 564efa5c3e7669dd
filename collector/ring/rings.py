# SPDX-License-Identifier: Apache-2.0
"""The rings of all CPUs: between the kernel's programs, which fill them, and the sequencer."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from collector.linux.syscalls import online_cpus, possible_cpus, refused
from collector.ring.layout import HEAD_BYTES, HEADS, Batch
from collector.ring.shared_ring import Bell, Ring
from formats.base.errors import KernelError, PrivilegeError, TcpkmonError, UsageError

_HELD_UP_S, _HELD_UP_MOST_S = 0.001, 0.008


class Rings:
    """The rings of all CPUs that are up, set into the maps of a capture. Close it after use.

    `pages` per ring is a power of two; wait() returns when a ring holds `low_water_bytes` (at most
    half a ring). What drain() gives out are views of the rings: copy it, then free(). One thread
    uses it; only wake() may be called from anywhere. Raises KernelError or PrivilegeError when the
    kernel refuses, UsageError for a size that cannot be.
    """

    def __init__(
        self, maps: Mapping[str, int], dtype: np.dtype[Any], pages: int, low_water_bytes: int
    ) -> None:
        if pages < 1 or pages & (pages - 1):
            raise UsageError(f"a ring cannot have {pages} pages", "take a power of two")
        self._maps = maps
        self._dtype = dtype
        self._pages = pages
        self._low_water_bytes = max(1, low_water_bytes)
        heads = mmap.mmap(maps[HEADS], possible_cpus() * HEAD_BYTES)
        self._heads = np.frombuffer(heads, np.uint64).reshape(-1, HEAD_BYTES // 8)
        self._rings: dict[int, Ring] = {}
        self._left: list[Batch] = []
        self._lost_before: dict[int, int] = {}
        self.refused: dict[int, str] = {}
        """CPUs for which refresh() got no ring, and why; their records count as "no ring"."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        try:
            for cpu in online_cpus():
                self._open(cpu)
        except TcpkmonError:
            self.close()
            raise

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs that have a ring now."""
        return tuple(sorted(self._rings))

    def wait(self, timeout_s: float) -> bool:
        """Wait for data above the low-water mark or for wake(); False when the time is over."""
        until_s = time.monotonic() + timeout_s
        pause_s = _HELD_UP_S
        while True:
            ready = self._is_due()
            if not ready and any(ring.held_up for ring in self._rings.values()):
                # Not to spin: the program may be waiting for this very CPU.
                timeout_s = min(timeout_s, pause_s)
                pause_s = min(2 * pause_s, _HELD_UP_MOST_S)
            events = self._epoll.poll(0 if ready else timeout_s)
            # A bell may have rung for what the last drain took already.
            if self._are_calls(events) or ready or self._is_due():
                return True
            timeout_s = until_s - time.monotonic()
            if timeout_s <= 0:
                return False

    def _is_due(self) -> bool:
        return any(ring.is_due for ring in self._rings.values())

    def _are_calls(self, events: list[tuple[int, int]]) -> bool:
        """Whether anything else than bells was heard."""
        found = False
        for fd, mask in events:
            if fd == self._wake_fd:
                os.eventfd_read(fd)
                found = True
            elif mask & (select.EPOLLHUP | select.EPOLLERR):
                # Its CPU is gone for good: refresh() takes it away; until then, do not spin.
                self._epoll.unregister(fd)
                found = True
        return found

    def wake(self) -> None:
        """End the wait() that is on, or the next one. For signal handlers and other threads."""
        os.eventfd_write(self._wake_fd, 1)

    def drain(self) -> list[Batch]:
        """What came into the rings since the last time, at least a Batch each, empty or not."""
        left, self._left = self._left, []
        for _, ring in sorted(self._rings.items()):
            left += ring.drain()
        return left

    def free(self) -> None:
        """Give back what the drains gave out: the views of it are no longer good."""
        for ring in self._rings.values():
            ring.free()

    def refresh(self) -> None:
        """Take away rings of CPUs that went off and give new ones to those that came on.

        Call it about once a second. A CPU that went off and on between two calls is noticed too.
        """
        online = online_cpus()
        for cpu in [c for c, ring in self._rings.items() if ring.bell.is_dead() or c not in online]:
            self._retire(cpu)
        for cpu in online:
            if cpu not in self._rings:
                try:
                    self._open(cpu)
                    self.refused.pop(cpu, None)
                except (KernelError, PrivilegeError) as error:
                    self.refused[cpu] = error.message

    def resize(self, pages: int, low_water_bytes: int) -> None:
        """Give every CPU a new ring; what the old ones hold comes with the next drain().

        Raises what the constructor does: the old sizes are back then.
        """
        before = self._pages, self._low_water_bytes
        self._pages, self._low_water_bytes = pages, max(1, low_water_bytes)
        cpus = list(self._rings)
        try:
            for cpu in cpus:
                self._retire(cpu)
                self._open(cpu)
        except TcpkmonError:
            self._pages, self._low_water_bytes = before
            for cpu in cpus:
                if cpu in self._rings:
                    self._retire(cpu)
                self._open(cpu)
            raise

    def lost(self) -> dict[int, int]:
        """Records by CPU that found the ring full, as the rings themselves count them."""
        totals = dict(self._lost_before)
        for cpu, ring in self._rings.items():
            totals[cpu] = totals.get(cpu, 0) + ring.lost()
        return totals

    def close(self) -> None:
        """Take the rings out of the map and free them; what is still in them is gone."""
        for cpu in list(self._rings):
            self._remove(cpu).close()
        self._heads = self._heads[:0].copy()
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._wake_fd)

    def __enter__(self) -> Rings:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, cpu: int) -> None:
        size_bytes = self._pages * mmap.PAGESIZE
        try:
            bell = Bell(cpu)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return  # it went off meanwhile
            raise _explained(error, cpu, self._pages) from error
        try:
            ring = Ring(self._heads[cpu], self._dtype, size_bytes, self._low_water_bytes)
        except OSError as error:
            bell.close()
            raise _explained(error, cpu, self._pages) from error
        except TcpkmonError:
            bell.close()
            raise
        try:
            ring.open(cpu, bell, self._maps)
        except TcpkmonError:
            ring.close()
            raise
        self._rings[cpu] = ring
        self._epoll.register(bell.fd, select.EPOLLIN)

    def _remove(self, cpu: int) -> Ring:
        ring = self._rings.pop(cpu)
        ring.retire(self._maps)
        with contextlib.suppress(FileNotFoundError):  # wait() may have done it
            self._epoll.unregister(ring.bell.fd)
        return ring

    def _retire(self, cpu: int) -> None:
        """Take a ring away; what it holds stays for the next drain()."""
        ring = self._remove(cpu)
        self._left += ring.drain()
        self._lost_before[cpu] = self._lost_before.get(cpu, 0) + ring.lost()
        ring.close()


def pages_of(buffer_bytes: int) -> int:
    """The largest power of two of pages that fits in so many bytes, at least 1."""
    return 1 << max(0, (buffer_bytes // mmap.PAGESIZE).bit_length() - 1)


def watermark_ns(batches: Iterable[Batch], slack_ns: int) -> int:
    """The time up to which all rings were read, less slack for records under way; 0 if none."""
    return max(0, min((batch.read_before_ns for batch in batches), default=0) - slack_ns)


def _explained(error: OSError, cpu: int, pages: int) -> KernelError | PrivilegeError:
    kind = refused(error, f"opening the ring of CPU {cpu} ({pages} pages)")
    if error.errno in {errno.ENOMEM, errno.EPERM, errno.EAGAIN} and not kind.hint:
        return KernelError(kind.message, "try a smaller --buffer-size")
    return kind
