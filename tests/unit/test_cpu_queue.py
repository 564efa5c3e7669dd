# SPDX-License-Identifier: Apache-2.0
"""The queues: rows stay in the rings until they are released or settled, and are never moved in
vain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.sequencer import part as parts
from tcpkmon.collector.sequencer import sequencer
from tcpkmon.collector.sequencer.buffer_pool import Pool
from tcpkmon.collector.sequencer.cpu_queue import FOREVER_NS, CpuQueue, Queues
from tcpkmon.collector.sequencer.ordered_batch import Ordered
from tcpkmon.collector.sequencer.part import cut
from tests.unit.ordering import Whole
from tests.unit.test_sequencer import CLASSIC, FULL, LOSS, check_stream, make_rows

GARBAGE = 0xDD
MARK_BYTES = 8


class Ring:
    """A ring of few rows, written and read in a circle."""

    def __init__(self, dtype: np.dtype[Any], rows: int) -> None:
        self.memory = np.full((rows, dtype.itemsize + MARK_BYTES), GARBAGE, np.uint8)
        self.rows: np.ndarray[Any, Any] = np.ndarray(
            (rows,), dtype, self.memory.data, 0, (self.memory.shape[1],)
        )
        self.at = 0

    def lend(self, rows: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
        """Write rows, no more than there is room for; views of them, two at the ring's end."""
        opaque = np.dtype(("V", rows.dtype.itemsize))
        for some in np.split(rows, [len(self.rows) - self.at]):
            view = self.rows[self.at : self.at + len(some)]
            view.view(opaque)[:] = some.view(opaque)
            self.at = (self.at + len(some)) % len(self.rows)
            yield view

    def free(self) -> None:
        self.memory[:] = GARBAGE


@st.composite
def drains(draw: st.DrawFn) -> list[list[list[tuple[int, int]]]]:
    """Drains of CPUs of (serial, time): some lost, some in a wrong order, some come late."""
    cpus = draw(st.integers(1, 3))
    serial, now = [0] * cpus, 1000
    held: list[list[tuple[int, int]]] = [[] for _ in range(cpus)]
    found = []
    for _ in range(draw(st.integers(1, 6))):
        drain = []
        for cpu in range(cpus):
            own = []
            time_ns = now
            for _ in range(draw(st.integers(0, 12))):
                serial[cpu] += 1
                time_ns += draw(st.integers(0, 20))
                fate = draw(st.sampled_from(["read"] * 8 + ["lost", "swapped", "held"]))
                if fate == "held":
                    held[cpu].append((serial[cpu], time_ns))
                elif fate != "lost":
                    at = len(own) - (fate == "swapped" and len(own) > 0)
                    own.insert(at, (serial[cpu], time_ns))
            if draw(st.booleans()):
                own += held[cpu]
                held[cpu] = []
            drain.append(own)
        found.append(drain)
        now += draw(st.integers(0, 100))
    return found


def lent(
    dtype: np.dtype[Any], made: list[list[list[tuple[int, int]]]], slack_ns: int
) -> tuple[list[Ordered], Whole]:
    """What comes out when the rings are overwritten after each drain."""
    order = Whole(dtype, lambda mono_ns: mono_ns + 10**18)
    rings = [Ring(dtype, 30) for _ in made[0]]
    out = []
    for drain in made:
        for cpu, own in enumerate(drain):
            serials, times_ns = zip(*own, strict=True) if own else ((), ())
            for view in rings[cpu].lend(make_rows(dtype, cpu, serials, times_ns)):
                order.push(Batch(cpu, view, 0))
        latest = max((time_ns for own in drain for _, time_ns in own), default=0)
        out.extend(order.pieces(latest - slack_ns))
        order.settle()
        for ring in rings:
            ring.free()
    out.extend(order.pieces(FOREVER_NS))
    return out, order


def copied(
    dtype: np.dtype[Any], made: list[list[list[tuple[int, int]]]], slack_ns: int
) -> tuple[list[Ordered], Whole]:
    """The same of rows that nobody overwrites, each release in one piece."""
    order = Whole(dtype, lambda mono_ns: mono_ns + 10**18)
    out = []
    for drain in made:
        for cpu, own in enumerate(drain):
            serials, times_ns = zip(*own, strict=True) if own else ((), ())
            order.push(Batch(cpu, make_rows(dtype, cpu, serials, times_ns), 0))
        latest = max((time_ns for own in drain for _, time_ns in own), default=0)
        out.append(order.release(latest - slack_ns))
    out.append(order.release(FOREVER_NS))
    return out, order


def content(dtype: np.dtype[Any], parts: list[Ordered]) -> bytes:
    return b"".join(part.entries.view(("V", dtype.itemsize)).tobytes() for part in parts)


@given(drains(), st.booleans(), st.integers(0, 200), st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_nothing_points_into_a_ring_that_was_given_back(
    made: list[list[list[tuple[int, int]]]], full: bool, slack_ns: int, rows: int
) -> None:
    dtype = FULL if full else CLASSIC
    with (
        mock.patch.object(sequencer, "PIECE_BYTES", rows * dtype.itemsize),
        mock.patch.object(sequencer, "_ROWS_PER_CPU", 1),
    ):
        pieces, one = lent(dtype, made, slack_ns)
    whole, other = copied(dtype, made, slack_ns)
    assert content(dtype, pieces) == content(dtype, whole)
    assert (one.lost, one.late, one.read) == (other.lost, other.late, other.read)
    assert all(0 < piece.records <= max(rows, len(made[0])) for piece in pieces)
    if pieces:
        found = check_stream(pieces, dtype)
        assert sum(piece.records for piece in pieces) == np.count_nonzero(found["location"] != LOSS)


def queue_of(*drains: list[int]) -> tuple[CpuQueue, list[np.ndarray[Any, Any]]]:
    """A queue that was given views of rings, and these."""
    queue = CpuQueue(0, np.dtype(("V", FULL.itemsize)))
    views = []
    for serials in drains:
        views += Ring(FULL, 1000).lend(make_rows(FULL, 0, serials, np.array(serials) * 10))
        queue.push(views[-2] if len(views[-2]) else views[-1])
    return queue, views


def serials_of(queue: CpuQueue) -> list[int]:
    return [int(serial) for chunk in queue.chunks for serial in chunk.serials]


def test_what_is_in_order_is_not_copied() -> None:
    queue, views = queue_of([1, 2, 3], [5, 9])
    assert [np.shares_memory(chunk.rows, views[0]) for chunk in queue.chunks] == [True, False]
    part = queue.take(30)
    assert part is not None and np.shares_memory(part.rows, views[0])
    queue.settle()
    assert not any(np.shares_memory(chunk.rows, view) for chunk in queue.chunks for view in views)
    before = queue.chunks[0].rows
    queue.settle()
    assert queue.chunks[0].rows is before


def test_only_what_changes_places_is_copied() -> None:
    queue, views = queue_of([*range(1, 101), 102, 101, *range(103, 201)])
    assert serials_of(queue) == list(range(1, 201))
    assert [len(chunk) for chunk in queue.chunks] == [100, 2, 98]
    shared = [np.shares_memory(chunk.rows, views[0]) for chunk in queue.chunks]
    assert shared == [True, False, True]


def test_a_record_of_the_drain_before_takes_its_place() -> None:
    queue, views = queue_of([1, 2, 3], [4, 5, 7], [6, 8, 9])
    assert serials_of(queue) == list(range(1, 10))
    rows = np.concatenate([chunk.rows for chunk in queue.chunks]).view(FULL)
    assert rows["serial"].tolist() == list(range(1, 10))
    assert np.shares_memory(queue.chunks[0].rows, views[0])


def test_keys_never_fall() -> None:
    queue = CpuQueue(0, np.dtype(("V", FULL.itemsize)))
    queue.push(make_rows(FULL, 0, [1, 2, 4], [50, 40, 60]))
    queue.push(make_rows(FULL, 0, [3, 5], [55, 45]))
    keys = np.concatenate([chunk.keys_ns for chunk in queue.chunks])
    assert keys.tolist() == [50, 50, 55, 60, 60]
    part = queue.take(56)
    assert part is not None
    assert (part.serials.tolist(), part.times_ns.tolist()) == ([1, 2, 3], [50, 40, 55])
    queue.push(make_rows(FULL, 0, [6], [10]))
    assert {int(key) for chunk in queue.chunks for key in chunk.keys_ns} == {60}


@pytest.mark.parametrize(
    ("rows", "sizes"), [(1, [1] * 8), (3, [3, 3, 2]), (4, [4, 4]), (7, [4, 4]), (100, [8])]
)
def test_copies_of_a_part(rows: int, sizes: list[int]) -> None:
    waiting = Queues(FULL)
    ring = Ring(FULL, 20)
    for serials in ([1, 2, 5, 6, 7], [8, 11, 12]):
        for view in ring.lend(make_rows(FULL, 3, serials, serials)):
            waiting.push(Batch(3, view, 0))
    (part,) = waiting.take(FOREVER_NS)
    with mock.patch.object(parts, "COPY_BYTES", rows * FULL.itemsize):
        pieces = list(part.copies(Pool()))
    expected = (part.gaps.tolist(), part.times_ns.tolist())
    ring.free()
    assert [len(piece) for piece in pieces] == sizes
    assert all(piece.rows.flags.c_contiguous and piece.cpu == 3 for piece in pieces)
    found = [int(s) for piece in pieces for s in piece.rows.view(FULL)["serial"]]
    assert found == [1, 2, 5, 6, 7, 8, 11, 12]
    assert [int(s) for piece in pieces for s in piece.serials] == found
    gaps = [int(gap) for piece in pieces for gap in piece.gaps]
    times = [int(time_ns) for piece in pieces for time_ns in piece.times_ns]
    assert (gaps, times) == expected


@given(st.lists(st.integers(0, 5), max_size=5), st.integers(0, 25), st.integers(0, 25))
def test_cut(sizes: list[int], start: int, stop: int) -> None:
    numbers = np.arange(sum(sizes))
    arrays = np.split(numbers, np.cumsum(sizes)[:-1]) if sizes else []
    found = [int(n) for array in cut(arrays, start, stop) for n in array]
    assert found == numbers[start:stop].tolist()
