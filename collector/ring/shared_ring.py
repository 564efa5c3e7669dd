# SPDX-License-Identifier: Apache-2.0
"""One CPU's ring, for collector/ring/rings.py, and the perf event that wakes this process.

A ring is memory that the programs and this process share (layout.py has its layout), so that a
record is written once and read where it stands. perf's own rings would take the kernel some 0.3 us
more for each record; no record goes through the perf event.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.linux.bpf import map_delete, map_update
from collector.linux.syscalls import map_over, perf_event_open, wait_for_running
from collector.ring.layout import (
    BELLS,
    FULL,
    LIMIT,
    MARK_BYTES,
    PARTS,
    RESERVED,
    RINGS,
    ROWS,
    WAKE_AT,
    Batch,
    make_part,
    part_shift,
    row_bytes,
)
from formats.base.errors import KernelError, PrivilegeError, UsageError

CALM_NS, IDLE_NS = 20_000_000, 200_000_000
"""Half a ring is let fill up where the other half lasts CALM_NS longer: waking up costs as much as
some thousand records. Not where the low-water mark is not reached within IDLE_NS: what comes next
may be a burst."""
_PERF_TYPE_SOFTWARE = 1
_PERF_COUNT_SW_BPF_OUTPUT = 10
_PERF_SAMPLE_RAW = 1 << 10
_FORMAT_TIMES = 1 | 2
_ATTR_BYTES = 64
# Offsets of data_head and data_tail in struct perf_event_mmap_page, in u64.
_DATA_HEAD, _DATA_TAIL = 1024 // 8, 1032 // 8


class Bell:
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


class Ring:
    """One CPU's ring and its bell. OSError, KernelError or PrivilegeError where it is refused,
    UsageError for one that is too large.

    head: the words of its head, which stay the caller's. Programs have it from open() on.
    """

    def __init__(
        self, head: NDArray[np.uint64], dtype: np.dtype[Any], size_bytes: int, low_water_bytes: int
    ) -> None:
        row = row_bytes(dtype.itemsize)
        self._head = head
        self._rows = max(2, size_bytes // row)
        self._low_water = max(1, min(self._rows // 2, low_water_bytes // row))
        self._read = 0
        self._due_at = self._low_water
        self._freed, self._freed_ns = 0, 0
        self._whole_ns = 0
        self.held_up = False
        """Whether the last drain came to a record that was not whole yet."""
        part_rows = 1 << part_shift(row)
        count = -(-self._rows // part_rows)
        if count > PARTS:
            raise UsageError(
                f"a ring of {size_bytes >> 20} MiB is too large", "take one of 1024 MiB at most"
            )
        self._parts: list[int] = []
        memory = mmap.mmap(-1, count * part_rows * row, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            for number in range(count):
                self._parts.append(make_part(row))
                map_over(memory, number * part_rows * row, part_rows * row, self._parts[-1])
        except (OSError, KernelError, PrivilegeError):
            self._close_parts()
            raise
        self._entries: NDArray[Any] = np.ndarray((self._rows,), dtype, memory, 0, (row,))
        self._marks: NDArray[np.uint64] = np.ndarray(
            (self._rows,), np.uint64, memory, row - MARK_BYTES, (row,)
        )

    def open(self, cpu: int, bell: Bell, maps: Mapping[str, int]) -> None:
        """Give it to the programs of this CPU, which have none. The bell belongs to it then."""
        for number, part in enumerate(self._parts):
            place = struct.pack("=I", cpu * PARTS + number)
            map_update(maps[RINGS], place, struct.pack("=I", part))
        map_update(maps[BELLS], struct.pack("=I", cpu), struct.pack("=I", bell.fd))
        self.cpu = cpu
        self.bell = bell
        self._head[:] = 0
        self._head[ROWS] = self._rows
        self._freed_ns = time.monotonic_ns()
        self._give(self._low_water)

    def retire(self, maps: Mapping[str, int]) -> None:
        """Take it from the programs, and wait until none is at work in it."""
        self._head[LIMIT] = 0
        wait_for_running()
        for number in range(len(self._parts)):
            map_delete(maps[RINGS], struct.pack("=I", self.cpu * PARTS + number))
        map_delete(maps[BELLS], struct.pack("=I", self.cpu))

    @property
    def is_due(self) -> bool:
        """Whether there is enough to be read, as far as is known."""
        if self.held_up:
            return int(self._marks[self._read % self._rows]) > self._read
        return int(self._head[RESERVED]) >= self._due_at

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
            taken = min(reserved - self._read, self._rows - start)
            marks = self._marks[start : start + taken]
            # What a row had before is at least a whole ring behind, and so below all of these.
            if int(marks.min()) <= self._read:
                # A program has reserved that row and is under way. It may be done by now: look
                # again. If not, wait for it, as all that stands behind it does.
                taken = int(np.argmax(marks <= self._read))
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
        now_ns = time.monotonic_ns()
        rows, passed_ns = self._read - self._freed, now_ns - self._freed_ns
        self._freed, self._freed_ns = self._read, now_ns
        half = self._rows // 2
        calm = rows * CALM_NS <= half * passed_ns and rows * IDLE_NS >= self._low_water * passed_ns
        self._give(half if calm else self._low_water)

    def _give(self, wanted: int) -> None:
        """Have all rows filled but what waits to be read; the bell rings for so many."""
        self._due_at = self._read + wanted
        self._head[LIMIT] = self._read + self._rows
        self._head[WAKE_AT] = self._due_at
        self.bell.quiet()

    def lost(self) -> int:
        """Records that found the ring full."""
        return int(self._head[FULL])

    def close(self) -> None:
        """The memory goes when the last view of it does."""
        del self._head, self._marks, self._entries
        self._close_parts()
        self.bell.close()

    def _close_parts(self) -> None:
        while self._parts:
            os.close(self._parts.pop())
