# SPDX-License-Identifier: Apache-2.0
"""collector/ring/drain.c makes the bytes that a model in plain Python makes, a record at a time.

`python -m tests.unit.test_drain COUNT [FIRST]` runs so many cases.
"""

from __future__ import annotations

import struct
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.sequencer import sequencer
from tcpkmon.collector.sequencer.buffer_pool import Pool
from tcpkmon.collector.sequencer.sequencer import FOREVER_NS, Queues, Sequencer
from tcpkmon.formats.base.control import ANY_CPU, WORDS_OFFSET, Loss, LossCause
from tests.full import IS_FULL
from tests.unit.test_sequencer import CLASSIC, FULL, make_rows

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
