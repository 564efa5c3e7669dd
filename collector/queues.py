# SPDX-License-Identifier: Apache-2.0
"""One CPU's records each, between the rings and what numbers them: put in the order of their
serials, held until their time has come, every missing serial found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.ordered import I64, LOCATION_WORD, count_by_place, head_words, opaque
from collector.records import Batch

FOREVER_NS = 2**63 - 1


@dataclass
class Part:
    """What one CPU gives to a release: rows in order of serials, and the gap before each."""

    cpu: int
    rows: NDArray[Any]
    serials: I64
    gaps: I64
    keys_ns: I64
    times_ns: I64


NO_NUMBERS: I64 = np.empty(0, np.int64)


@dataclass
class CpuQueue:
    """One CPU's records that wait, and where its serials stand."""

    number: int
    opaque: np.dtype[Any]
    serials: I64 = field(default_factory=lambda: NO_NUMBERS)
    times_ns: I64 = field(default_factory=lambda: NO_NUMBERS)
    rows: list[NDArray[Any]] = field(default_factory=list)
    seen: int = 0
    """Highest serial that came in, for the unwrapping of the next."""
    decided: int = 0
    """Serials up to this one have been released or counted as lost."""
    key_ns: int = 0
    pushed: int = 0

    def push(self, entries: NDArray[Any]) -> None:
        """Take in what a drain brought, in any order."""
        names = entries.dtype.names or ()
        if "serial" in names:
            serials = entries["serial"].astype(np.int64)
        else:
            low = _overlay(entries, np.uint32, 0)
            serials = self.seen + (low - np.uint32(self.seen & 0xFFFFFFFF)).view(np.int32).astype(
                np.int64
            )
        self.seen = max(self.seen, int(serials.max()))
        self.serials = np.concatenate((self.serials, serials))
        times_ns = _overlay(entries, np.uint64, 4).astype(np.int64)
        self.times_ns = np.concatenate((self.times_ns, times_ns))
        self.rows.append(entries.view(self.opaque))
        self.pushed += len(entries)

    def sort(self) -> NDArray[Any]:
        """Put what waits in order of serials; returns the rows that came too late, or twice."""
        if not len(self.serials):
            return np.empty(0, self.opaque)
        rows = self.rows[0] if len(self.rows) == 1 else np.concatenate(self.rows)
        late = rows[:0]
        if self.serials[0] <= self.decided or np.any(self.serials[1:] <= self.serials[:-1]):
            order = np.argsort(self.serials, kind="stable")
            self.serials = self.serials[order]
            rows = rows[order]
            before = np.concatenate((np.array([self.decided]), self.serials[:-1]))
            good = (self.serials > self.decided) & (self.serials != before)
            late = rows[~good]
            rows, self.serials = rows[good], self.serials[good]
            self.times_ns = self.times_ns[order][good]
        self.rows = [rows]
        return late

    def keys_ns(self) -> I64:
        """Each waiting record's time, but never below that of a lower serial."""
        keys: I64 = np.maximum(np.maximum.accumulate(self.times_ns), self.key_ns)
        return keys

    def take(self, keys_ns: I64, watermark_ns: int) -> Part | None:
        """The leading records up to the watermark; they are decided then."""
        count = int(np.searchsorted(keys_ns, watermark_ns, "right"))
        if not count:
            return None
        serials, rows = self.serials[:count], self.rows[0][:count]
        gaps = np.diff(serials, prepend=self.decided) - 1
        part = Part(self.number, rows, serials, gaps, keys_ns[:count], self.times_ns[:count])
        self.decided = int(serials[-1])
        self.key_ns = int(keys_ns[count - 1])
        self.serials, self.times_ns = self.serials[count:], self.times_ns[count:]
        self.rows = [self.rows[0][count:]] if len(self.serials) else []
        return part


def _overlay(entries: NDArray[Any], kind: type[np.generic], offset: int) -> NDArray[Any]:
    """A value at an offset of each row, aligned or not, as a view."""
    dtype = np.dtype(
        {
            "names": ["value"],
            "formats": [kind],
            "offsets": [offset],
            "itemsize": entries.dtype.itemsize,
        }
    )
    value: NDArray[Any] = entries.view(dtype)["value"]
    return value


class Queues:
    """The queues of all CPUs. `dtype` is that of a record; about `limit_bytes` wait at most:
    beyond, the oldest half goes out before its time."""

    def __init__(self, dtype: np.dtype[Any], limit_bytes: int = 256 << 20) -> None:
        self._opaque = opaque(dtype)
        self._limit = max(2, limit_bytes // dtype.itemsize)
        self._cpus: dict[int, CpuQueue] = {}
        self.lost = 0
        """Serials that were given out and never came."""
        self.late: Counter[tuple[int, int]] = Counter()
        """Records by (cpu, location) that came after their place was given up; dropped."""
        self.damaged: Counter[int] = Counter()
        self.reported_lost: Counter[int] = Counter()

    @property
    def read(self) -> dict[int, int]:
        """Records by CPU that came in and no longer wait here (late ones too)."""
        return {n: cpu.pushed - len(cpu.serials) for n, cpu in self._cpus.items()}

    @property
    def waiting(self) -> int:
        """Records that wait for the watermark."""
        return sum(len(cpu.serials) for cpu in self._cpus.values())

    @property
    def last_serial(self) -> dict[int, int]:
        """By CPU, the serial up to which all were released or counted as lost."""
        return {number: cpu.decided for number, cpu in self._cpus.items()}

    @property
    def last_ns(self) -> int:
        """The time of the last record that was taken; 0 without one."""
        return max((cpu.key_ns for cpu in self._cpus.values()), default=0)

    def push(self, batch: Batch) -> None:
        """Take in what one drain of one ring brought."""
        self.damaged[batch.cpu] += batch.damaged
        self.reported_lost[batch.cpu] += batch.reported_lost
        if len(batch.entries):
            self.cpu(batch.cpu).push(batch.entries)

    def cpu(self, number: int) -> CpuQueue:
        """The queue of a CPU."""
        return self._cpus.setdefault(number, CpuQueue(number, self._opaque))

    def take(self, watermark_ns: int) -> list[Part]:
        """All records up to this time; missing serials before them are lost from now on."""
        keys_ns: dict[int, I64] = {}
        for number, cpu in sorted(self._cpus.items()):
            late = cpu.sort()
            if len(late):
                locations = head_words(np.ascontiguousarray(late))[:, LOCATION_WORD]
                self.late.update(
                    count_by_place(np.full(len(late), number, np.uint16), locations)
                )
            if len(cpu.serials):
                keys_ns[number] = cpu.keys_ns()
        excess = self.waiting - self._limit
        if excess > 0:
            every = np.concatenate(list(keys_ns.values()))
            middle = excess + self._limit // 2
            watermark_ns = max(watermark_ns, int(np.partition(every, middle)[middle]))
        taken = (self._cpus[n].take(keys, watermark_ns) for n, keys in keys_ns.items())
        parts = [part for part in taken if part is not None]
        self.lost += sum(int(part.gaps.sum()) for part in parts)
        return parts

    def tails(self, serials: Mapping[int, int]) -> list[tuple[int, int, int]]:
        """(cpu, first serial, count) of what is missing after each CPU's last record, at the end.

        serials: by CPU, how many the kernel has given out. They are counted as lost.
        """
        found = []
        for number, given in sorted(serials.items()):
            cpu = self.cpu(number)
            if given > cpu.decided:
                found.append((number, cpu.decided + 1, given - cpu.decided))
                self.lost += given - cpu.decided
                cpu.decided = given
        return found
