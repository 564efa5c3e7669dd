# SPDX-License-Identifier: Apache-2.0
"""collector/ring/drain.c makes the bytes that a model in plain Python makes, a record at a time.

`python -m tests.unit.test_drain COUNT [FIRST]` runs so many cases.
"""

from __future__ import annotations

import struct
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.sequencer import sequencer
from tcpkmon.collector.sequencer.buffer_pool import LEAST_BYTES, PAGE_BYTES, PIECE_BYTES, Pool
from tcpkmon.collector.sequencer.ordered import Ordered, opaque
from tcpkmon.collector.sequencer.sequencer import FOREVER_NS, Queues, Sequencer
from tcpkmon.formats.base.control import (
    ANY_CPU,
    WORDS_OFFSET,
    Control,
    Loss,
    LossCause,
    Mark,
    words_view,
)
from tcpkmon.formats.base.facts import decode
from tests.full import IS_FULL

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
        for number, last in sorted(serials.items()):
            cpu = self.cpu(number)
            if (count := last - cpu.decided) > 0:
                found.append(self.loss(number, cpu.decided + 1, count, time_ns, cause))
                cpu.lost += count
                cpu.decided = last
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


Record = tuple[int, int, int]
"""(serial, time, location)"""
CASES = 1_000_000 if IS_FULL else 6_000
FATES = ["read"] * 12 + ["lost", "lost", "swapped", "nested", "held", "twice"]
STARTS = [0, 0, 0, 5, 2**31 - 4, 2**32 - 4, 2**33 - 4]
HEADER, GARBAGE = b"\xdd" * 8, b"\xdd"
ROWS = struct.Struct("<IQII4xI36x"), struct.Struct("<IQII4xI36xQQ16x")
"""Rows of both dtypes."""


class Case:
    """Both read the same rings, which are overwritten after each drain."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.dtype = random.choice([FULL, CLASSIC])
        size = self.dtype.itemsize
        self.cpus = random.sample([0, 1, 2, 9, 300], random.randint(1, 4))
        most = random.choice([2, 15, 1 << 20])
        self.piece_bytes = random.choice([1, 2, 3, 9, 1 << 20]) * size
        self.model = Model(self.dtype, most)
        self.limit_bytes = most * size
        start = random.choice(STARTS) if random.random() < 0.3 else 0
        self.resumes = start > 0
        self.released = {
            cpu: (start, random.randint(0, min(start, 9))) for cpu in self.cpus if start
        }
        self.late = Counter({(self.cpus[0], 3): random.randint(1, 2)} if start > 20 else {})
        self.serials = dict.fromkeys(self.cpus, start)
        self.ahead_ns = {cpu: random.choice([0, 0, 30, 500]) for cpu in self.cpus}
        self.held: dict[int, list[Record]] = {cpu: [] for cpu in self.cpus}
        self.now_ns = 10_000
        self.highest_ns = 0

    def run(self, order: Queues, see: Any) -> None:
        """see: takes the same from both up to a time, and compares it."""
        random, model = self.random, self.model
        order.resume(self.released, self.late)
        model.resume(self.released, self.late)
        again = self.resumes
        for _ in range(random.randint(1, 4)):
            rings = [
                ring for cpu in random.sample(self.cpus, len(self.cpus))
                for ring in self.fill(cpu, order, again)
            ]  # fmt: skip
            slack_ns = random.choice([0, 30, 200])
            see(random.choice([self.highest_ns - slack_ns] * 4 + [0, FOREVER_NS]), again)
            again = False
            order.settle()
            for ring in rings:
                ring[:] = GARBAGE * len(ring)
            if random.random() < 0.2:
                self.compare(order)
            self.now_ns += random.randint(0, 300)
        see(FOREVER_NS, False)
        self.compare(order)

    def fill(self, cpu: int, order: Queues, again: bool) -> Iterator[bytearray]:
        """Memory of a CPU's ring: at its end a drain finds two runs of rows."""
        own, row = self.records(cpu), ROWS[self.dtype is FULL]
        contents = [
            row.pack(serial & 0xFFFFFFFF, time_ns, cpu, location, serial & 0xFF, time_ns, serial)
            if self.dtype is FULL
            else row.pack(serial & 0xFFFFFFFF, time_ns, cpu, location, serial & 0xFF)
            for serial, time_ns, location in own
        ]
        at = self.random.choice([0, len(own) // 2])
        for some in (contents[:at], contents[at:]):
            if some:
                self.model.push(cpu, some, again)
                ring = bytearray(HEADER + HEADER.join(some))
                stride = len(HEADER) + row.size
                rows = np.ndarray((len(some),), self.dtype, ring, len(HEADER), (stride,))
                push = order.push_again if again else order.push
                push(Batch(cpu, rows, 0))
                yield ring

    def records(self, cpu: int) -> list[Record]:
        """What a drain finds."""
        random, own, held = self.random, list[Record](), self.held[cpu]
        time_ns, count = self.now_ns + self.ahead_ns[cpu], random.randrange(9)
        fates, steps_ns = random.choices(FATES, k=count), random.choices(range(20), k=count)
        later_ns = random.choices([0, 0, 0, 60], k=count)  # the clock was read late
        places = random.choices([1, 1, 2, 25, 90, 4000], k=count)
        for fate, step_ns, late_ns, place in zip(fates, steps_ns, later_ns, places, strict=True):
            self.serials[cpu] += 1
            time_ns += step_ns
            record = self.serials[cpu], time_ns + late_ns, place
            if fate == "held":
                held.append(record)
            elif fate != "lost":
                own.insert(max(0, len(own) - {"swapped": 1, "nested": 3}.get(fate, 0)), record)
            if fate == "twice":
                own.append(record)
            self.highest_ns = max(self.highest_ns, record[1])
        if random.random() < 0.5:
            own += held[:3]
            del held[:3]
        if random.random() < 0.1:
            wide = self.dtype is FULL
            self.serials[cpu] += random.choice([1, 1000, 2**33 if wide else 2**30])
        return own

    def compare(self, order: Queues) -> None:
        """What both say of themselves."""
        cpus, late = self.model.cpus, Counter[int]()
        for (number, _), count in self.model.late.items():
            late[number] += count
        assert order.lost == sum(cpu.lost for cpu in cpus.values())
        assert (order.late, order.killed) == (self.model.late, self.model.killed)
        assert order.read == {n: cpu.pushed - len(cpu.waiting) for n, cpu in cpus.items()}
        assert order.waiting_by_cpu == {n: len(cpu.waiting) for n, cpu in cpus.items()}
        assert order.released() == {
            n: (cpu.decided, cpu.decided - (cpu.pushed - len(cpu.waiting) - late[n]))
            for n, cpu in cpus.items()
        }


def check_entries(random: Random) -> None:
    """One stream of all CPUs."""
    case = Case(random)
    model = case.model
    model.next_seq, model.offset_ns = 7, 10**18 + 123
    order = Sequencer(case.dtype, lambda: model.offset_ns, 7, case.limit_bytes)
    size, given_bytes = case.dtype.itemsize, 0

    def compare(piece: Any, first: int, found: list[Entry]) -> None:
        nonlocal given_bytes
        if found:
            head = first, model.next_seq - first, found[0].time_ns, given_bytes
            assert (piece.first_seq, piece.span, piece.first_ns, piece.start_bytes) == head
        more = random.choice([0, 0, 2])  # the writer put so many entries before
        piece.renumber(piece.first_seq + more)
        order.ahead = piece.ahead
        model.next_seq += more
        assert piece.entries.tobytes() == b"".join(
            moved(entry, more, model.at.get("seq")) for entry in found
        )
        given_bytes += piece.nbytes
        places = [entry.place for entry in found if entry.cpu != ANY_CPU]
        assert (piece.counts(), piece.records) == (Counter(places), len(places))
        if random.random() < 0.7:
            return
        stop = random.randint(0, len(found))
        some = [entry.place for entry in found[:stop] if entry.cpu != ANY_CPU]
        assert piece.counts(0, stop) == Counter(some)
        assert piece.counts(stop) == Counter(places[len(some) :])
        assert piece.numbers(stop) == (found[stop - 1].seq + 1 - first if stop else 0)

    def see(watermark_ns: int, again: bool) -> None:
        if again:
            first, counts = model.next_seq, {case.cpus[0]: 3, case.cpus[-1]: 1}
            killed = order.missing(order.kill(counts), 9_000, LossCause.KILLED)
            compare(killed, first, model.kill(counts, 9_000))
        taken, done = model.merged(watermark_ns), 0
        for piece in order.pieces(watermark_ns):
            first, found = model.next_seq, list[Entry]()
            while len(found) < len(piece):
                found += model.entries(taken[done])
                done += 1
            assert len(found) == len(piece) <= max(2, case.piece_bytes // size)
            compare(piece, first, found)
        assert done == len(taken)
        model.offset_ns += random.randint(0, 1) * 10**9

    with mock.patch.object(sequencer, "PIECE_BYTES", case.piece_bytes):
        case.run(order, see)
    first, given = model.next_seq, {cpu: serial + 2 for cpu, serial in case.serials.items()}
    lost = order.missing(order.tails(given), 99_000, LossCause.KERNEL)
    compare(lost, first, model.tails(given, 99_000))
    case.compare(order)


def moved(entry: Entry, more: int, seq_at: int | None) -> bytes:
    """With another number."""
    if not more:
        return entry.content
    seq, content = entry.seq + more, bytearray(entry.content)
    content[:4] = (seq & 0xFFFFFFFF).to_bytes(4, "little")
    if seq_at is not None:
        content[seq_at : seq_at + 8] = seq.to_bytes(8, "little")
    return bytes(content)


def check_log(random: Random) -> None:
    """Records as they are, CPU by CPU."""
    case, pool = Case(random), Pool()
    order = Queues(case.dtype, case.limit_bytes)

    def see(watermark_ns: int, again: bool) -> None:
        found = []
        for cpu, before, rows, serials, keys_ns in order.copies(watermark_ns, pool):
            listed = serials.tolist()
            parts = keys_ns.tolist(), listed, [before, *listed], rows.tolist()
            found += [Taken(key, cpu, *one) for key, *one in zip(*parts, strict=False)]
        assert found == case.model.take(watermark_ns)

    with mock.patch.object(sequencer, "COPY_BYTES", case.piece_bytes):
        case.run(order, see)


CHECKS = [check_entries, check_log]


@pytest.mark.parametrize("check", CHECKS)
@given(random=st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_it_equals_the_model(check: Any, random: Random) -> None:
    check(random)


def test_many_cases() -> None:
    run(CASES)


def run(count: int, first: int = 0) -> None:
    for seed in range(first, first + count):
        check = CHECKS[seed % len(CHECKS)]
        try:
            check(Random(seed))
        except BaseException:
            print(f"{check.__name__}(Random({seed}))", file=sys.stderr)
            raise


def test_a_ring_that_is_overwritten_too_early_is_found() -> None:
    for order in (Queues(FULL), Queues(CLASSIC)):
        rows = make_rows(order._dtype, 0, [1, 2, 3], [10, 20, 30])
        order.push(Batch(0, rows, 0))
        rows[1:].view(np.uint8)[:] = 0xDD
        with pytest.raises(AssertionError, match="changed in its ring"):
            list(order.copies(FOREVER_NS, Pool()))


if __name__ == "__main__":
    run(*map(int, sys.argv[1:]))
    print("equal")


NO_CPU = ANY_CPU


class Whole(Sequencer):
    """A sequencer that gives each release in one piece."""

    def release(self, watermark_ns: int) -> Ordered:
        with mock.patch.object(sequencer, "PIECE_BYTES", FOREVER_NS):
            return next(self.pieces(watermark_ns), None) or self._control([], [], 0)

    def finish(self, serials: Mapping[int, int], mono_ns: int = 0) -> Ordered:
        released = self.release(FOREVER_NS)
        return joined(released, self.missing(self.tails(serials), mono_ns, LossCause.KERNEL))

    def control(self, entries: Iterable[Control], mono_ns: int) -> Ordered:
        """Control entries with the next sequence numbers, all of one moment."""
        listed = list(entries)
        return self._control(listed, [0] * len(listed), mono_ns)


def seqs_of(ordered: Ordered) -> NDArray[np.int64]:
    """The sequence number of each entry, by the LOSS entries: these count the numbers before."""
    rows = ordered.entries
    words = words_view(rows).astype(np.int64)
    lost = np.where(rows["location"] == Loss.location, words[:, 2] + (words[:, 3] << 32), 0)
    seqs: NDArray[np.int64] = ordered.first_seq - 1 + np.cumsum(lost + 1)
    return seqs


def joined(one: Ordered, other: Ordered) -> Ordered:
    """Two batches as one; `other` has the numbers right after `one`."""
    return Ordered(
        _join_rows((one.entries, other.entries), one.entries.dtype),
        np.concatenate((one.cpus, other.cpus)),
        np.concatenate((one.places, other.places)),
        one.first_seq,
        one.span + other.span,
        one.first_ns if len(one) else other.first_ns,
        one.records + other.records,
    )


def _join_rows(parts: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Rows of several arrays, one after the other, with all their bytes."""
    return np.concatenate([part.view(opaque(dtype)) for part in parts]).view(dtype)


EPOCH_NS = 1_700_000_000_000_000_000
LOSS = Loss.location

_HEAD = [
    ("seq_no", "=u4", 0), ("tv_sec", "=u4", 4), ("tv_usec", "=u4", 8), ("callvalue", "=u4", 12),
    ("location", "=u4", 16), ("lport", ">u2", 20), ("rport", ">u2", 22), ("snd_cwnd", "=u4", 24),
]  # fmt: skip
_MORE = [("time_ns", "=u8", 64), ("serial", "=u8", 72), ("cpu", "=u2", 80), ("seq", "=u8", 82)]


def make_dtype(full: bool) -> np.dtype[Any]:
    fields = _HEAD + (_MORE if full else [])
    names, formats, offsets = zip(*fields, strict=True)
    size = 96 if full else 64
    return np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
    )


FULL, CLASSIC = make_dtype(True), make_dtype(False)


def make_rows(
    dtype: np.dtype[Any], cpu: int, serials: Any, times_ns: Any, location: int = 1
) -> np.ndarray[Any, Any]:
    """Rows as the kernel leaves them in a ring."""
    serials, times_ns = np.asarray(serials, np.uint64), np.asarray(times_ns, np.uint64)
    rows = np.zeros(len(serials), dtype)
    rows["seq_no"] = serials & 0xFFFFFFFF
    rows["tv_sec"] = times_ns & 0xFFFFFFFF
    rows["tv_usec"] = times_ns >> 32
    rows["location"] = location
    rows["snd_cwnd"] = serials & 0xFFFFFFFF
    rows["callvalue"] = cpu
    if "cpu" in (dtype.names or ()):
        rows["cpu"], rows["serial"], rows["time_ns"] = cpu, serials, times_ns
    return rows


def make_sequencer(dtype: np.dtype[Any], **more: Any) -> Whole:
    return Whole(dtype, lambda: EPOCH_NS, **more)


def check_stream(
    parts: list[Any], dtype: np.dtype[Any], first_seq: int = 1
) -> np.ndarray[Any, Any]:
    """Sequence numbers run on, gaps stand before LOSS entries that count them; all rows."""
    rows = np.concatenate([part.entries.view(("V", dtype.itemsize)) for part in parts]).view(dtype)
    expected = first_seq
    for part in parts:
        assert part.first_seq == expected
        expected += part.span
        if len(part):
            assert seqs_of(part)[-1] == expected - 1
            assert part.entries.flags.c_contiguous
        assert np.array_equal(seqs_of(part) & 0xFFFFFFFF, part.entries["seq_no"])
        if "seq" in (dtype.names or ()):
            assert np.array_equal(seqs_of(part), part.entries["seq"])
    seqs = np.concatenate([seqs_of(part) for part in parts])
    gaps = np.diff(seqs, prepend=first_seq - 1) - 1
    assert (gaps >= 0).all()
    losses = rows["location"] == LOSS
    words = words_view(rows)
    counts = words[:, 2].astype(np.int64) | words[:, 3].astype(np.int64) << 32
    assert np.array_equal(gaps[losses], counts[losses])
    assert not gaps[~losses].any()
    assert (gaps[losses] > 0).all()
    return rows


def test_gap_becomes_a_loss_entry_with_all_its_values() -> None:
    sequencer = make_sequencer(FULL)
    sequencer.push(Batch(5, make_rows(FULL, 5, [1, 2**33 + 2], [10, 20]), 0))
    out = sequencer.release(99)
    assert seqs_of(out).tolist() == [1, 2**33 + 2, 2**33 + 3]
    assert out.cpus.tolist() == [5, NO_CPU, 5]
    row = out.entries[1]
    entry = decode(row["callvalue"], row["location"], words_view(out.entries)[1].tolist())
    assert entry == Loss(cpu=5, first_serial=2, count=2**33, cause=0)
    assert (row["time_ns"], row["serial"], row["cpu"], row["lport"]) == (20, 0, 0, 0)
    assert sequencer.lost == 2**33
    check_stream([out], FULL)


def test_control_entries_take_numbers() -> None:
    sequencer = make_sequencer(FULL, first_seq=2)
    marks = sequencer.control([Mark(1, "one"), Mark(2, "two")], 77)
    sequencer.push(Batch(0, make_rows(FULL, 0, [1], [80]), 0))
    records = sequencer.release(90)
    assert (seqs_of(marks).tolist(), seqs_of(records).tolist()) == ([2, 3], [4])
    assert marks.entries["time_ns"].tolist() == [77, 77]
    assert marks.cpus.tolist() == [NO_CPU, NO_CPU]
    assert not marks.counts()


ROW = np.dtype(("V", 360))
POOLED = PIECE_BYTES // ROW.itemsize
POOL = Pool()


def address(rows: np.ndarray) -> int:
    return rows.__array_interface__["data"][0]


def test_memory_comes_back_when_the_last_view_is_gone():
    pool = Pool()
    rows = pool.rows(POOLED, ROW)
    assert rows.flags.c_contiguous and rows.flags.writeable
    assert (len(rows), rows.dtype, pool.free) == (POOLED, ROW, 0)
    at = address(rows)
    view = rows.view(np.uint8).data[10:20]
    words = rows[3:].view(np.uint32)
    del rows
    assert pool.free == 0
    del words
    assert pool.free == 0
    del view
    assert pool.free == 1
    assert address(pool.rows(POOLED - 1, ROW)) == at


def test_two_at_a_time_have_memory_of_their_own():
    pool = Pool()
    one, other = pool.rows(POOLED, ROW), pool.rows(POOLED, ROW)
    assert not np.shares_memory(one, other)


def test_small_and_large_ones_are_not_kept():
    pool = Pool()
    for count in (0, 1, LEAST_BYTES // ROW.itemsize, POOLED + 1):
        rows = pool.rows(count, ROW)
        assert len(rows) == count
        del rows
    assert pool.free == 0


def test_only_some_are_kept():
    pool = Pool()
    for _ in range(2):
        rows = [pool.rows(POOLED, ROW) for _ in range(30)]
        assert len({address(one) for one in rows}) == 30
        rows.clear()
        assert 0 < pool.free < 10


@given(st.integers(LEAST_BYTES // ROW.itemsize + 1, POOLED), st.integers(0, 1 << 40))
def test_memory_lies_as_in_the_file(count, place_bytes):
    rows = POOL.rows(count, ROW, place_bytes)
    assert (address(rows) - place_bytes) % PAGE_BYTES == 0
    rows.view(np.uint8)[:] = 7
    assert (len(rows), POOL.free) == (count, 0)


def test_another_thread_may_drop_it():
    pool = Pool()
    held = [pool.rows(POOLED, ROW)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert pool.free == 1
