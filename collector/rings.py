# SPDX-License-Identifier: Apache-2.0
"""The perf rings, one per CPU: between the kernel's programs, which fill them, and the sequencer.

A ring is a page of control words, then 2^n pages of records, which the kernel fills in a circle:

     0      4      6      8          12                     12+itemsize    16+itemsize
    +------+------+------+----------+----------------------+--------------+
    | type | misc | size | raw size | entry (itemsize)     | padding (4)  |  PERF_RECORD_SAMPLE
    +------+------+------+----------+----------------------+--------------+

All samples of a capture have one size, so a drain is one copy and a strided view of it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import select
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.bpfsys import map_delete, map_update
from collector.syscalls import online_cpus, perf_event_open, refused
from formats.errors import KernelError, PrivilegeError, UsageError

PERF_RECORD_LOST = 2
PERF_RECORD_SAMPLE = 9
RAW_PADDING = 4
"""Bytes that a program adds to an entry, so that the kernel need not pad the record."""
_BEFORE_ENTRY = 12

_PERF_TYPE_SOFTWARE = 1
_PERF_COUNT_SW_BPF_OUTPUT = 10
_PERF_SAMPLE_RAW = 1 << 10
_FORMAT_TIMES = 1 | 2
_FORMAT_LOST = 1 << 4
_FLAG_WATERMARK = 1 << 14
_ATTR_BYTES = 64
_IOC_ENABLE, _IOC_DISABLE = 0x2400, 0x2401
# Offsets of data_head and data_tail in struct perf_event_mmap_page, in u64.
_DATA_HEAD, _DATA_TAIL = 1024 // 8, 1032 // 8
_FIRST_CHECKED = 256


@dataclass(frozen=True)
class Batch:
    """What one drain took from one CPU's ring; `entries` is a copy and belongs to the receiver.

    entries: (n,) of the capture's dtype, strided. read_before_ns: CLOCK_MONOTONIC before the ring
    was looked at; whatever is not here is later than this, or was under way. damaged: samples of a
    wrong size. reported_lost: sum of PERF_RECORD_LOST, which misses the last losses (a cross-check).
    """

    cpu: int
    entries: NDArray[Any]
    read_before_ns: int
    damaged: int = 0
    reported_lost: int = 0


def split_records(
    raw: NDArray[np.uint8], dtype: np.dtype[Any]
) -> tuple[NDArray[Any], int, int]:
    """Entries in a copied piece of a ring, samples of a wrong size, and losses reported in it.

    The entries are a view of `raw` (a copy if other records stand between them).
    """
    record = _BEFORE_ENTRY + dtype.itemsize + RAW_PADDING
    parts: list[NDArray[Any]] = []
    at = damaged = lost = 0
    while at < len(raw):
        count = _leading_samples(raw[at:], record)
        if count:
            parts.append(np.ndarray((count,), dtype, raw.data, at + _BEFORE_ENTRY, (record,)))
            at += count * record
            continue
        kind, size = _header(raw, at)
        if size < 8 or size % 8 or size > len(raw) - at:
            damaged += max(1, (len(raw) - at) // record)
            break
        if kind == PERF_RECORD_SAMPLE:
            damaged += 1
        elif kind == PERF_RECORD_LOST and size >= 24:
            lost += int(raw[at + 16 : at + 24].view("=u8")[0])
        at += size
    if len(parts) == 1:
        return parts[0], damaged, lost
    return np.concatenate(parts) if parts else np.empty(0, dtype), damaged, lost


def _header(raw: NDArray[np.uint8], at: int) -> tuple[int, int]:
    if len(raw) - at < 8:
        return 0, 0
    kind, _, size = struct.unpack_from("=IHH", raw, at)
    return int(kind), int(size)


def _leading_samples(raw: NDArray[np.uint8], record: int) -> int:
    """How many samples of the one good size stand at the start of `raw`."""
    most = len(raw) // record
    done, step = 0, _FIRST_CHECKED
    while done < most:
        count = min(step, most - done)
        heads: NDArray[np.uint32] = np.ndarray(
            (count, 3), np.uint32, raw.data, done * record, (record, 4)
        )
        good = (heads[:, 0] == PERF_RECORD_SAMPLE) & (heads[:, 1] >> 16 == record)
        good &= heads[:, 2] == record - _BEFORE_ENTRY
        if not good.all():
            return done + int(np.argmin(good))
        done += count
        # Growing steps: a record of another kind costs no second look at all that follows.
        step *= 4
    return done


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

    def enable(self) -> None:
        fcntl.ioctl(self.fd, _IOC_ENABLE, 0)

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
    """A disabled BPF output event of this CPU; whether its read() tells the losses (Linux 6.0)."""
    for read_format in (_FORMAT_TIMES | _FORMAT_LOST, _FORMAT_TIMES):
        attributes = struct.pack(
            "=IIQQQQQIIQ", _PERF_TYPE_SOFTWARE, _ATTR_BYTES, _PERF_COUNT_SW_BPF_OUTPUT, 1,
            _PERF_SAMPLE_RAW, read_format, _FLAG_WATERMARK | 1, wakeup_bytes, 0, 0,
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
            ring.enable()
            map_update(self._map_fd, struct.pack("=I", cpu), struct.pack("=I", ring.fd))
        except (KernelError, PrivilegeError):
            ring.close()
            raise
        self._rings[cpu] = ring
        self._epoll.register(ring.fd, select.EPOLLIN)

    def _remove(self, cpu: int) -> _Ring:
        ring = self._rings.pop(cpu)
        map_delete(self._map_fd, struct.pack("=I", cpu))
        try:
            self._epoll.unregister(ring.fd)
        except FileNotFoundError:
            pass  # wait() did it
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
