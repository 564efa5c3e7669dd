# SPDX-License-Identifier: Apache-2.0
"""The transport `bpf`: BPF's own ring buffer, one for each CPU.

The programs build each record in the ring, and this process reads it there. All records have one
size, so the ring is rows. bpf/include/ring_bpf.h is the BPF side.

     0        4        8              row
    +--------+--------+--------------+
    | length | offset | entry        |    the kernel's header: the top bit of length is set
    +--------+--------+--------------+    until the program commits the record

Positions only grow; the kernel maps the rows twice, one mapping after the other, so that any run
of rows is one view:

    consumer             read             producer              consumer + size
    ------|================|................|.....................|------ positions [bytes]
           drained, views    committed, or    free                 a record finds no room:
           are in use        being built                           lost, counted

The kernel keeps rows and positions while the map `klogger_rings` has the ring. So where another
process holds that map, the next one adopts the ring of one that was killed, and reads on from the
consumer's position. For that, hold() leaves records in the ring until they are in the file.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.syscalls import possible_cpus, wait_for_running
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.library import Producer, Word
from tcpkmon.collector.ring.threshold import Threshold

_RINGS, _HEADS = "klogger_rings", "klogger_heads"
"""Maps: the ring buffers by CPU, and struct klogger_ring by CPU."""
_WAKE_AT, _FULL = 1, 2
"""Words of struct klogger_ring."""
_HEAD_BYTES = 64
_HEADER_BYTES = 8


class BpfRing:
    """One CPU's ring; see CpuRing in transport.py.

    row: bytes; size_bytes: a power of two of pages; low_water: records. adopted: the descriptor of
    a ring that the programs have already.
    """

    def __init__(
        self,
        maps: Mapping[str, int],
        cpu: int,
        dtype: np.dtype[Any],
        row: int,
        size_bytes: int,
        low_water: int,
        adopted: int | None = None,
    ) -> None:
        self._maps = maps
        self._cpu = cpu
        self._dtype = dtype
        self._row = row
        self.size_bytes = size_bytes
        self._read = 0
        """Records."""
        self._rows = size_bytes // row
        self._threshold = Threshold(self._rows, low_water)
        self._whole_ns = 0
        self.held_up = False
        self._releasing = threading.Lock()
        self._is_open = True
        self.fd = _make_ring(size_bytes) if adopted is None else adopted
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, self.fd)
            heads = mmap.mmap(maps[_HEADS], possible_cpus() * _HEAD_BYTES)
            self._head = np.frombuffer(heads, np.uint64).reshape(-1, _HEAD_BYTES // 8)[cpu]
            self._wake_at = Word(self._head[_WAKE_AT:])
            self._consumer = Word(np.frombuffer(mmap.mmap(self.fd, mmap.PAGESIZE), np.uint64, 1))
            # A page with the producer's position, then the rows, twice.
            self._memory = mmap.mmap(
                self.fd, mmap.PAGESIZE + 2 * size_bytes, mmap.MAP_SHARED, mmap.PROT_READ,
                offset=mmap.PAGESIZE,
            )  # fmt: skip
            self._producer = Producer(self._memory, size_bytes, row)
            if adopted is None:
                self._head[:] = 0
                bpf.map_update(maps[_RINGS], struct.pack("=I", cpu), struct.pack("=I", self.fd))
            else:
                self._read = self._consumer.load() // row
            self.begun_at = self._read
            """How many of its records others had released."""
            self._wake_at.store(self._threshold.move(self._read))
            undo.pop_all()

    def is_dead(self) -> bool:
        """Never: the ring does not depend on its CPU."""
        return False

    def retire(self) -> None:
        bpf.map_delete(self._maps[_RINGS], struct.pack("=I", self._cpu))
        wait_for_running()

    @property
    def is_due(self) -> bool:
        if self.held_up:
            position = self._read * self._row
            return self._producer.advance(position)[0] > position
        return self._producer.peek() >= self._threshold.due_at * self._row

    def drain(self) -> list[Batch]:
        before_ns = time.monotonic_ns()
        position = self._read * self._row
        end, self.held_up = self._producer.advance(position)
        if not self.held_up:
            self._whole_ns = before_ns
        count, place = (end - position) // self._row, self._producer.place(position)
        entries: NDArray[Any] = np.ndarray(
            (count,), self._dtype, self._memory, place + _HEADER_BYTES, (self._row,)
        )
        self._read += count
        return [Batch(self._cpu, entries, self._whole_ns)]

    @property
    def read(self) -> int:
        """How many records were drained since the ring was made."""
        return self._read

    def free(self) -> None:
        self.release(self._read)
        self._wake_at.store(self._threshold.move(self._read))

    def hold(self) -> None:
        """As free(), but drained records stay until release(), if they fill at most three quarters
        of the ring. It is due at the latest when half of what is free then is filled."""
        self.release(self._read - self._rows * 3 // 4)
        free = self._rows - (self._read - self._consumer.peek() // self._row)
        due_at = min(self._threshold.move(self._read), self._read + max(1, free // 2))
        self._threshold.due_at = due_at
        self._wake_at.store(due_at)

    def release(self, count: int) -> None:
        """Give back the space of the ring's first `count` records. Any thread may call it."""
        with self._releasing:
            if self._is_open and count * self._row > self._consumer.peek():
                self._consumer.store(count * self._row)

    def lost(self) -> int:
        return int(self._head[_FULL])

    def close(self) -> None:
        with self._releasing:
            self._is_open = False
            del self._head, self._wake_at, self._consumer, self._producer, self._memory
        os.close(self.fd)


class BpfRings:
    """See collector/ring/transport.py. A record is reserved before it is stamped: no slack."""

    name = "bpf"
    ring = BpfRing
    header = "ring_bpf.h"
    slack_ns = 0
    lasts = True

    def check(self) -> None:
        os.close(self.make_map(_RINGS))

    def row_bytes(self, entry_size: int) -> int:
        return (entry_size + 7) // 8 * 8 + _HEADER_BYTES

    def make_map(self, name: str) -> int:
        cpus = possible_cpus()
        if name == _HEADS:
            return bpf.map_create(
                bpf.BPF_MAP_TYPE_ARRAY, 4, _HEAD_BYTES, cpus, bpf.BPF_F_MMAPABLE, name
            )
        if name != _RINGS:
            return 0
        like = _make_ring(mmap.PAGESIZE)
        try:
            return bpf.map_create(bpf.BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, cpus, 0, name, like)
        finally:
            os.close(like)

    def adopt(
        self, maps: Mapping[str, int], cpu: int, dtype: np.dtype[Any], low_water_bytes: int
    ) -> BpfRing | None:
        """The ring that the programs of this CPU have already; None: they have none."""
        fd = bpf.inner_map(maps[_RINGS], struct.pack("=I", cpu))
        if fd is None:
            return None
        row = self.row_bytes(dtype.itemsize)
        return BpfRing(maps, cpu, dtype, row, bpf.map_entries(fd), low_water_bytes // row, fd)


def _make_ring(size_bytes: int) -> int:
    """A ring buffer; its descriptor. KernelError when refused."""
    return bpf.map_create(bpf.BPF_MAP_TYPE_RINGBUF, 0, 0, size_bytes, name="klogger_ring")
