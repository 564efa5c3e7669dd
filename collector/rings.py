# SPDX-License-Identifier: Apache-2.0
"""The perf rings, one per CPU: between the kernel's programs, which fill them, and the sequencer.

A ring is a page of control words, then 2^n pages of records, which the kernel fills in a circle.
All samples of a capture have one size, so a drain is one copy and a strided view of it.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import struct
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from collector.bpfsys import map_delete, map_update
from collector.records import Batch, split_records
from collector.syscalls import online_cpus, perf_event_open, refused
from formats.errors import KernelError, PrivilegeError, UsageError

_PERF_TYPE_SOFTWARE = 1
_PERF_COUNT_SW_BPF_OUTPUT = 10
_PERF_SAMPLE_RAW = 1 << 10
_FORMAT_TIMES = 1 | 2
_FORMAT_LOST = 1 << 4
_FLAG_WATERMARK = 1 << 14
_ATTR_BYTES = 64
# Offsets of data_head and data_tail in struct perf_event_mmap_page, in u64.
_DATA_HEAD, _DATA_TAIL = 1024 // 8, 1032 // 8


class _Ring:
    """One CPU's event and its mapping. OSError where the kernel refuses."""

    def __init__(self, cpu: int, pages: int, low_water_bytes: int) -> None:
        self.cpu = cpu
        self.size = pages * mmap.PAGESIZE
        self.fd, self.tells_lost = _open_event(cpu, min(low_water_bytes, self.size // 2))
        self._running_ns = -1
        try:
            self._map = mmap.mmap(self.fd, mmap.PAGESIZE + self.size)
        except OSError:
            os.close(self.fd)
            raise
        self._words = np.frombuffer(self._map, np.uint64, mmap.PAGESIZE // 8)
        self._data = np.frombuffer(self._map, np.uint8, self.size, mmap.PAGESIZE)

    def drain(self, dtype: np.dtype[Any]) -> Batch:
        before_ns = time.monotonic_ns()
        # One aligned 8-byte load. x86 keeps loads in order, so what stands before data_head is seen
        # whole; on machines that do not, the calls between here and the copy are all that orders.
        head = int(self._words[_DATA_HEAD])
        tail = int(self._words[_DATA_TAIL])
        length = head - tail
        if not length:
            return Batch(self.cpu, np.empty(0, dtype), before_ns)
        raw = np.empty(length, np.uint8)
        start = tail % self.size
        first = min(length, self.size - start)
        raw[:first] = self._data[start : start + first]
        raw[first:] = self._data[: length - first]
        self._words[_DATA_TAIL] = head
        entries, damaged, lost = split_records(raw, dtype)
        return Batch(self.cpu, entries, before_ns, damaged, lost)

    def lost(self) -> int:
        """Records that found the ring full, as the event counts them; 0 before Linux 6.0."""
        return int(struct.unpack("=QQQQ", os.read(self.fd, 32))[3]) if self.tells_lost else 0

    def is_dead(self) -> bool:
        """Whether the event no longer runs: its CPU went off, whether or not it came back."""
        running_ns = struct.unpack_from("=QQQ", os.read(self.fd, 32))[2]
        dead = running_ns == self._running_ns
        self._running_ns = running_ns
        return bool(dead)

    def close(self) -> None:
        del self._words, self._data
        self._map.close()
        os.close(self.fd)


def _open_event(cpu: int, wakeup_bytes: int) -> tuple[int, bool]:
    """A BPF output event of this CPU; whether its read() tells the losses (Linux 6.0)."""
    for read_format in (_FORMAT_TIMES | _FORMAT_LOST, _FORMAT_TIMES):
        attributes = struct.pack(
            "=IIQQQQQIIQ", _PERF_TYPE_SOFTWARE, _ATTR_BYTES, _PERF_COUNT_SW_BPF_OUTPUT, 1,
            _PERF_SAMPLE_RAW, read_format, _FLAG_WATERMARK, wakeup_bytes, 0, 0,
        )  # fmt: skip
        try:
            return perf_event_open(attributes, cpu), read_format != _FORMAT_TIMES
        except OSError as error:
            if error.errno != errno.EINVAL or read_format == _FORMAT_TIMES:
                raise
    raise AssertionError("unreachable")


class Rings:
    """The rings of all CPUs that are up, set into a perf event array. Close it after use.

    `pages` per ring is a power of two; wait() returns when a ring holds `low_water_bytes` (at most
    half a ring). One thread uses it; only wake() may be called from anywhere. Raises KernelError
    or PrivilegeError when the kernel refuses.
    """

    def __init__(
        self, perf_map_fd: int, dtype: np.dtype[Any], pages: int, low_water_bytes: int
    ) -> None:
        if pages < 1 or pages & (pages - 1):
            raise UsageError(f"a ring cannot have {pages} pages", "take a power of two")
        self._map_fd = perf_map_fd
        self._dtype = dtype
        self._pages = pages
        self._low_water_bytes = max(1, low_water_bytes)
        self._rings: dict[int, _Ring] = {}
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
        except (KernelError, PrivilegeError):
            self.close()
            raise

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs that have a ring now."""
        return tuple(sorted(self._rings))

    def wait(self, timeout_s: float) -> bool:
        """Wait for data above the low-water mark or for wake(); False when the time is over."""
        events = self._epoll.poll(timeout_s)
        for fd, mask in events:
            if fd == self._wake_fd:
                os.eventfd_read(fd)
            elif mask & (select.EPOLLHUP | select.EPOLLERR):
                # Its CPU is gone for good: refresh() takes it away; until then, do not spin.
                self._epoll.unregister(fd)
        return bool(events)

    def wake(self) -> None:
        """End the wait() that is on, or the next one. For signal handlers and other threads."""
        os.eventfd_write(self._wake_fd, 1)

    def drain(self) -> list[Batch]:
        """Everything that stands in the rings, a Batch each, empty ones too."""
        left, self._left = self._left, []
        return left + [ring.drain(self._dtype) for _, ring in sorted(self._rings.items())]

    def refresh(self) -> None:
        """Take away rings of CPUs that went off and give new ones to those that came on.

        Call it about once a second. A CPU that went off and on between two calls is noticed too.
        """
        online = online_cpus()
        for cpu in [c for c, ring in self._rings.items() if ring.is_dead() or c not in online]:
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

        Raises KernelError or PrivilegeError when the kernel refuses: the old sizes are back then.
        """
        before = self._pages, self._low_water_bytes
        self._pages, self._low_water_bytes = pages, max(1, low_water_bytes)
        cpus = list(self._rings)
        try:
            for cpu in cpus:
                self._retire(cpu)
                self._open(cpu)
        except (KernelError, PrivilegeError):
            self._pages, self._low_water_bytes = before
            for cpu in cpus:
                if cpu in self._rings:
                    self._retire(cpu)
                self._open(cpu)
            raise

    def lost(self) -> dict[int, int]:
        """Records by CPU that found the ring full, as the events count them (0 before 6.0)."""
        totals = dict(self._lost_before)
        for cpu, ring in self._rings.items():
            totals[cpu] = totals.get(cpu, 0) + ring.lost()
        return totals

    def close(self) -> None:
        """Take the rings out of the map and free them; what is still in them is gone."""
        for cpu in list(self._rings):
            self._remove(cpu).close()
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._wake_fd)

    def __enter__(self) -> Rings:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, cpu: int) -> None:
        try:
            ring = _Ring(cpu, self._pages, self._low_water_bytes)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return  # it went off meanwhile
            raise _explained(error, cpu, self._pages) from error
        try:
            map_update(self._map_fd, struct.pack("=I", cpu), struct.pack("=I", ring.fd))
        except (KernelError, PrivilegeError):
            ring.close()
            raise
        self._rings[cpu] = ring
        self._epoll.register(ring.fd, select.EPOLLIN)

    def _remove(self, cpu: int) -> _Ring:
        ring = self._rings.pop(cpu)
        map_delete(self._map_fd, struct.pack("=I", cpu))
        with contextlib.suppress(FileNotFoundError):  # wait() may have done it
            self._epoll.unregister(ring.fd)
        return ring

    def _retire(self, cpu: int) -> None:
        ring = self._remove(cpu)
        self._left.append(ring.drain(self._dtype))
        self._lost_before[cpu] = self._lost_before.get(cpu, 0) + ring.lost()
        ring.close()


def pages_of(buffer_bytes: int) -> int:
    """The largest power of two of pages that fits in so many bytes, at least 1."""
    return 1 << max(0, (buffer_bytes // mmap.PAGESIZE).bit_length() - 1)


def watermark_ns(batches: Iterable[Batch], slack_ns: int) -> int:
    """The time up to which all rings were read, less slack for records under way; 0 if none."""
    return max(0, min((batch.read_before_ns for batch in batches), default=0) - slack_ns)


def _explained(error: OSError, cpu: int, pages: int) -> KernelError | PrivilegeError:
    kind = refused(error, f"opening the perf ring of CPU {cpu} ({pages} pages)")
    if error.errno in {errno.ENOMEM, errno.EPERM, errno.EAGAIN} and not kind.hint:
        return KernelError(kind.message, "try a smaller --buffer-size")
    return kind
