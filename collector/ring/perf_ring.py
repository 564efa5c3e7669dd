# SPDX-License-Identifier: Apache-2.0
"""The transport `perf`: the ring buffer of a perf event, one for each CPU.

bpf_perf_event_output() copies each record into the ring (bpf/include/ring_perf.h). All records
have one size, so a run of them is rows:

     0        8      12             row - 4   row
    +--------+------+--------------+---------+
    | header | size | entry        | padding |    struct perf_event_header: type SAMPLE, bytes
    +--------+------+--------------+---------+

The kernel puts a LOST record between them when it has room again. A record that reaches the end of
the ring continues at its beginning: this process copies that one.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.syscalls import (
    online_cpus,
    perf_event_open,
    possible_cpus,
    refused,
    wait_for_running,
)
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.library import Word
from tcpkmon.collector.ring.threshold import Threshold

_RECORDS, _HEADS = "klogger_records", "klogger_heads"
"""Maps: the perf events by CPU, and struct klogger_ring by CPU."""
_BEGUN, _DONE, _FULL = range(3)
"""Words of struct klogger_ring."""
_HEAD_BYTES = 64
_TRIES = 16

# Names as in linux/perf_event.h.
_TYPE_SOFTWARE, _COUNT_SW_BPF_OUTPUT = 1, 10
_SAMPLE_RAW = 1 << 10
_FORMAT_TIMES, _FORMAT_LOST = 1 | 2, 1 << 4
_WATERMARK = 1 << 14
_ATTR_BYTES = 64
_RECORD_LOST, _RECORD_SAMPLE = 2, 9
_NO_MISC = 0xFFFF_0000_FFFF_FFFF
"""Of a header as one u64: all but `misc`."""
_ENTRY_AT, _ROW_MORE = 12, 16
_DATA_HEAD, _DATA_TAIL = 1024 // 8, 1032 // 8
"""Words of struct perf_event_mmap_page."""


class PerfRing:
    """One CPU's ring; see CpuRing in transport.py.

    row: bytes; size_bytes: a power of two of pages; low_water: records.
    """

    def __init__(
        self,
        maps: Mapping[str, int],
        cpu: int,
        dtype: np.dtype[Any],
        row: int,
        size_bytes: int,
        low_water: int,
    ) -> None:
        self._maps = maps
        self._cpu = cpu
        self._dtype = dtype
        self._row = row
        self._size = size_bytes
        self._read = 0
        """Bytes."""
        self._threshold = Threshold(size_bytes // row, low_water)
        self._whole_ns = 0
        self._running_ns = -1
        self._lost_seen = 0
        """Records, by the LOST records that were read."""
        self.held_up = False
        self._sample = _RECORD_SAMPLE | row << 48
        """A record's header without `misc`."""
        # The kernel wakes at multiples of its own threshold, wherever the ring is read.
        self.fd, self._counts_lost = _open_event(cpu, max(1, self._threshold.due_at * row // 2))
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, self.fd)
            heads = mmap.mmap(maps[_HEADS], possible_cpus() * _HEAD_BYTES)
            self._head = np.frombuffer(heads, np.uint64).reshape(-1, _HEAD_BYTES // 8)[cpu]
            self._memory = mmap.mmap(self.fd, mmap.PAGESIZE + size_bytes)
            words = np.frombuffer(self._memory, np.uint64, mmap.PAGESIZE // 8)
            self._data_head, self._data_tail = Word(words[_DATA_HEAD:]), Word(words[_DATA_TAIL:])
            self._begun, self._done = Word(self._head[_BEGUN:]), Word(self._head[_DONE:])
            self._head[_FULL] = 0
            bpf.map_update(maps[_RECORDS], struct.pack("=I", cpu), struct.pack("=I", self.fd))
            undo.pop_all()

    def is_dead(self) -> bool:
        """The event of a CPU that went offline never runs again."""
        running_ns = self._counts()[2]
        dead = running_ns == self._running_ns
        self._running_ns = running_ns
        return dead

    def retire(self) -> None:
        bpf.map_delete(self._maps[_RECORDS], struct.pack("=I", self._cpu))
        wait_for_running()

    @property
    def is_due(self) -> bool:
        return self._data_head.peek() >= self._threshold.due_at * self._row

    def drain(self) -> list[Batch]:
        before_ns = time.monotonic_ns()
        self.held_up = not self._was_idle()
        if not self.held_up:
            self._whole_ns = before_ns
        head = self._data_head.load()
        found: list[NDArray[Any]] = []
        while self._read < head:
            at = self._read % self._size
            count = min(head - self._read, self._size - at) // self._row
            other = (self._headers(at, count) & _NO_MISC) != self._sample
            if other.any():
                count = int(np.argmax(other))
            if count:
                found.append(self._entries(self._memory, mmap.PAGESIZE + at, count))
                self._read += count * self._row
            else:
                self._read += self._take_other(at, found)
        found = found or [self._entries(self._memory, mmap.PAGESIZE, 0)]
        return [Batch(self._cpu, entries, self._whole_ns) for entries in found]

    def free(self) -> None:
        self._data_tail.store(self._read)
        self._threshold.move(self._read // self._row)

    def lost(self) -> int:
        """As the kernel counts them, two ways; before Linux 6.0 as it and the programs do."""
        counted = self._counts()[3] if self._counts_lost else int(self._head[_FULL])
        return max(counted, self._lost_seen)

    def close(self) -> None:
        del self._head, self._begun, self._done
        del self._data_head, self._data_tail, self._memory
        os.close(self.fd)

    def _was_idle(self) -> bool:
        """Whether at some moment in this call no record was under way.

        done first: if begun equals it afterwards, both were equal when done was read.
        """
        for _ in range(_TRIES):
            done = self._done.load()
            if done == self._begun.load():
                return True
        return False

    def _headers(self, at: int, count: int) -> NDArray[np.uint64]:
        """The headers of rows from this offset on."""
        headers: NDArray[np.uint64] = np.ndarray(
            (count,), np.uint64, self._memory, mmap.PAGESIZE + at, (self._row,)
        )
        return headers

    def _entries(self, memory: Any, at: int, count: int) -> NDArray[Any]:
        """Entries of rows in `memory` from this offset on."""
        entries: NDArray[Any] = np.ndarray(
            (count,), self._dtype, memory, at + _ENTRY_AT, (self._row,)
        )
        return entries

    def _take_other(self, at: int, found: list[NDArray[Any]]) -> int:
        """Take a LOST record, or a record that continues at the ring's beginning; its bytes."""
        header = int(self._headers(at, 1)[0])
        size = header >> 48
        start, end = mmap.PAGESIZE + at, mmap.PAGESIZE + self._size
        copy = self._memory[start : min(start + size, end)]
        copy += self._memory[mmap.PAGESIZE : mmap.PAGESIZE + size - len(copy)]
        if header & _NO_MISC == self._sample:
            found.append(self._entries(copy, 0, 1))
        elif header & 0xFFFF_FFFF == _RECORD_LOST:
            self._lost_seen += int(struct.unpack_from("=Q", copy, 16)[0])
        return size

    def _counts(self) -> tuple[int, ...]:
        """Value, time enabled, time running [ns], and lost records where the kernel counts them."""
        return struct.unpack("=QQQQ" if self._counts_lost else "=QQQ", os.read(self.fd, 32))


class PerfRings:
    """See collector/ring/transport.py. The head tells of each record under way: no slack."""

    name = "perf"
    ring = PerfRing
    header = "ring_perf.h"
    slack_ns = 0
    lasts = False

    def check(self) -> None:
        try:
            os.close(_open_event(online_cpus()[0], 1)[0])
        except OSError as error:
            raise refused(error, "opening a perf event") from error

    def row_bytes(self, entry_size: int) -> int:
        return (entry_size + 7) // 8 * 8 + _ROW_MORE

    def make_map(self, name: str) -> int:
        if name != _HEADS:
            return 0
        cpus = possible_cpus()
        return bpf.map_create(
            bpf.BPF_MAP_TYPE_ARRAY, 4, _HEAD_BYTES, cpus, bpf.BPF_F_MMAPABLE, name
        )


def _open_event(cpu: int, wake_up_bytes: int) -> tuple[int, bool]:
    """A CPU's perf event, and whether it counts lost records (Linux 6.0). OSError when refused."""
    for read_format in (_FORMAT_TIMES | _FORMAT_LOST, _FORMAT_TIMES):
        attributes = struct.pack(
            "=IIQQQQQIIQ", _TYPE_SOFTWARE, _ATTR_BYTES, _COUNT_SW_BPF_OUTPUT, 1,
            _SAMPLE_RAW, read_format, _WATERMARK, wake_up_bytes, 0, 0,
        )  # fmt: skip
        try:
            return perf_event_open(attributes, cpu), read_format != _FORMAT_TIMES
        except OSError as error:
            if error.errno != errno.EINVAL or read_format == _FORMAT_TIMES:
                raise
    raise AssertionError
