# SPDX-License-Identifier: Apache-2.0
"""The sequencer: between the rings and the spool, makes one numbered stream of all CPUs' records.

Records of a CPU are put in the order of their serials, CPUs are merged by time, and each missing
serial takes a sequence number where it happened; a LOSS entry stands after each such gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.ordered import (
    I64,
    LOCATION_WORD,
    NO_CPU,
    MonoToEpoch,
    Ordered,
    count_by_place,
    fill_losses,
    head_words,
    joined,
    opaque,
    stamp,
    stamp_control,
)
from collector.records import Batch
from formats.control import Control, Loss, encode_many

SLACK_NS = 50_000_000
"""How long a record may be under way from its stamp to its ring. Usually microseconds; but fentry
programs can be preempted between the two, and a virtual CPU can be taken away."""

_FOREVER_NS = 2**63 - 1


@dataclass
class _Part:
    """What one CPU gives to a release: rows in order of serials, and the gap before each."""

    cpu: int
    rows: NDArray[Any]
    serials: I64
    gaps: I64
    keys_ns: I64
    times_ns: I64


_NONE: I64 = np.empty(0, np.int64)


@dataclass
class _Cpu:
    """One CPU's records that wait, and where its serials stand."""

    number: int
    opaque: np.dtype[Any]
    serials: I64 = field(default_factory=lambda: _NONE)
    times_ns: I64 = field(default_factory=lambda: _NONE)
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

    def take(self, keys_ns: I64, watermark_ns: int) -> _Part | None:
        """The leading records up to the watermark; they are decided then."""
        count = int(np.searchsorted(keys_ns, watermark_ns, "right"))
        if not count:
            return None
        serials, rows = self.serials[:count], self.rows[0][:count]
        gaps = np.diff(serials, prepend=self.decided) - 1
        part = _Part(self.number, rows, serials, gaps, keys_ns[:count], self.times_ns[:count])
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


class Sequencer:
    """Orders and numbers the records of all CPUs. One thread uses it.

    `dtype` is that of an entry (itemsize a multiple of 8); mono_to_epoch turns CLOCK_MONOTONIC
    into time of day for tv_sec and tv_usec. No more than about `limit_bytes` wait: beyond, the
    oldest half goes out before its watermark.
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        mono_to_epoch: MonoToEpoch,
        first_seq: int = 1,
        limit_bytes: int = 256 << 20,
    ) -> None:
        self._dtype = dtype
        self._opaque = opaque(dtype)
        self._mono_to_epoch = mono_to_epoch
        self._limit = max(2, limit_bytes // dtype.itemsize)
        self._cpus: dict[int, _Cpu] = {}
        self._next_seq = first_seq
        self.lost = 0
        """Sequence numbers that lost records took."""
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

    def push(self, batch: Batch) -> None:
        """Take in what one drain of one ring brought."""
        self.damaged[batch.cpu] += batch.damaged
        self.reported_lost[batch.cpu] += batch.reported_lost
        if len(batch.entries):
            self._cpu(batch.cpu).push(batch.entries)

    def release(self, watermark_ns: int) -> Ordered:
        """All records up to this time, ordered and numbered, with a LOSS entry after each gap.

        A missing serial whose successor is released here is lost from now on.
        """
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
        return self._merge([part for part in taken if part is not None])

    def finish(self, serials: Mapping[int, int], mono_ns: int | None = None) -> Ordered:
        """The rest, at the end: also what is missing after each CPU's last record.

        serials: by CPU, how many the kernel has given out. mono_ns: the time for the tail's LOSS
        entries; without it, that of the last record.
        """
        rest = self.release(_FOREVER_NS)
        last_ns = max((cpu.key_ns for cpu in self._cpus.values()), default=0)
        losses: list[Loss] = []
        for number, given in sorted(serials.items()):
            cpu = self._cpu(number)
            if given > cpu.decided:
                losses.append(Loss(number, cpu.decided + 1, given - cpu.decided, 0))
                cpu.decided = given
        if not losses:
            return rest
        seqs = self._next_seq - 1 + np.cumsum([loss.count + 1 for loss in losses], dtype=np.int64)
        self.lost += sum(loss.count for loss in losses)
        return joined(rest, self._control(losses, seqs, max(mono_ns or 0, last_ns)))

    def control(self, entries: Iterable[Control], mono_ns: int) -> Ordered:
        """Control entries with the next sequence numbers, all of one moment."""
        listed = list(entries)
        seqs = np.arange(self._next_seq, self._next_seq + len(listed), dtype=np.int64)
        return self._control(listed, seqs, mono_ns)

    def _cpu(self, number: int) -> _Cpu:
        return self._cpus.setdefault(number, _Cpu(number, self._opaque))

    def _control(self, entries: Iterable[Control], seqs: I64, mono_ns: int) -> Ordered:
        rows = encode_many(entries, self._dtype)
        stamp_control(rows, seqs, mono_ns, self._mono_to_epoch)
        first = self._next_seq
        self._next_seq = int(seqs[-1]) + 1 if len(seqs) else first
        cpus = np.full(len(rows), NO_CPU, np.uint16)
        return Ordered(rows, seqs, cpus, first, self._next_seq - first, mono_ns)

    def _merge(self, parts: list[_Part]) -> Ordered:
        """One stream of several CPUs' parts: stable by time, then by CPU."""
        first = self._next_seq
        if not parts:
            return Ordered(np.empty(0, self._dtype), _NONE, np.empty(0, np.uint16), first, 0)
        gaps = np.concatenate([part.gaps for part in parts])
        times_ns = np.concatenate([part.times_ns for part in parts])
        serials = np.concatenate([part.serials for part in parts])
        cpus = np.repeat(
            np.array([part.cpu for part in parts], np.uint16), [len(part.rows) for part in parts]
        )
        order = np.argsort(np.concatenate([part.keys_ns for part in parts]), kind="stable")
        gaps, times_ns, serials, cpus = gaps[order], times_ns[order], serials[order], cpus[order]
        after_gap = gaps > 0
        # A lost record takes one number, the LOSS entry after it one, the record itself one.
        seqs = first - 1 + np.cumsum(gaps + after_gap + 1)
        place = np.arange(len(seqs)) + np.cumsum(after_gap)
        losses = place[after_gap] - 1

        total = len(seqs) + len(losses)
        raw = np.empty((total, self._dtype.itemsize // 4), np.uint32)
        entries: NDArray[Any] = raw.view(self._dtype).reshape(total)
        whole = raw.view(self._opaque).reshape(total)
        back = np.empty_like(place)
        back[order] = place
        start = 0
        for part in parts:
            whole[back[start : start + len(part.rows)]] = part.rows
            start += len(part.rows)

        out = Ordered(
            entries,
            np.empty(total, np.int64),
            np.full(total, NO_CPU, np.uint16),
            first,
            int(seqs[-1]) - first + 1,
            int(times_ns[0]),
        )
        mono_ns = np.empty(total, np.int64)
        out.seqs[place], mono_ns[place], out.cpus[place] = seqs, times_ns, cpus
        if len(losses):
            count = gaps[after_gap]
            fill_losses(raw, losses, cpus[after_gap], serials[after_gap] - count, count)
            out.seqs[losses] = seqs[after_gap] - 1
            mono_ns[losses] = times_ns[after_gap]
            if "time_ns" in (self._dtype.names or ()):
                entries["time_ns"][losses] = mono_ns[losses]
        stamp(entries, out.seqs, mono_ns, self._mono_to_epoch)
        self._next_seq += out.span
        self.lost += int(gaps.sum())
        return out
