# SPDX-License-Identifier: Apache-2.0
"""A queue for each CPU, between the rings and the sequencer. It sorts records by serial, holds
them until the watermark, and finds each missing serial.

The rows stay in the rings until they are released, or settle() copies them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.sequencer.ordered_batch import I64, LOCATION_WORD, count_places, opaque
from tcpkmon.collector.sequencer.part import Chunk, Part, cut, joined

FOREVER_NS = 2**63 - 1
_TIME_OFFSET = 4
_WORD, _TIME = np.dtype("=u4"), np.dtype("=i8")


@dataclass
class CpuQueue:
    """One CPU's records that wait, and its serials.

         1 ...      decided |  chunks[0] |  chunks[1] |   seen
        --------------------+------------+------------+-------- serials
         released, or lost  |  wait for the watermark; missing serials may still come
    """

    number: int
    opaque: np.dtype[Any]
    chunks: list[Chunk] = field(default_factory=list)
    waiting: int = 0
    seen: int = 0
    """Highest serial so far: the next are unwrapped by it."""
    decided: int = 0
    """Serials up to this one are released, or counted as lost."""
    key_ns: int = 0
    pushed: int = 0

    def push(self, entries: NDArray[Any]) -> NDArray[Any]:
        """Add records of a drain, in any order; returns rows that come too late, or twice."""
        serials, steady = self._serials(entries)
        times_ns = entries.getfield(_TIME, _TIME_OFFSET).copy()
        rows = entries.view(self.opaque)
        self.pushed += len(rows)
        self.waiting += len(rows)
        last = int(self.chunks[-1].serials[-1]) if self.chunks else self.decided
        if serials[0] <= last or not (steady or (serials[1:] > serials[:-1]).all()):
            self.seen = max(self.seen, int(serials.max()))
            late = self._insert(Chunk(rows, serials, times_ns, times_ns))
            self.waiting -= len(late)
            return late
        self.seen = max(self.seen, int(serials[-1]))
        self._append(rows, serials, times_ns)
        return rows[:0]

    def settle(self) -> None:
        """Copy all waiting rows out of the rings."""
        for chunk in self.chunks:
            if not chunk.own:
                chunk.rows = chunk.rows.copy()
                chunk.own = True

    def take(self, watermark_ns: int) -> Part | None:
        """Remove and return the first records, up to the watermark."""
        whole = 0
        for chunk in self.chunks:
            if chunk.keys_ns[-1] > watermark_ns:
                break
            whole += 1
        taken, self.chunks = self.chunks[:whole], self.chunks[whole:]
        if self.chunks:
            first = self.chunks[0]
            count = int(first.keys_ns.searchsorted(watermark_ns, "right"))
            if count:
                taken.append(first.part(0, count))
                self.chunks[0] = first.part(count, len(first))
        if not taken:
            return None
        part = Part(self.number, taken, self.decided)
        self.decided = int(taken[-1].serials[-1])
        self.key_ns = int(taken[-1].keys_ns[-1])
        self.waiting -= len(part)
        return part

    def _serials(self, entries: NDArray[Any]) -> tuple[I64, bool]:
        """The serials, and whether they rise by one. The classic head has their low 32 bits."""
        low = entries.getfield(_WORD, 0)
        steady = int(low[-1]) - int(low[0]) == len(low) - 1 and bool((low[1:] > low[:-1]).all())
        if "serial" in (entries.dtype.names or ()):
            wide = entries["serial"]
            first = int(wide[0])
            # If low halves rise by one, the first and the last full serial show whether all do.
            if not steady or int(wide[-1]) != first + len(low) - 1:
                return wide.astype(np.int64), False
        else:
            base = np.uint32(self.seen & 0xFFFFFFFF)
            if not steady:
                return self.seen + (low - base).view(np.int32).astype(np.int64), False
            first = self.seen + int((low[:1] - base).view(np.int32)[0])
        return np.arange(first, first + len(low), dtype=np.int64), True

    def _append(self, rows: NDArray[Any], serials: I64, times_ns: I64) -> None:
        key_ns = int(self.chunks[-1].keys_ns[-1]) if self.chunks else self.key_ns
        keys_ns = times_ns
        if times_ns[0] < key_ns or (times_ns[1:] < times_ns[:-1]).any():
            keys_ns = np.maximum(np.maximum.accumulate(times_ns), key_ns)
        self.chunks.append(Chunk(rows, serials, times_ns, keys_ns))

    def _insert(self, new: Chunk) -> NDArray[Any]:
        """Sort records into the queue; returns rows whose serials are decided or there already.

        It is rare and for few records: an interrupt's record can come before a lower serial. Only
        the rows between the first and the last that change places are copied.
        """
        lowest = int(new.serials.min())
        start = len(self.chunks)
        while start and int(self.chunks[start - 1].serials[-1]) >= lowest:
            start -= 1
        again = [*self.chunks[start:], new]
        del self.chunks[start:]
        serials = joined([chunk.serials for chunk in again])
        order = np.argsort(serials, kind="stable")
        serials = serials[order]
        good = (serials > self.decided) & (np.diff(serials, prepend=self.decided) != 0)
        changed = np.flatnonzero((order != np.arange(len(order))) | ~good)
        first, end = int(changed[0]), int(changed[-1]) + 1
        every = [chunk.rows for chunk in again]
        rows: NDArray[Any] = joined(list(cut(every, first, end)))[order[first:end] - first]
        kept = good[first:end]
        times_ns = joined([chunk.times_ns for chunk in again])[order][good]
        serials = serials[good]
        at = 0
        for piece in (*cut(every, 0, first), rows[kept], *cut(every, end, len(order))):
            stop = at + len(piece)
            if stop > at:
                self._append(piece, serials[at:stop], times_ns[at:stop])
            at = stop
        late: NDArray[Any] = rows[~kept]
        return late


class Queues:
    """The queues of all CPUs. dtype: of a record. About `limit_bytes` of records wait at most:
    above that, take() returns the oldest half before the watermark."""

    def __init__(self, dtype: np.dtype[Any], limit_bytes: int = 256 << 20) -> None:
        self._opaque = opaque(dtype)
        self._limit = max(2, limit_bytes // dtype.itemsize)
        self._cpus: dict[int, CpuQueue] = {}
        self.lost = 0
        """How many serials the kernel gave out whose records never came."""
        self.killed: Counter[int] = Counter()
        """By CPU, records that a process had read which was killed before it wrote them."""
        self.late: Counter[tuple[int, int]] = Counter()
        """Records by (cpu, location) that came after their serial was decided; dropped."""

    @property
    def read(self) -> dict[int, int]:
        """Records by CPU that were added and do not wait any more (with late ones)."""
        return {n: cpu.pushed - cpu.waiting for n, cpu in self._cpus.items()}

    def released(self) -> dict[int, tuple[int, int]]:
        """By CPU: the last serial that was released or lost, and how many up to it were lost."""
        late: Counter[int] = Counter()
        for (cpu, _), count in self.late.items():
            late[cpu] += count
        return {
            n: (cpu.decided, cpu.decided - (cpu.pushed - cpu.waiting - late[n]))
            for n, cpu in self._cpus.items()
        }

    def resume(
        self, released: Mapping[int, tuple[int, int]], late: Counter[tuple[int, int]]
    ) -> None:
        """Go on where another process was killed: see released()."""
        self.late = Counter(late)
        for number, (serial, lost) in released.items():
            cpu = self.cpu(number)
            cpu.decided = cpu.seen = serial
            cpu.pushed = serial - lost + sum(n for (at, _), n in late.items() if at == number)
            self.lost += lost

    def push_again(self, batch: Batch) -> int:
        """push(), after resume(), of records that may be in the file; how many are, and are left
        out."""
        if not len(batch.entries):
            return 0
        cpu = self.cpu(batch.cpu)
        count = len(cpu.push(batch.entries))
        cpu.pushed -= count
        return count

    def kill(self, counts: Mapping[int, int]) -> list[tuple[int, int, int]]:
        """After push_again(): a process had read so many more records of each CPU, and was killed
        before it wrote them. As tails(), the serials that are missing by that."""
        self.killed.update(counts)
        ends = {}
        for number, count in counts.items():
            cpu = self.cpu(number)
            there = int(cpu.chunks[0].serials[0]) - 1 if cpu.chunks else FOREVER_NS
            ends[number] = min(cpu.decided + count, there)  # late ones had been counted
        return self.tails(ends)

    @property
    def waiting_by_cpu(self) -> dict[int, int]:
        """How many records of each CPU wait for the watermark."""
        return {number: cpu.waiting for number, cpu in self._cpus.items()}

    @property
    def waiting(self) -> int:
        """How many records wait for the watermark."""
        return sum(self.waiting_by_cpu.values())

    @property
    def last_ns(self) -> int:
        """The time of the last record that take() returned; 0 without one."""
        return max((cpu.key_ns for cpu in self._cpus.values()), default=0)

    def push(self, batch: Batch) -> None:
        """Add the records of one drain of one ring. Their memory is read until settle()."""
        if not len(batch.entries):
            return
        late = self.cpu(batch.cpu).push(batch.entries)
        if len(late):
            self.late.update(count_places(batch.cpu, late.getfield(_WORD, 4 * LOCATION_WORD)))

    def settle(self) -> None:
        """Copy what still waits: then the memory that push() got may be overwritten."""
        for cpu in self._cpus.values():
            cpu.settle()

    def cpu(self, number: int) -> CpuQueue:
        """The queue of a CPU."""
        return self._cpus.setdefault(number, CpuQueue(number, self._opaque))

    def take(self, watermark_ns: int) -> list[Part]:
        """Remove and return all records up to this time. Missing serials before them are lost.

        The rows may be in the memory that push() got: see settle().
        """
        excess = self.waiting - self._limit
        if excess > 0:
            every = [chunk.keys_ns for cpu in self._cpus.values() for chunk in cpu.chunks]
            middle = excess + self._limit // 2
            oldest_ns = int(np.partition(np.concatenate(every), middle)[middle])
            watermark_ns = max(watermark_ns, oldest_ns)
        taken = (cpu.take(watermark_ns) for _, cpu in sorted(self._cpus.items()))
        parts = [part for part in taken if part is not None]
        self.lost += sum(part.missing for part in parts)
        return parts

    def tails(self, serials: Mapping[int, int]) -> list[tuple[int, int, int]]:
        """(cpu, first serial, count) of the serials after each CPU's last record, at the end.

        serials: by CPU, how many the kernel gave out. The missing ones count as lost.
        """
        found = []
        for number, given in sorted(serials.items()):
            cpu = self.cpu(number)
            if given > cpu.decided:
                found.append((number, cpu.decided + 1, given - cpu.decided))
                self.lost += given - cpu.decided
                cpu.decided = given
        return found
