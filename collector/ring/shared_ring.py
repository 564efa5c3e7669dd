# SPDX-License-Identifier: Apache-2.0
"""The transport `shared`: memory that the programs and this process share.

The programs build each record in the ring, and this process reads it there: one copy less than
perf's rings, and 0.3 us less a record. bpf/include/ring_shared.h is the BPF side.

A ring is rows of one size. Position p is in row p % rows:

                 0            entry size    row - 8        row
                +-------------+-----------+--------------+
    row 0       | entry       | padding   | position + 1 |    the programs write this mark last:
    row 1       | entry       | padding   | position + 1 |    then the record is whole
    ...         +-------------+-----------+--------------+

The rows are in BPF arrays of one size (parts), one after the other in this process's memory; a BPF
array of arrays holds them for the programs. A ring's head is in an array of its own, all u64:

     0          8       16     24        32     40
    +----------+-------+------+---------+------+
    | reserved | limit | rows | wake at | full |
    +----------+-------+------+---------+------+

Positions only grow. The programs write reserved and full, this process writes limit and wake_at:

    freed               read             reserved        wake at            limit
    ------|================|................|.................|.................|------ positions
           drained, views    committed, or    free                               not free: a record
           are in use        being built                                         is lost, counted

limit is 0 while there is no ring. The program that reserves position wake_at - 1 wakes this
process when it commits.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.linux import bpf
from collector.linux.syscalls import map_over, perf_event_open, possible_cpus, wait_for_running
from collector.ring.batch import Batch
from formats.base.errors import UsageError

_RINGS, _HEADS, _WAKEUPS = "klogger_rings", "klogger_heads", "klogger_wakeups"
"""Maps: the parts of the rings, their heads, and the perf events that wake this process."""
_PARTS = 2048
"""Most parts of a ring, which is 1 GiB: CPU c has the numbers from c * _PARTS on."""
_PART_BYTES = 1 << 20
_RESERVED, _LIMIT, _ROWS, _WAKE_AT, _FULL = range(5)
"""Words of a ring's head."""
_HEAD_BYTES = 64
_MARK_BYTES = 8

CALM_NS, IDLE_NS = 20_000_000, 200_000_000
"""A wake-up costs as much as a thousand records, so the threshold rises to half a ring while the
other half would last more than CALM_NS. It falls back when the low-water mark takes more than
IDLE_NS to reach: what comes next may be a burst."""
_PERF_TYPE_SOFTWARE = 1
_PERF_COUNT_SW_BPF_OUTPUT = 10
_PERF_SAMPLE_RAW = 1 << 10
_FORMAT_TIMES = 1 | 2
_ATTR_BYTES = 64
# Offsets of data_head and data_tail in struct perf_event_mmap_page, in u64.
_DATA_HEAD, _DATA_TAIL = 1024 // 8, 1032 // 8


class Shared:
    """See collector/ring/transport.py. A record is reserved before it is stamped: no slack."""

    name = "shared"
    header = "ring_shared.h"
    slack_ns = 0

    def row_bytes(self, entry_size: int) -> int:
        return (entry_size + 7) // 8 * 8 + _MARK_BYTES

    def c_text(self, entry_size: int) -> list[str]:
        row = self.row_bytes(entry_size)
        return [
            f"#define KLOGGER_ROW_SIZE {row}",
            f"#define KLOGGER_PARTS {_PARTS}",
            f"#define KLOGGER_PART_SHIFT {_part_shift(row)}",
        ]

    def make_map(self, name: str, value_size: int) -> int:
        cpus = possible_cpus()
        if name == _HEADS:
            return bpf.map_create(
                bpf.BPF_MAP_TYPE_ARRAY, 4, _HEAD_BYTES, cpus, bpf.BPF_F_MMAPABLE, name
            )
        if name != _RINGS:
            return 0
        like = _make_part(value_size)
        try:
            return bpf.map_create(
                bpf.BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, cpus * _PARTS, 0, name, like
            )
        finally:
            os.close(like)

    def open(
        self,
        maps: Mapping[str, int],
        cpu: int,
        dtype: np.dtype[Any],
        size_bytes: int,
        low_water_bytes: int,
    ) -> SharedRing:
        row = self.row_bytes(dtype.itemsize)
        rows = max(2, size_bytes // row)
        low_water = max(1, min(rows // 2, low_water_bytes // row))
        if rows > _PARTS << _part_shift(row):
            raise UsageError(
                f"a ring of {size_bytes >> 20} MiB is too large", "take one of 1024 MiB at most"
            )
        return SharedRing(maps, cpu, dtype, row, rows, low_water)


class SharedRing:
    """One CPU's ring; see CpuRing in transport.py. row: bytes; rows and low_water: records."""

    def __init__(
        self,
        maps: Mapping[str, int],
        cpu: int,
        dtype: np.dtype[Any],
        row: int,
        rows: int,
        low_water: int,
    ) -> None:
        part_rows = 1 << _part_shift(row)
        count = -(-rows // part_rows)
        self._maps = maps
        self._cpu = cpu
        self._rows = rows
        self._low_water = low_water
        self._read = 0
        self._due_at = low_water
        self._freed, self._freed_ns = 0, time.monotonic_ns()
        self._whole_ns = 0
        self.held_up = False
        self._parts: list[int] = []
        with contextlib.ExitStack() as undo:
            self._wakeup = _Wakeup(cpu)
            undo.callback(self._wakeup.close)
            undo.callback(self._close_parts)
            heads = mmap.mmap(maps[_HEADS], possible_cpus() * _HEAD_BYTES)
            self._head = np.frombuffer(heads, np.uint64).reshape(-1, _HEAD_BYTES // 8)[cpu]
            part = part_rows * row
            memory = mmap.mmap(-1, count * part, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for number in range(count):
                self._parts.append(_make_part(row))
                map_over(memory, number * part, part, self._parts[-1])
            for number, fd in enumerate(self._parts):
                place = struct.pack("=I", cpu * _PARTS + number)
                bpf.map_update(maps[_RINGS], place, struct.pack("=I", fd))
            bpf.map_update(
                maps[_WAKEUPS], struct.pack("=I", cpu), struct.pack("=I", self._wakeup.fd)
            )
            undo.pop_all()
        self._entries: NDArray[Any] = np.ndarray((rows,), dtype, memory, 0, (row,))
        self._marks: NDArray[np.uint64] = np.ndarray(
            (rows,), np.uint64, memory, row - _MARK_BYTES, (row,)
        )
        self._head[:] = 0
        self._head[_ROWS] = rows
        self._release(low_water)

    @property
    def fd(self) -> int:
        return self._wakeup.fd

    def is_dead(self) -> bool:
        return self._wakeup.is_dead()

    def retire(self) -> None:
        self._head[_LIMIT] = 0
        wait_for_running()
        for number in range(len(self._parts)):
            bpf.map_delete(self._maps[_RINGS], struct.pack("=I", self._cpu * _PARTS + number))
        bpf.map_delete(self._maps[_WAKEUPS], struct.pack("=I", self._cpu))

    @property
    def is_due(self) -> bool:
        if self.held_up:
            return int(self._marks[self._read % self._rows]) > self._read
        return int(self._head[_RESERVED]) >= self._due_at

    def drain(self) -> list[Batch]:
        """Views of the ring: seldom more than two."""
        before_ns = time.monotonic_ns()
        # One aligned 8-byte load. x86 keeps loads in order, so a record is whole once its mark is
        # seen. Other machines need a barrier here: loader/prepare.py refuses to start there.
        reserved = int(self._head[_RESERVED])
        found = []
        whole = True
        while whole and self._read < reserved:
            start = self._read % self._rows
            taken = min(reserved - self._read, self._rows - start)
            marks = self._marks[start : start + taken]
            # An older record's mark is at least a whole ring behind, so below all of these.
            if int(marks.min()) <= self._read:
                # A program reserved that row and has not committed it. It may have by now: look
                # again. If not, this drain ends before it.
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
        return [Batch(self._cpu, entries, self._whole_ns) for entries in found]

    def free(self) -> None:
        now_ns = time.monotonic_ns()
        rows, passed_ns = self._read - self._freed, now_ns - self._freed_ns
        self._freed, self._freed_ns = self._read, now_ns
        half = self._rows // 2
        calm = rows * CALM_NS <= half * passed_ns and rows * IDLE_NS >= self._low_water * passed_ns
        self._release(half if calm else self._low_water)

    def _release(self, threshold: int) -> None:
        """Release all rows that were read; the next wake-up comes after so many records."""
        self._due_at = self._read + threshold
        self._head[_LIMIT] = self._read + self._rows
        self._head[_WAKE_AT] = self._due_at
        self._wakeup.clear()

    def lost(self) -> int:
        return int(self._head[_FULL])

    def close(self) -> None:
        del self._head, self._marks, self._entries
        self._close_parts()
        self._wakeup.close()

    def _close_parts(self) -> None:
        while self._parts:
            os.close(self._parts.pop())


class _Wakeup:
    """A CPU's perf event, by which its programs wake this process. OSError when refused.

    It carries no records.
    """

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

    def clear(self) -> None:
        """Make room for the next wake-up."""
        self._words[_DATA_TAIL] = self._words[_DATA_HEAD]

    def is_dead(self) -> bool:
        """Whether the event did not run since the last call: its CPU went offline."""
        running_ns = struct.unpack("=QQQ", os.read(self.fd, 24))[2]
        dead = running_ns == self._running_ns
        self._running_ns = running_ns
        return bool(dead)

    def close(self) -> None:
        del self._words
        self._map.close()
        os.close(self.fd)


def _part_shift(row: int) -> int:
    """A part has 2 to the power of this rows of so many bytes: whole pages, over half a MiB."""
    return max(9, (_PART_BYTES // row).bit_length() - 1)


def _make_part(row: int) -> int:
    """A part of a ring; its descriptor. KernelError when refused."""
    return bpf.map_create(
        bpf.BPF_MAP_TYPE_ARRAY, 4, row, 1 << _part_shift(row), bpf.BPF_F_MMAPABLE, "klogger_part"
    )
