# SPDX-License-Identifier: Apache-2.0
"""collector/ring/drain.c makes the bytes of the sequencer that was in Python: sequencer_model.py.

`python -m tests.unit.test_drain SECONDS` runs as many cases as there is time for.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
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
from tcpkmon.collector.writer.log_batch import LogBatch
from tests.unit import sequencer_model as model
from tests.unit.test_cpu_queue import Ring
from tests.unit.test_sequencer import CLASSIC, FULL, make_rows

FATES = ["read"] * 12 + ["lost", "lost", "swapped", "nested", "held", "twice"]
STARTS = [0, 0, 0, 5, 2**31 - 4, 2**32 - 4, 2**33 - 4]
MOST = 12
"""Records of a CPU in a drain."""


class Case:
    """What the rings of some CPUs hold, drain by drain; and what the reader does with it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.dtype = random.choice([FULL, CLASSIC])
        self.cpus = random.sample([0, 1, 2, 3, 9, 300], random.randint(1, 4))
        self.limit_bytes = self.dtype.itemsize * random.choice([2, 15, 1 << 20])
        self.resumes = random.random() < 0.3
        start = random.choice(STARTS) if self.resumes else 0
        lost = {cpu: random.randint(0, min(start, 9)) for cpu in self.cpus}
        self.released = {cpu: (start, lost[cpu]) for cpu in self.cpus} if self.resumes else {}
        self.late = Counter({(self.cpus[0], 3): random.randint(1, 2)}) if start > 20 else Counter()
        self.serials = dict.fromkeys(self.cpus, start)
        ahead = {cpu: random.choice([0, 0, 30, 500]) for cpu in self.cpus}
        held: dict[int, list[tuple[int, int, int]]] = {cpu: [] for cpu in self.cpus}
        now_ns = 10_000
        self.drains = []
        for _ in range(random.randint(1, 8)):
            drain = {}
            for cpu in self.cpus:
                drain[cpu] = self._records(cpu, now_ns + ahead[cpu], held[cpu])
            highest = max((time_ns for own in drain.values() for _, time_ns, _ in own), default=0)
            slack_ns = random.choice([0, 30, 200])
            watermark_ns = random.choice([highest - slack_ns] * 4 + [0, FOREVER_NS])
            order = random.sample(self.cpus, len(self.cpus))
            self.drains.append((order, drain, watermark_ns, random.randint(0, 2)))
            now_ns += random.randint(0, 300)

    def _records(
        self, cpu: int, time_ns: int, held: list[tuple[int, int, int]]
    ) -> list[tuple[int, int, int]]:
        """(serial, time, location) as a drain finds them."""
        random, own = self.random, list[tuple[int, int, int]]()
        for _ in range(random.randint(0, MOST - 4)):
            self.serials[cpu] += 1
            time_ns += random.randint(0, 20)
            later_ns = random.choice([0, 0, 0, 60])  # the clock was read late
            place = random.choice([1, 1, 2, 25, 90, 4000])
            record = self.serials[cpu], time_ns + later_ns, place
            fate = random.choice(FATES)
            if fate == "held":
                held.append(record)
            elif fate != "lost":
                back = {"swapped": 1, "nested": 3}.get(fate, 0)
                own.insert(max(0, len(own) - back), record)
            if fate == "twice":
                own.append(record)
        if random.random() < 0.5:
            own += held[:3]
            del held[:3]
        if random.random() < 0.1:
            wide = self.dtype is FULL
            self.serials[cpu] += random.choice([1, 1000, 2**33 if wide else 2**30])
        return own

    def rows(self, cpu: int, own: list[tuple[int, int, int]]) -> Any:
        serials, times_ns, locations = zip(*own, strict=True) if own else ((), (), ())
        rows = make_rows(self.dtype, cpu, serials, times_ns)
        rows["location"] = locations
        return rows

    def queues(self, kind: Any) -> Any:
        order = kind(self.dtype, limit_bytes=self.limit_bytes)
        order.resume(self.released, self.late)
        return order

    def feed(self, order: Any, read: Any) -> None:
        """Drain, and overwrite the rings each time. read: takes what is released."""
        rings = {cpu: Ring(self.dtype, MOST + 8) for cpu in self.cpus}
        again = self.resumes
        for cpus, drain, watermark_ns, more in self.drains:
            for cpu in cpus:
                for view in rings[cpu].lend(self.rows(cpu, drain[cpu])):
                    if again:
                        order.push_again(Batch(cpu, view, 0))
                    else:
                        order.push(Batch(cpu, view, 0))
            read(watermark_ns, more, again)
            again = False
            order.settle()
            for ring in rings.values():
                ring.free()


def told(order: Any) -> tuple[Any, ...]:
    """What a sequencer says of itself."""
    return (
        order.lost, +order.late, +order.killed, order.read, order.released(), order.waiting,
        order.waiting_by_cpu, order.last_ns,
    )  # fmt: skip


def ordered(case: Case, order: Any, clock: list[int]) -> list[Any]:
    """What comes out of a sequencer, with what it says after each drain."""
    found: list[Any] = []

    def see(piece: Any, more: int) -> None:
        if len(piece):
            piece.renumber(piece.first_seq + more)  # the writer put so many entries before
            head = piece.first_seq, piece.span, piece.first_ns, piece.records, piece.start_bytes
            half = len(piece) // 2
            counts = piece.counts(), piece.counts(half), piece.counts(0, half)
            numbers = [piece.numbers(stop) for stop in range(len(piece) + 1)]
            found.append((head, counts, numbers, piece.entries.tobytes()))

    def read(watermark_ns: int, more: int, first: bool) -> None:
        if first:
            see(order.missing_killed({case.cpus[0]: 3, case.cpus[-1]: 1}, 9_000), 0)
        for piece in order.pieces(watermark_ns):
            see(piece, more)
        clock[0] += more * 10**9
        found.append(told(order))

    case.feed(order, read)
    read(FOREVER_NS, 1, False)
    see(order.missing({cpu: serial + 2 for cpu, serial in case.serials.items()}, 99_000), 0)
    return [*found, told(order)]


def in_c(case: Case) -> list[Any]:
    clock = [10**18 + 123]

    def make(dtype: Any, limit_bytes: int) -> Sequencer:
        return Sequencer(dtype, lambda: clock[0], 7, limit_bytes)

    return ordered(case, case.queues(make), clock)


def in_python(case: Case) -> list[Any]:
    clock = [10**18 + 123]

    def make(dtype: Any, limit_bytes: int) -> model.Sequencer:
        return model.Sequencer(dtype, lambda ns: ns + clock[0], 7, limit_bytes)

    return ordered(case, case.queues(make), clock)


def check_entries(random: Random) -> None:
    case = Case(random)
    assert in_c(case) == in_python(case)


def check_pieces(random: Random) -> None:
    """In pieces of any size they are the same bytes."""
    case = Case(random)

    def content(order: Any) -> tuple[bytes, Any]:
        pieces: list[Any] = []
        case.feed(order, lambda watermark_ns, *_: pieces.extend(order.pieces(watermark_ns)))
        counts = sum((piece.counts() for piece in pieces), Counter())
        return b"".join(piece.entries.tobytes() for piece in pieces), (counts, told(order))

    def make_c(dtype: Any, limit_bytes: int) -> Sequencer:
        return Sequencer(dtype, lambda: 10**18, 7, limit_bytes)

    def make_python(dtype: Any, limit_bytes: int) -> model.Sequencer:
        return model.Sequencer(dtype, lambda ns: ns + 10**18, 7, limit_bytes)

    size = random.randint(1, 9) * case.dtype.itemsize
    with mock.patch.object(sequencer, "PIECE_BYTES", size):
        found = content(case.queues(make_c))
    assert found == content(case.queues(make_python))


def check_log(random: Random) -> None:
    """A log's records, CPU by CPU."""
    case, pool = Case(random), Pool()

    def of_c(order: Queues, watermark_ns: int) -> list[Any]:
        by_cpu: dict[int, list[Any]] = {}
        for batch in (LogBatch(*copy) for copy in order.copies(watermark_ns, pool)):
            parts = batch.serials, batch.times_ns, batch.keys_ns, batch.gaps, batch.points
            listed = zip(*(part.tolist() for part in parts), batch.rows.tolist(), strict=True)
            by_cpu.setdefault(batch.cpu, []).extend(listed)
        return sorted(by_cpu.items())

    def of_python(order: model.Queues, watermark_ns: int) -> list[Any]:
        found = []
        for part in order.take(watermark_ns):
            points = part.rows.getfield(np.dtype("=u4"), 16)
            parts = part.serials, part.times_ns, part.keys_ns, part.gaps, points
            listed = zip(*(one.tolist() for one in parts), part.rows.tolist(), strict=True)
            found.append((part.cpu, list(listed)))
        return found

    both: list[list[Any]] = []
    for kind, take in ((Queues, of_c), (model.Queues, of_python)):
        order, found = case.queues(kind), list[Any]()
        case.feed(
            order, lambda to_ns, *_, o=order, t=take, f=found: f.append((t(o, to_ns), told(o)))
        )
        both.append(found)
    assert both[0] == both[1]


CHECKS = [check_entries, check_pieces, check_log]


@pytest.mark.parametrize("check", CHECKS)
@given(random=st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_it_equals_the_model(check: Any, random: Random) -> None:
    check(random)


def test_a_ring_that_is_overwritten_too_early_is_found() -> None:
    for order in (Queues(FULL), Queues(CLASSIC)):
        rows = make_rows(order._dtype, 0, [1, 2, 3], [10, 20, 30])
        order.push(Batch(0, rows, 0))
        rows[1:].view(np.uint8)[:] = 0xDD
        with pytest.raises(AssertionError, match="changed in its ring"):
            list(order.copies(FOREVER_NS, Pool()))


def main(seconds: float, seed: int = 0) -> None:
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        for check in CHECKS:
            try:
                check(Random(seed + count))
            except BaseException:
                print(f"{check.__name__}(Random({seed + count}))", file=sys.stderr)
                raise
        count += 1
    print(f"{len(CHECKS)} checks of {count:,} cases each")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
