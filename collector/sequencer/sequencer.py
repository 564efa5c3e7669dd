# SPDX-License-Identifier: Apache-2.0
"""The sequencer: between the rings and the spool, it orders the records of all CPUs.

collector/ring/drain.c does the work, without Python's lock: it sorts each CPU's records by serial,
holds them until the watermark, and merges the CPUs by time. Each missing serial takes a sequence
number in its place, and a LOSS entry follows each such gap.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.library import find_library
from tcpkmon.collector.sequencer.buffer_pool import PIECE_BYTES, Pool
from tcpkmon.collector.sequencer.ordered import I64, POINTS, Ordered, opaque, stamp_control
from tcpkmon.formats.base.control import ANY_CPU, Control, Loss, LossCause, encode_many

FOREVER_NS = 2**63 - 1
SLACK_NS = 100_000
"""How much the clocks of two CPUs may differ. A record is reserved in its ring before it gets its
serial and its stamp, so a drain finds each record that was stamped before it."""
COPY_BYTES = 1 << 20
"""About the size of a core's second-level cache: a copy is still there when it is packed."""
_NO_MEMORY = -1


class _Cpu(ctypes.Structure):
    """The first members of struct cpu in drain.c: a CPU's records that wait, and its serials.

         1 ...      decided |  waiting                |   seen
        --------------------+-------------------------+-------- serials
         taken, or lost     |  missing ones may come  |
    """

    _fields_ = [
        *((name, ctypes.c_int64) for name in (
            "number", "seen", "decided", "key_ns", "pushed", "waiting", "ready", "lost", "first"
        )),
        ("late", ctypes.c_int64 * POINTS),
    ]  # fmt: skip


class _Piece(ctypes.Structure):
    """struct piece of drain.c."""

    _fields_ = [
        (name, ctypes.c_int64) for name in (
            "entries", "cpus", "places", "room", "seq", "offset_ns", "first_ns", "counted",
            "records",
        )
    ]  # fmt: skip


class Queues:
    """A queue of records for each CPU. One thread uses it.

    dtype: of a record. About `limit_bytes` of records wait at most: above that, the oldest half is
    taken before the watermark.
    """

    def __init__(self, dtype: np.dtype[Any], limit_bytes: int = 256 << 20) -> None:
        self._dtype, self._opaque = dtype, opaque(dtype)
        self._limit = max(2, limit_bytes // dtype.itemsize)
        self._c, columns = find_library(ctypes.CDLL), (_place(dtype, name) for name in _COLUMNS)
        self._order = _checked(self._c.order_new(dtype.itemsize, *columns) or _NO_MEMORY)
        weakref.finalize(self, self._c.order_free, self._order).atexit = False
        self._cpus: dict[int, tuple[_Cpu, int]] = {}
        self._lent: list[NDArray[Any]] = []
        """What push() got: its memory is read until settle()."""
        self.killed: Counter[int] = Counter()
        """By CPU, records that a process had read which was killed before it wrote them."""
        self.late: Counter[tuple[int, int]] = Counter()
        """Records by (cpu, location) that came after their serial was decided; dropped."""

    @property
    def lost(self) -> int:
        """How many serials the kernel gave out whose records never came."""
        return sum(cpu.lost for cpu, _ in self._cpus.values())

    @property
    def read(self) -> dict[int, int]:
        """Records by CPU that were added and do not wait any more (with late ones)."""
        return {n: cpu.pushed - cpu.waiting for n, (cpu, _) in self._cpus.items()}

    @property
    def waiting_by_cpu(self) -> dict[int, int]:
        """How many records of each CPU wait for the watermark."""
        return {number: cpu.waiting for number, (cpu, _) in self._cpus.items()}

    def released(self) -> dict[int, tuple[int, int]]:
        """By CPU: the last serial that was released or lost, and how many up to it were lost."""
        return {number: (cpu.decided, cpu.lost) for number, (cpu, _) in self._cpus.items()}

    def resume(
        self, released: Mapping[int, tuple[int, int]], late: Counter[tuple[int, int]]
    ) -> None:
        """Go on where another process was killed: see released()."""
        self.late = Counter(late)
        for number, (serial, lost) in released.items():
            cpu, _ = self._cpu(number)
            cpu.decided = cpu.seen = serial
            cpu.pushed = serial - lost + sum(n for (at, _), n in late.items() if at == number)
            cpu.lost = lost

    def push(self, batch: Batch) -> None:
        """Add the records of one drain of one ring, in any order. Their memory is read until
        settle()."""
        self.late.update(self._push(batch))

    def push_again(self, batch: Batch) -> int:
        """push(), after resume(), of records that may be in the file; how many are, and are left
        out."""
        count = self._push(batch).total()
        if count:
            self._cpu(batch.cpu)[0].pushed -= count
        return count

    def settle(self) -> None:
        """Copy what still waits: then the memory that push() got may be overwritten."""
        _checked(self._c.order_settle(self._order))
        self._lent.clear()

    def kill(self, counts: Mapping[int, int]) -> list[tuple[int, int, int]]:
        """After push_again(): a process had read so many more records of each CPU, and was killed
        before it wrote them. As tails(), the serials that are missing by that."""
        self.killed.update(counts)
        ends = {}
        for number, count in counts.items():
            cpu, _ = self._cpu(number)
            there = cpu.first - 1 if cpu.waiting else FOREVER_NS
            ends[number] = min(cpu.decided + count, there)  # late ones had been counted
        return self.tails(ends)

    def tails(self, serials: Mapping[int, int]) -> list[tuple[int, int, int]]:
        """(cpu, first serial, count) of the serials after each CPU's last record, at the end.

        serials: by CPU, how many the kernel gave out. The missing ones count as lost.
        """
        found = []
        for number, given in sorted(serials.items()):
            cpu, _ = self._cpu(number)
            if given > cpu.decided:
                found.append((number, cpu.decided + 1, given - cpu.decided))
                cpu.lost += given - cpu.decided
                cpu.decided = given
        return found

    def copies(
        self, watermark_ns: int, pool: Pool
    ) -> Iterator[tuple[int, int, NDArray[Any], I64, I64]]:
        """All records up to this time, by CPU, in pieces of about COPY_BYTES: use all of them.

        Each has the CPU, the last serial before it, opaque rows, serials, and keys: the highest
        time up to each record.
        """
        self._up_to(watermark_ns)
        most = max(1, COPY_BYTES // self._dtype.itemsize)
        for number, (cpu, address) in sorted(self._cpus.items()):
            while cpu.ready:
                before, count = cpu.decided, min(cpu.ready, most)
                rows = pool.rows(count, self._opaque)
                serials, keys_ns = np.empty((2, count), np.int64)
                to = (rows.ctypes.data, count, serials.ctypes.data, keys_ns.ctypes.data)
                _checked(self._c.order_copy(self._order, address, *to))
                yield number, before, rows, serials, keys_ns

    def _up_to(self, watermark_ns: int) -> int:
        """Decide what is taken next; how many entries it makes."""
        watermark_ns = max(-FOREVER_NS, watermark_ns)
        return _checked(self._c.order_up_to(self._order, watermark_ns, self._limit))

    def _push(self, batch: Batch) -> Counter[tuple[int, int]]:
        """Those that come too late, or twice, by (cpu, location)."""
        entries, count = batch.entries, len(batch.entries)
        late: Counter[tuple[int, int]] = Counter()
        assert entries.itemsize == self._dtype.itemsize
        if count:
            cpu, address = self._cpu(batch.cpu)
            self._lent.append(entries)
            place, stride = entries.ctypes.data, entries.strides[0]
            if _checked(self._c.order_push(self._order, address, place, count, stride)):
                late.update({(batch.cpu, at): n for at, n in enumerate(cpu.late) if n})
                ctypes.memset(cpu.late, 0, ctypes.sizeof(cpu.late))
        return late

    def _cpu(self, number: int) -> tuple[_Cpu, int]:
        """The queue of a CPU, and its address."""
        found = self._cpus.get(number)
        if found is None:
            address = _checked(self._c.order_add(self._order, number) or _NO_MEMORY)
            found = self._cpus[number] = _Cpu.from_address(address), address
        return found


class Sequencer(Queues):
    """Makes one numbered stream of the records of all CPUs. One thread uses it.

    dtype: of an entry (itemsize a multiple of 8). offset_ns: time of day less monotonic time, now,
    for tv_sec and tv_usec. limit_bytes: see Queues.
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        offset_ns: Callable[[], int],
        first_seq: int = 1,
        limit_bytes: int = 256 << 20,
    ) -> None:
        super().__init__(dtype, limit_bytes)
        self._offset_ns = offset_ns
        self._next_seq, self._bytes = first_seq, 0
        self.ahead = self.ahead_bytes = self._ahead = 0
        """The writer's feedback, as entries are numbered before they are written:

            sequencer:  100 .. 199 | 200 .. 299 |            numbers as if nothing else came
            file:       100 .. 199 | 2 marks | 202 .. 301    so ahead is 2

        ahead_bytes is the same for bytes. If ahead is out of date, the writer numbers entries
        again. If ahead_bytes is, it copies them before a direct write.
        """
        self.pool = Pool()
        self._places = np.empty((0, 3), np.int64)

    def pieces(self, watermark_ns: int) -> Iterator[Ordered]:
        """All records up to this time, ordered and numbered, with a LOSS entry after each gap.

        In pieces of about PIECE_BYTES: use all of them. Missing serials before these records are
        lost.
        """
        most = max(2, PIECE_BYTES // self._dtype.itemsize)  # a LOSS entry and a record
        left = self._up_to(watermark_ns)
        while left:
            made = self._take(min(left, most))
            left -= len(made)
            yield made

    def missing(
        self, tails: Sequence[tuple[int, int, int]], mono_ns: int, cause: LossCause
    ) -> Ordered:
        """LOSS entries for what tails() or kill() returned. mono_ns: their time, if no record has a
        later one."""
        losses = [Loss(cpu, first, count, cause) for cpu, first, count in tails]
        last_ns = max([mono_ns, *(cpu.key_ns for cpu, _ in self._cpus.values())])
        return self._control(losses, [loss.count for loss in losses], last_ns)

    def _control(self, entries: Iterable[Control], lost: Sequence[int], mono_ns: int) -> Ordered:
        """Control entries, before each of which so many numbers are lost."""
        rows = encode_many(entries, self._dtype)
        seqs = self._first() - 1 + np.cumsum(np.array(lost, np.int64) + 1)
        stamp_control(rows, seqs, mono_ns, self._offset_ns())
        cpus = np.full(len(rows), ANY_CPU, np.uint16)
        return self._ordered(rows, cpus, self._places[:0], len(rows) + sum(lost), mono_ns, 0)

    def _first(self) -> int:
        """The number of the next entry, with the latest feedback of the writer."""
        ahead = self.ahead
        self._next_seq += ahead - self._ahead
        self._ahead = ahead
        return self._next_seq

    def _ordered(
        self, entries: NDArray[Any], cpus: NDArray[np.uint16], places: I64, span: int,
        first_ns: int, records: int,
    ) -> Ordered:  # fmt: skip
        """A batch of entries, which uses the next `span` numbers."""
        first, self._next_seq = self._next_seq, self._next_seq + span
        start, self._bytes = self._bytes, self._bytes + entries.nbytes
        return Ordered(entries, cpus, places, first, span, first_ns, records, self._ahead, start)

    def _take(self, room: int) -> Ordered:
        """The next piece, of so many entries at most."""
        if len(self._places) < POINTS * len(self._cpus):
            self._places = np.empty((POINTS * len(self._cpus), 3), np.int64)
        # Aligned as in the file: a direct write does not copy it.
        start = self._bytes + self.ahead_bytes
        rows, cpus = self.pool.rows(room, self._opaque, start), np.empty(room, np.uint16)
        first, offset_ns = self._first(), self._offset_ns()
        where = rows.ctypes.data, cpus.ctypes.data, self._places.ctypes.data
        piece = _Piece(*where, room, first, offset_ns)
        made = _checked(self._c.order_merge(self._order, ctypes.addressof(piece)))
        entries: NDArray[Any] = rows[:made].view(self._dtype)
        places = self._places[: piece.counted].copy()
        span = piece.seq - first
        return self._ordered(entries, cpus[:made], places, span, piece.first_ns, piece.records)


_COLUMNS = ("serial", "time_ns", "seq")
"""Of an entry, beside the classic head; all u64."""


def _place(dtype: np.dtype[Any], name: str) -> int:
    """Where a column of 8 bytes begins; -1 without it."""
    if name not in (dtype.names or ()) or dtype[name].itemsize != 8:
        return -1
    assert dtype.fields is not None
    return dtype.fields[name][1]


def _checked(result: int) -> int:
    """What a function of drain.c returned. MemoryError, AssertionError."""
    if result == _NO_MEMORY:
        raise MemoryError
    if result < 0:
        raise AssertionError("a record changed in its ring before it was written")
    return result
