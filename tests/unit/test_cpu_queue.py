# SPDX-License-Identifier: Apache-2.0
"""The queues: rows stay in the rings until they are released or settled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.sequencer import sequencer
from tcpkmon.collector.sequencer.ordered import Ordered
from tcpkmon.collector.sequencer.sequencer import FOREVER_NS
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
    order = Whole(dtype, lambda: 10**18)
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
    order = Whole(dtype, lambda: 10**18)
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
    with mock.patch.object(sequencer, "PIECE_BYTES", rows * dtype.itemsize):
        pieces, one = lent(dtype, made, slack_ns)
    whole, other = copied(dtype, made, slack_ns)
    assert content(dtype, pieces) == content(dtype, whole)
    assert (one.lost, one.late, one.read) == (other.lost, other.late, other.read)
    assert all(0 < piece.records <= max(rows, 2) for piece in pieces)
    if pieces:
        found = check_stream(pieces, dtype)
        assert sum(piece.records for piece in pieces) == np.count_nonzero(found["location"] != LOSS)
