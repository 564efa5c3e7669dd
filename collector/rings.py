# SPDX-License-Identifier: Apache-2.0
"""The rings, one per CPU: between the kernel's programs, which fill them, and the sequencer.

A ring is memory that the programs and this process share (collector/records.py has its layout), so
that a record is written once and read where it stands. perf's own rings would take the kernel
0.33 us more for each record. A perf event wakes this process; no record goes through it.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import struct
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.bpfsys import map_delete, map_update
from collector.records import (
    BELLS,
    FULL,
    LIMIT,
    MARK_BYTES,
    RESERVED,
    RINGS,
    ROWS,
    WAKE_AT,
    Batch,
    make_ring,
    row_bytes,
)
from collector.syscalls import online_cpus, perf_event_open, refused, wait_for_running
from formats.errors import KernelError, PrivilegeError, UsageError

_PERF_TYPE_SOFTWARE = 1
_PERF_COUNT_SW_BPF_OUTPUT = 10
_PERF_SAMPLE_RAW = 1 << 10
_FORMAT_TIMES = 1 | 2
_ATTR_BYTES = 64
_HELD_UP_S = 0.001
# Offsets of data_head and data_tail in struct perf_event_mmap_page, in u64.
_DATA_HEAD, _DATA_TAIL = 1024 // 8, 1032 // 8


class _Bell:
    """A CPU's perf event, by which its programs wake this process. OSError when refused."""

    def __init__(self, cpu: int) -> None:
        attributes = struct.pack(
            "=IIQQQQQIIQ", _PERF_TYPE_SOFTWARE, _ATTR_BYTES, _PERF_COUNT_SW_BPF_OUTPUT, 1,
            _PERF_SAMPLE_RAW, _FORMAT_TIMES, 0, 1, 0, 0,
        )  # fmt: skip
        self.fd = perf_event_open(attributes, cpu)
        self._running_ns = -1
        try:
            self._map = mmap.mmap(self.fd, 2 * mmap.PAGESIZE)
        except OSError:
            os.close(self.fd)
            raise
        self._words = np.frombuffer(self._map, np.uint64, mmap.PAGESIZE // 8)

    def quiet(self) -> None:
        """Make room for the next ringing."""
        self._words[_DATA_TAIL] = self._words[_DATA_HEAD]

    def is_dead(self) -> bool:
        """Whether the event no longer runs: its CPU went off, whether or not it came back."""
        running_ns = struct.unpack("=QQQ", os.read(self.fd, 24))[2]
        dead = running_ns == self._running_ns
        self._running_ns = running_ns
        return bool(dead)

    def close(self) -> None:
        del self._words
        self._map.close()
        os.close(self.fd)


class _Ring:
    """One CPU's ring and its bell. OSError, KernelError or PrivilegeError where it is refused."""

    def __init__(self, cpu: int, dtype: np.dtype[Any], size_bytes: int, low_water_bytes: int):
        row = row_bytes(dtype.itemsize)
        self.cpu = cpu
        self._rows = max(2, size_bytes // row)
        self._low_water = max(1, min(self._rows // 2, low_water_bytes // row))
        self._read = 0
        self._whole_ns = 0
        self.held_up = False
        """Whether the last drain came to a record that was not whole yet."""
        self.bell = _Bell(cpu)
        try:
            self.fd = make_ring(row, 1 + self._rows)
        except (KernelError, PrivilegeError):
            self.bell.close()
            raise
        try:
            memory = mmap.mmap(self.fd, (1 + self._rows) * row)
        except OSError:
            self.bell.close()
            os.close(self.fd)
            raise
        self._head = np.frombuffer(memory, np.uint64, 5)
        self._entries: NDArray[Any] = np.ndarray((self._rows,), dtype, memory, row, (row,))
        mark = 2 * row - MARK_BYTES
        self._marks: NDArray[np.uint64] = np.ndarray(
            (self._rows,), np.uint64, memory, mark, (row,)
        )
        self._first_marks = np.arange(1, self._rows + 1, dtype=np.uint64)
        self._head[ROWS] = self._rows
        self.free()

    @property
    def is_due(self) -> bool:
        """Whether there is enough to be read, as far as is known."""
        return (
            not self.held_up and int(self._head[RESERVED]) - self._read >= self._low_water
        )

    def drain(self) -> list[Batch]:
        """What is whole and was not read yet, as views of the ring: seldom more than two."""
        before_ns = time.monotonic_ns()
        # One aligned 8-byte load. x86 keeps loads in order, so what stands before a mark is seen
        # whole; on machines that do not, the calls between here and the copy are all that orders.
        reserved = int(self._head[RESERVED])
        found = []
        whole = True
        while whole and self._read < reserved:
            start = self._read % self._rows
            wanted = taken = min(reserved - self._read, self._rows - start)
            marks = self._marks[start : start + wanted]
            wrong = marks != self._first_marks[start : start + wanted] + np.uint64(
                self._read - start
            )
            if wrong.any():
                # A program has reserved that row and is under way. It may be done by now: look
                # again. If not, wait for it, as all that stands behind it does.
                taken = int(np.argmax(wrong))
                whole = taken > 0
            if taken:
                found.append(self._entries[start : start + taken])
                self._read += taken
        self.held_up = not whole
        if whole:
            self._whole_ns = before_ns
        if not found:
            found.append(self._entries[:0])
        return [Batch(self.cpu, entries, self._whole_ns) for entries in found]

    def free(self) -> None:
        """Give what was read back to the programs."""
        self._head[LIMIT] = self._read + self._rows
        self._head[WAKE_AT] = self._read + self._low_water
        self.bell.quiet()

    def lost(self) -> int:
        """Records that found the ring full."""
        return int(self._head[FULL])

    def close(self) -> None:
        """The memory goes when the last view of it does."""
        del self._head, self._marks, self._entries
        self.bell.close()
        os.close(self.fd)


class Rings:
    """The rings of all CPUs that are up, set into the maps of a capture. Close it after use.

    `pages` per ring is a power of two; wait() returns when a ring holds `low_water_bytes` (at most
    half a ring). What drain() gives out are views of the rings: copy it, then free(). One thread
    uses it; only wake() may be called from anywhere. Raises KernelError or PrivilegeError when the
    kernel refuses.
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
        ready = any(ring.is_due for ring in self._rings.values())
        if any(ring.held_up for ring in self._rings.values()):
            # Not to spin: the program may be waiting for this very CPU.
            timeout_s = min(timeout_s, _HELD_UP_S)
        events = self._epoll.poll(0 if ready else timeout_s)
        for fd, mask in events:
            if fd == self._wake_fd:
                os.eventfd_read(fd)
            elif mask & (select.EPOLLHUP | select.EPOLLERR):
                # Its CPU is gone for good: refresh() takes it away; until then, do not spin.
                self._epoll.unregister(fd)
        return ready or bool(events)

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
        """Records by CPU that found the ring full, as the rings themselves count them."""
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
        size_bytes = self._pages * mmap.PAGESIZE
        try:
            ring = _Ring(cpu, self._dtype, size_bytes, self._low_water_bytes)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return  # it went off meanwhile
            raise _explained(error, cpu, self._pages) from error
        try:
            key = struct.pack("=I", cpu)
            map_update(self._maps[BELLS], key, struct.pack("=I", ring.bell.fd))
            map_update(self._maps[RINGS], key, struct.pack("=I", ring.fd))
        except (KernelError, PrivilegeError):
            ring.close()
            raise
        self._rings[cpu] = ring
        self._epoll.register(ring.bell.fd, select.EPOLLIN)

    def _remove(self, cpu: int) -> _Ring:
        ring = self._rings.pop(cpu)
        for name in (RINGS, BELLS):
            map_delete(self._maps[name], struct.pack("=I", cpu))
        with contextlib.suppress(FileNotFoundError):  # wait() may have done it
            self._epoll.unregister(ring.bell.fd)
        return ring

    def _retire(self, cpu: int) -> None:
        """Take a ring away; what it holds stays for the next drain()."""
        ring = self._remove(cpu)
        wait_for_running()
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
    kind = refused(error, f"opening the perf ring of CPU {cpu} ({pages} pages)")
    if error.errno in {errno.ENOMEM, errno.EPERM, errno.EAGAIN} and not kind.hint:
        return KernelError(kind.message, "try a smaller --buffer-size")
    return kind
