# SPDX-License-Identifier: Apache-2.0
"""The sequencer as plain Python, a record at a time: what collector/ring/drain.c must equal."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tcpkmon.formats.base.control import ANY_CPU, WORDS_OFFSET, Loss

_TIME_AT, _CALLVALUE_AT, _LOCATION_AT = 4, 12, 16
_KERNEL, _KILLED = 0, 6
_POINTS = 256


@dataclass
class Cpu:
    """A CPU's records that wait, by serial."""

    waiting: dict[int, bytes] = field(default_factory=dict)
    seen: int = 0
    decided: int = 0
    key_ns: int = 0
    pushed: int = 0
    lost: int = 0

    def keys_ns(self) -> list[tuple[int, int]]:
        """(serial, the highest time up to it) of what waits, by serial."""
        found, key_ns = [], self.key_ns
        for serial in sorted(self.waiting):
            key_ns = max(key_ns, time_of(self.waiting[serial]))
            found.append((serial, key_ns))
        return found


@dataclass
class Taken:
    """A record that is released; before: the serial that was decided before it."""

    key_ns: int
    cpu: int
    serial: int
    before: int
    row: bytes


@dataclass
class Entry:
    """An entry of the file; cpu: ANY_CPU for control entries."""

    seq: int
    cpu: int
    time_ns: int
    content: bytes

    @property
    def place(self) -> tuple[int, int]:
        return self.cpu, min(word(self.content, _LOCATION_AT), _POINTS - 1)


def word(row: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", row, at)[0])


def time_of(row: bytes) -> int:
    return int(struct.unpack_from("<q", row, _TIME_AT)[0])


class Model:
    """offset_ns, next_seq and the clock are the tests' to set; most: records that may wait."""

    def __init__(self, dtype: np.dtype[Any], most: int) -> None:
        assert dtype.fields is not None
        self.size, self.most = dtype.itemsize, most
        self.at = {name: int(place[1]) for name, place in dtype.fields.items()}
        self.offset_ns, self.next_seq = 0, 1
        self.cpus: dict[int, Cpu] = {}
        self.late, self.killed = Counter[tuple[int, int]](), Counter[int]()

    def cpu(self, number: int) -> Cpu:
        return self.cpus.setdefault(number, Cpu())

    def resume(self, released: Mapping[int, tuple[int, int]], late: Mapping[Any, int]) -> None:
        self.late = Counter(late)
        for number, (serial, lost) in released.items():
            own = sum(count for (cpu, _), count in late.items() if cpu == number)
            self.cpus[number] = Cpu({}, serial, serial, 0, serial - lost + own, lost)

    def push(self, number: int, rows: Sequence[bytes], again: bool = False) -> None:
        """again: those that are late are in the file already."""
        cpu = self.cpu(number) if rows else Cpu()
        base = cpu.seen
        for row in rows:
            if "serial" in self.at:
                serial = struct.unpack_from("<q", row, self.at["serial"])[0]
            else:
                step = (word(row, 0) - base) & 0xFFFFFFFF
                serial = base + step - (step >> 31 << 32)
            cpu.seen = max(cpu.seen, serial)
            is_late = serial <= cpu.decided or serial in cpu.waiting
            cpu.pushed += not (is_late and again)
            if not is_late:
                cpu.waiting[serial] = row
            elif not again:
                self.late[number, min(word(row, _LOCATION_AT), _POINTS - 1)] += 1

    def take(self, watermark_ns: int) -> list[Taken]:
        """What is released, by CPU and serial."""
        keys = {number: cpu.keys_ns() for number, cpu in sorted(self.cpus.items())}
        every = sorted(key_ns for found in keys.values() for _, key_ns in found)
        excess = len(every) - self.most
        if excess > 0:
            watermark_ns = max(watermark_ns, every[excess + self.most // 2])
        taken = []
        for number, found in keys.items():
            cpu = self.cpus[number]
            for serial, key_ns in found:
                if key_ns <= watermark_ns:
                    row = cpu.waiting.pop(serial)
                    taken.append(Taken(key_ns, number, serial, cpu.decided, row))
                    cpu.lost += serial - cpu.decided - 1
                    cpu.decided, cpu.key_ns = serial, key_ns
        return taken

    def merged(self, watermark_ns: int) -> list[Taken]:
        """What is released, by time."""
        return sorted(self.take(watermark_ns), key=lambda one: one.key_ns)

    def entries(self, one: Taken) -> list[Entry]:
        """The record as in the file, after the LOSS entry of the gap before it."""
        time_ns, missing = time_of(one.row), one.serial - one.before - 1
        found = [self.loss(one.cpu, one.before + 1, missing, time_ns)] if missing else []
        return [*found, self._stamped(one.cpu, time_ns, one.row, 0)]

    def loss(self, cpu: int, first: int, count: int, time_ns: int, cause: int = _KERNEL) -> Entry:
        row = bytearray(self.size)
        struct.pack_into("<II", row, _CALLVALUE_AT, cpu, Loss.location)
        struct.pack_into("<QQQ", row, WORDS_OFFSET, first, count, cause)
        if "time_ns" in self.at:
            struct.pack_into("<q", row, self.at["time_ns"], time_ns)
        return self._stamped(ANY_CPU, time_ns, bytes(row), count)

    def tails(self, serials: Mapping[int, int], time_ns: int, cause: int = _KERNEL) -> list[Entry]:
        """LOSS entries for what is missing up to these serials."""
        found = []
        time_ns = max(time_ns, self.last_ns)
        for number, given in sorted(serials.items()):
            cpu = self.cpu(number)
            if (count := given - cpu.decided) > 0:
                found.append(self.loss(number, cpu.decided + 1, count, time_ns, cause))
                cpu.lost += count
                cpu.decided = given
        return found

    def kill(self, counts: Mapping[int, int], time_ns: int) -> list[Entry]:
        self.killed.update(counts)
        ends = {}
        for number, count in counts.items():
            cpu = self.cpu(number)
            ends[number] = min([cpu.decided + count, *(serial - 1 for serial in cpu.waiting)])
        return self.tails(ends, time_ns, _KILLED)

    @property
    def last_ns(self) -> int:
        return max((cpu.key_ns for cpu in self.cpus.values()), default=0)

    def _stamped(self, cpu: int, time_ns: int, row: bytes, before: int) -> Entry:
        seq = self.next_seq + before
        self.next_seq = seq + 1
        seconds, us = divmod((time_ns + self.offset_ns) // 1000, 1_000_000)
        content = bytearray(row)
        struct.pack_into("<III", content, 0, seq & 0xFFFFFFFF, seconds & 0xFFFFFFFF, us)
        if "seq" in self.at:
            struct.pack_into("<Q", content, self.at["seq"], seq)
        return Entry(seq, cpu, time_ns, bytes(content))
