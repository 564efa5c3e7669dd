# SPDX-License-Identifier: Apache-2.0
"""The sequencer in Python, as it was before collector/ring/drain.c: what that must equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.sequencer.buffer_pool import PIECE_BYTES, Pool, even
from tcpkmon.formats.base.control import (
    ANY_CPU,
    WORDS_OFFSET,
    Control,
    Loss,
    LossCause,
    encode_many,
)

I64 = NDArray[np.int64]
MonoToEpoch = Callable[[I64], I64]
"""From ns to ns, arrays of one shape."""

# The classic head of an entry as u32 words; see the table in formats/psc/columns.py.
_SEQ, _SECONDS, _MICROSECONDS, _CALLVALUE, LOCATION_WORD = 0, 1, 2, 3, 4
_W = WORDS_OFFSET // 4
_POINTS = 256


@dataclass
class Numbering:
    """The writer's feedback to the sequencer, which numbers entries before they are written.

        sequencer:  100 .. 199 | 200 .. 299 |            numbers as if nothing else came
        file:       100 .. 199 | 2 marks | 202 .. 301    so ahead is 2

    ahead: the file's numbers less the sequencer's; ahead_bytes: the same for bytes. If ahead is
    out of date, the writer numbers entries again. If ahead_bytes is, it copies them before a
    direct write.
    """

    ahead: int = 0
    ahead_bytes: int = 0


class Tally(Protocol):
    """Counts the records of CPUs by their locations: see collector/writer/written.py."""

    def add(self, cpu: int, locations: NDArray[np.uint32]) -> None: ...


@dataclass
class Origin:
    """A CPU's records in a batch: their places, which rise, and their locations."""

    cpu: int
    where: I64
    locations: NDArray[np.uint32]


@dataclass
class Ordered:
    """Entries ready to be written: (n,) contiguous rows of the capture's dtype.

    seqs: their sequence numbers; they rise by more than one where records were lost. origins: the
    places of all records; an entry at another place is a control entry. The batch uses `span`
    numbers, from first_seq to that of its last entry.
    """

    entries: NDArray[Any]
    seqs: I64
    origins: Sequence[Origin]
    first_seq: int
    span: int
    first_ns: int = 0
    """CLOCK_MONOTONIC of the first entry."""
    numbering: Numbering | None = None
    ahead: int = 0
    """numbering.ahead when these numbers were given."""
    start_bytes: int = 0
    """The bytes of all batches of the sequencer before this one."""

    @property
    def last(self) -> Mapping[int, int]:
        """By CPU, the last serial of a record here, or that a LOSS entry counts."""
        words = head_words(self.entries)
        lost = words[words[:, LOCATION_WORD] == Loss.location].astype(np.int64)
        ends = lost[:, [_W, _W + 2]] + (lost[:, [_W + 1, _W + 3]] << 32)
        last = dict(zip(lost[:, _CALLVALUE].tolist(), (ends.sum(1) - 1).tolist(), strict=True))
        last.pop(ANY_CPU, None)
        for one in self.origins:
            if len(one.where):
                serial = int(self.entries["serial"][one.where[-1]])
                last[one.cpu] = max(serial, last.get(one.cpu, 0))
        return last

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def nbytes(self) -> int:
        return int(self.entries.nbytes)

    @property
    def records(self) -> int:
        """How many entries are records."""
        return sum(len(origin.where) for origin in self.origins)

    def renumber(self, first_seq: int) -> None:
        """Set other numbers, in the entries too."""
        step = first_seq - self.first_seq
        if step:
            self.ahead += step
            if self.numbering is not None:
                self.numbering.ahead = self.ahead
            self.seqs += step
            self.first_seq = first_seq
            _number(self.entries, self.seqs)

    def numbers(self, stop: int) -> int:
        """How many numbers its first `stop` entries use."""
        return int(self.seqs[stop - 1]) - self.first_seq + 1 if stop else 0

    def span_from(self, start: int) -> int:
        """How many numbers the entries from a place on use."""
        return self.span - self.numbers(start)

    def tally(self, tally: Tally) -> None:
        """Count all records."""
        for origin in self.origins:
            tally.add(origin.cpu, origin.locations)

    def counts(self, start: int = 0, stop: int | None = None) -> Counter[tuple[int, int]]:
        """Records (not control entries) of a range, by (cpu, location)."""
        total: Counter[tuple[int, int]] = Counter()
        for origin in self.origins:
            first, last = origin.where.searchsorted((start, len(self) if stop is None else stop))
            total.update(count_places(origin.cpu, origin.locations[first:last]))
        return total


def head_words(entries: NDArray[Any]) -> NDArray[np.uint32]:
    """Contiguous rows as u32 words, a view of shape (n, itemsize / 4)."""
    return entries.view(np.uint32).reshape(len(entries), entries.dtype.itemsize // 4)


def count_places(cpu: int, points: NDArray[np.uint32]) -> Counter[tuple[int, int]]:
    """Count one CPU's records by (cpu, point)."""
    counts = np.bincount(np.minimum(points, _POINTS - 1))
    return Counter({(cpu, point): int(counts[point]) for point in np.flatnonzero(counts).tolist()})


def stamp(entries: NDArray[Any], seqs: I64, mono_ns: I64, mono_to_epoch: MonoToEpoch) -> None:
    """Set the sequence numbers and the time of day of contiguous rows, in place."""
    words = head_words(entries)
    if not len(words):
        return
    epoch_us = mono_to_epoch(mono_ns) // 1000
    seconds: Any = int(epoch_us[0]) // 1_000_000
    microseconds = epoch_us - seconds * 1_000_000
    # Nearly always, all are of one second.
    if microseconds.view(np.uint64).max() >= 1_000_000:
        seconds = epoch_us // 1_000_000
        microseconds = epoch_us - seconds * 1_000_000
    words[:, _SECONDS] = seconds
    words[:, _MICROSECONDS] = microseconds
    _number(entries, seqs)


def stamp_control(
    entries: NDArray[Any], seqs: I64, mono_ns: int, mono_to_epoch: MonoToEpoch
) -> None:
    """Set the numbers of control entries, and one time for all, in place."""
    stamp(entries, seqs, np.full(len(entries), mono_ns, np.int64), mono_to_epoch)
    if "time_ns" in (entries.dtype.names or ()):
        entries["time_ns"] = mono_ns


def _number(entries: NDArray[Any], seqs: I64) -> None:
    head_words(entries)[:, _SEQ] = seqs.astype(np.uint32)
    if "seq" in (entries.dtype.names or ()):
        entries["seq"] = seqs


def fill_losses(
    raw: NDArray[np.uint32], rows: I64, cpus: NDArray[np.uint16], first_serial: I64, count: I64
) -> None:
    """Write many formats.base.control.Loss of cause 0, in rows of u32 words."""
    raw[rows] = 0
    raw[rows, _CALLVALUE] = cpus
    raw[rows, LOCATION_WORD] = Loss.location
    for word, value in ((_W, first_serial), (_W + 2, count)):
        raw[rows, word] = value & 0xFFFFFFFF
        raw[rows, word + 1] = value >> 32


def opaque(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Rows as bytes without fields. numpy copies structured rows field by field: that is slower,
    and omits the bytes of no column, which a LOSS entry may use."""
    return np.dtype(("V", dtype.itemsize))


COPY_BYTES = 1 << 20
"""About the size of a core's second-level cache: a copy is still there when it is packed."""


@dataclass
class Chunk:
    """Records of one CPU in order of serials: opaque rows, maybe in the ring's memory."""

    rows: NDArray[Any]
    serials: I64
    times_ns: I64
    keys_ns: I64
    """The highest time up to this serial: never lower than that of a lower serial."""
    own: bool = False
    """The rows are not in the ring's memory."""

    def __len__(self) -> int:
        return len(self.serials)

    def part(self, start: int, stop: int) -> Chunk:
        """A range of the records, as views."""
        which = slice(start, stop)
        return Chunk(
            self.rows[which],
            self.serials[which],
            self.times_ns[which],
            self.keys_ns[which],
            self.own,
        )


@dataclass
class Part:
    """One CPU's records of a release, in order of serials; before: the last serial before them.

        serials                 7   8  11  12       before is 6
        gaps                    0   0   2   0
        missing                 12 - 6 - 4 = 2
    """

    cpu: int
    chunks: Sequence[Chunk]
    before: int

    def __post_init__(self) -> None:
        self._count = sum(map(len, self.chunks))

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> NDArray[Any]:
        """The records: a view if they are in one chunk, else a copy."""
        return joined([chunk.rows for chunk in self.chunks])

    @property
    def serials(self) -> I64:
        return joined([chunk.serials for chunk in self.chunks])

    @property
    def times_ns(self) -> I64:
        return joined([chunk.times_ns for chunk in self.chunks])

    @property
    def keys_ns(self) -> I64:
        return joined([chunk.keys_ns for chunk in self.chunks])

    @property
    def missing(self) -> int:
        """How many serials are missing before and between the records."""
        return int(self.chunks[-1].serials[-1]) - self.before - len(self)

    @property
    def gaps(self) -> I64:
        """How many serials are missing before each record."""
        if not self.missing:
            return np.zeros(len(self), np.int64)
        return np.diff(self.serials, prepend=self.before) - 1

    def copies(self, pool: Pool) -> Iterator[Part]:
        """Copies of about COPY_BYTES each, with contiguous rows."""
        kind = self.chunks[0].rows.dtype
        before, total = self.before, len(self)
        step = even(total, max(1, COPY_BYTES // kind.itemsize))
        serials, times_ns, keys_ns = self.serials, self.times_ns, self.keys_ns
        for start in range(0, total, step):
            which = slice(start, min(start + step, total))
            rows = pool.rows(which.stop - start, kind)
            at = 0
            for some in cut([chunk.rows for chunk in self.chunks], start, which.stop):
                rows[at : at + len(some)] = some
                at += len(some)
            whole = Chunk(rows, serials[which], times_ns[which], keys_ns[which], own=True)
            yield Part(self.cpu, [whole], before)
            before = int(whole.serials[-1])


def cut(arrays: Sequence[NDArray[Any]], start: int, stop: int) -> Iterator[NDArray[Any]]:
    """Views of the items from `start` to `stop` in several arrays, read one after the other."""
    for array in arrays:
        if start < len(array) and stop > 0:
            yield array[max(0, start) : stop]
        start -= len(array)
        stop -= len(array)


def joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    joined: NDArray[Any] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return joined


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


@dataclass
class Share:
    """One CPU's records in a piece of a merge, and their places `where`, which rise."""

    cpu: int
    where: I64
    rows: Sequence[NDArray[Any]]
    """One after the other, maybe in the ring's memory."""
    times_ns: I64
    serials: I64
    gaps: I64 | None
    """How many serials are missing before each; None if none is missing in the release."""


class Flow:
    """A CPU's part of a merge. places: the place of each record in the whole release."""

    def __init__(self, part: Part, places: I64) -> None:
        self._part = part
        self._places = places
        self._times_ns = part.times_ns
        self._serials = part.serials
        self._gaps = part.gaps if part.missing else None
        self._done = 0

    def next(self, start: int, stop: int) -> Share:
        """Its records at the places from `start`, the end of the last call, up to `stop`."""
        end = int(self._places.searchsorted(stop))
        which = slice(self._done, end)
        share = Share(
            self._part.cpu,
            self._places[which] - start,
            list(cut([chunk.rows for chunk in self._part.chunks], self._done, end)),
            self._times_ns[which],
            self._serials[which],
            None if self._gaps is None else self._gaps[which],
        )
        self._done = end
        return share


def flows(parts: Sequence[Part]) -> list[Flow]:
    """Merge several CPUs' parts by time; at the same time, in the order of the parts."""
    total = sum(map(len, parts))
    places: I64 = np.arange(total)
    if len(parts) > 1:
        # A stable sort merges runs that are sorted already.
        order = np.concatenate([part.keys_ns for part in parts]).argsort(kind="stable")
        places = np.empty_like(order)
        places[order] = np.arange(total)
    made, start = [], 0
    for part in parts:
        stop = start + len(part)
        made.append(Flow(part, places[start:stop]))
        start = stop
    return made


def _which(where: I64) -> slice | I64:
    """An index for rising places: a slice, which is faster, if they rise by one."""
    if len(where) and where[-1] - where[0] == len(where) - 1:
        return slice(int(where[0]), int(where[-1]) + 1)
    return where


def put(target: NDArray[Any], where: I64, values: Any) -> None:
    """target[where] = values, for places that rise."""
    target[_which(where)] = values


def pick(source: NDArray[Any], where: I64) -> NDArray[Any]:
    """source[where], for places that rise."""
    picked: NDArray[Any] = source[_which(where)]
    return picked


def put_rows(target: NDArray[Any], where: I64, rows: Sequence[NDArray[Any]]) -> None:
    """target[where] = the rows of several arrays, one after the other."""
    at = 0
    for piece in rows:
        put(target, where[at : at + len(piece)], piece)
        at += len(piece)


SLACK_NS = 100_000
"""How much the clocks of two CPUs may differ. A record is reserved in its ring before it gets its
serial and its stamp, so a drain finds each record that was stamped before it."""
_ROWS_PER_CPU = 128
"""The least records of a piece for each CPU of a release: numpy is slow for few."""


class Sequencer(Queues):
    """Orders and numbers the records of all CPUs. One thread uses it.

    dtype: of an entry (itemsize a multiple of 8). mono_to_epoch: from CLOCK_MONOTONIC to the time
    of day for tv_sec and tv_usec. limit_bytes: see Queues.
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        mono_to_epoch: MonoToEpoch,
        first_seq: int = 1,
        limit_bytes: int = 256 << 20,
    ) -> None:
        super().__init__(dtype, limit_bytes)
        self._dtype = dtype
        self._mono_to_epoch = mono_to_epoch
        self._next_seq = first_seq
        self._numbering, self._ahead = Numbering(), 0
        self._bytes = 0
        self._pool = Pool()

    def warm(self) -> None:
        """Make memory ready before the first records come."""
        self._pool.warm()

    def pieces(self, watermark_ns: int) -> Iterator[Ordered]:
        """All records up to this time, ordered and numbered, with a LOSS entry after each gap.

        In pieces of about PIECE_BYTES: use all of them. Missing serials before these records are
        lost.
        """
        return self._merge(self.take(watermark_ns), PIECE_BYTES)

    def missing(self, serials: Mapping[int, int], mono_ns: int | None = None) -> Ordered:
        """LOSS entries for the serials after each CPU's last record, when all is released.

        serials: by CPU, how many the kernel gave out. mono_ns: the time of the entries; without
        it, that of the last record.
        """
        return self._missing(self.tails(serials), mono_ns, LossCause.KERNEL)

    def _missing(
        self, tails: Sequence[tuple[int, int, int]], mono_ns: int | None, cause: LossCause
    ) -> Ordered:
        losses = [Loss(cpu, first, count, cause) for cpu, first, count in tails]
        seqs = self._first() - 1 + np.cumsum([loss.count + 1 for loss in losses], dtype=np.int64)
        return self._control(losses, seqs, max(mono_ns or 0, self.last_ns))

    def missing_killed(self, counts: Mapping[int, int], mono_ns: int) -> Ordered:
        """LOSS entries for records that a process had read which was killed before it wrote them.

        counts: by CPU. Call it after resume(), before anything is released.
        """
        return self._missing(self.kill(counts), mono_ns, LossCause.KILLED)

    def _first(self) -> int:
        """The number of the next entry, with the latest feedback of the writer."""
        ahead = self._numbering.ahead
        self._next_seq += ahead - self._ahead
        self._ahead = ahead
        return self._next_seq

    def _rows(self, count: int) -> NDArray[Any]:
        """Memory for so many entries, aligned as in the file: a direct write does not copy it."""
        return self._pool.rows(count, self._opaque, self._bytes + self._numbering.ahead_bytes)

    def _ordered(
        self, rows: NDArray[Any], seqs: I64, origins: Sequence[Origin], first_ns: int
    ) -> Ordered:
        """A batch of entries, which uses all numbers up to the last in `seqs`."""
        first, self._next_seq = self._next_seq, int(seqs[-1]) + 1 if len(seqs) else self._next_seq
        start, self._bytes = self._bytes, self._bytes + rows.nbytes
        span = self._next_seq - first
        return Ordered(
            rows, seqs, origins, first, span, first_ns, self._numbering, self._ahead, start
        )

    def _control(self, entries: Iterable[Control], seqs: I64, mono_ns: int) -> Ordered:
        rows = encode_many(entries, self._dtype)
        stamp_control(rows, seqs, mono_ns, self._mono_to_epoch)
        return self._ordered(rows, seqs, (), mono_ns)

    def _merge(self, parts: list[Part], piece_bytes: int) -> Iterator[Ordered]:
        """Merge several CPUs' parts into one stream, in pieces."""
        total = sum(map(len, parts))
        if not total:
            return
        merged = flows(parts)
        most = max(1, piece_bytes // self._dtype.itemsize, _ROWS_PER_CPU * len(parts))
        step = even(total, most)
        for start in range(0, total, step):
            stop = min(start + step, total)
            shares = [share for flow in merged if len((share := flow.next(start, stop)).where)]
            if all(share.gaps is None for share in shares):
                yield self._steady(shares, stop - start)
            else:
                yield self._with_losses(shares, stop - start)

    def _steady(self, shares: list[Share], count: int) -> Ordered:
        """A piece without gaps."""
        whole = self._rows(count)
        mono_ns = np.empty(count, np.int64)
        for share in shares:
            put(mono_ns, share.where, share.times_ns)
            put_rows(whole, share.where, share.rows)
        first = self._first()
        seqs = np.arange(first, first + count, dtype=np.int64)
        entries: NDArray[Any] = whole.view(self._dtype)
        stamp(entries, seqs, mono_ns, self._mono_to_epoch)
        places = [(share.cpu, share.where) for share in shares]
        return self._ordered(entries, seqs, _origins(entries, places), int(mono_ns[0]))

    def _with_losses(self, shares: list[Share], count: int) -> Ordered:
        """A piece with LOSS entries after its gaps, such as

            serials of a CPU     7   8           11  12       9 and 10 are missing
            gaps                 0   0            2   0       missing before each record
            numbers             41  42           46  47       43 and 44 were lost, 45 is the LOSS
            place                0   1            3   4       of each record in the piece
            losses                       2                    place of each LOSS entry
            seqs                41  42  45       46  47       of all entries of the piece
        """
        gaps, serials, times_ns = np.zeros((3, count), np.int64)
        cpus_of = np.empty(count, np.uint16)
        for share in shares:
            times_ns[share.where], serials[share.where] = share.times_ns, share.serials
            cpus_of[share.where] = share.cpu
            if share.gaps is not None:
                gaps[share.where] = share.gaps
        after_gap = gaps > 0
        # Each lost record takes one number, the LOSS entry one, the record one.
        numbers = self._first() - 1 + np.cumsum(gaps + after_gap + 1)
        place = np.arange(count) + np.cumsum(after_gap)
        losses = place[after_gap] - 1

        total = count + len(losses)
        whole = self._rows(total)
        for share in shares:
            put_rows(whole, place[share.where], share.rows)
        entries: NDArray[Any] = whole.view(self._dtype)
        seqs, mono_ns = np.empty((2, total), np.int64)
        seqs[place], mono_ns[place] = numbers, times_ns
        missing = gaps[after_gap]
        fill_losses(
            head_words(entries), losses, cpus_of[after_gap], serials[after_gap] - missing, missing
        )
        seqs[losses] = numbers[after_gap] - 1
        mono_ns[losses] = times_ns[after_gap]
        if "time_ns" in (self._dtype.names or ()):
            entries["time_ns"][losses] = mono_ns[losses]
        stamp(entries, seqs, mono_ns, self._mono_to_epoch)
        places = [(share.cpu, place[share.where]) for share in shares]
        return self._ordered(entries, seqs, _origins(entries, places), int(times_ns[0]))


def _origins(entries: NDArray[Any], places: Sequence[tuple[int, I64]]) -> list[Origin]:
    # Copy now, while the entries' heads are in the core's cache.
    locations = head_words(entries)[:, LOCATION_WORD].copy()
    return [Origin(cpu, where, pick(locations, where)) for cpu, where in places]
