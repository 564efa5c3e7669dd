# SPDX-License-Identifier: Apache-2.0
"""The books: every count arrives in its entry, and the sums are those of the parts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tcpkmon.collector.ring.points import ACCOUNT, COUNTERS, ROWS
from tcpkmon.collector.writer.ledger import Books
from tcpkmon.collector.writer.written import Written
from tcpkmon.formats.base.control import (
    EXISTING,
    Checkpoint,
    Collector,
    Cpu,
    Ledger,
    Losses,
    Program,
)


def make_ledger() -> np.ndarray[Any, Any]:
    """Two CPUs; each counter of a used row has a value of its own."""
    ledger = np.zeros((2, ROWS), ACCOUNT)
    for cpu, row in ((0, 1), (1, 1), (1, 0)):
        for number, name in enumerate(COUNTERS):
            ledger[name][cpu, row] = 10_000 * (cpu + 1) + 1000 * row + number
    return ledger


@pytest.fixture
def written() -> Written:
    return Written(
        entries=50, last_seq=60, checkpoints=3, in_file=Counter({(0, 1): 7, (1, EXISTING): 9}),
        queue_full=Counter({(0, 1): 2}), disk_full=Counter({(1, 5): 4}),
        write_error=Counter({(0, 1): 6}),
    )  # fmt: skip


@pytest.fixture
def books() -> Books:
    return Books(
        make_ledger(), np.array([500, 600], np.uint64),
        programs={"a": Program(1, 3, 4, 100, 2000), "b": Program(2, 0, 0, 0, 0),
                  "c": Program(1, 1, 1, 1, 1)},
        read={0: 490, 1: 580}, late={(0, 1): 5, (0, 3): 1}, ring_lost={1: 2**40},
        online=frozenset({0}),
    )  # fmt: skip


def test_every_count_is_in_its_entry(books: Books, written: Written) -> None:
    head, *group = books.checkpoint(written, final=True)
    assert head == Checkpoint(number=3, entries=50, lost=10, group=len(group), final=1)
    places = [(0, 1), (0, 3), (1, 1), (1, 5), (1, EXISTING)]
    for kind in (Ledger, Losses, Collector):
        assert [(e.cpu, e.point) for e in group if isinstance(e, kind)] == places
    assert Ledger(0, 1, 11_000, 11_001, 11_002, 11_003) in group
    assert Losses(0, 1, 11_004, 11_005, 11_006, 11_007, 11_008) in group
    assert Ledger(1, EXISTING, 20_000, 20_001, 20_002, 20_003) in group
    assert Ledger(0, 3, 0, 0, 0, 0) in group
    assert Collector(0, 1, late=5, queue_full=2, disk_full=0, write_error=6, in_file=7) in group
    assert Collector(1, 5, late=0, queue_full=0, disk_full=4, write_error=0, in_file=0) in group
    assert Cpu(0, 500, 490, 0, 6, 1, 0) in group
    assert Cpu(1, 600, 580, 0, 0, 0, 2**32 - 1) in group
    rows = [Program(1, 4, 5, 101, 2001), Program(2, 0, 0, 0, 0)]  # two of one location
    assert [e for e in group if isinstance(e, Program)] == rows


def test_totals_are_the_sums(books: Books, written: Written) -> None:
    totals = books.totals(written)
    ledger = make_ledger()
    assert totals.attempts == ledger["attempts"].sum()
    assert (totals.filtered, totals.unchanged, totals.written, totals.in_file) == (
        ledger["filtered"].sum(), ledger["unchanged"].sum(), ledger["written"].sum(), 16,
    )  # fmt: skip
    assert totals.by_cause == {
        "ring full": ledger["ring_full"].sum(),
        "no ring": ledger["no_ring"].sum(),
        "no turn": ledger["other"].sum(),
        "table full": ledger["table_full"].sum(),
        "no slot": ledger["no_slot"].sum(),
        "late": 6,
        "queue full": 2,
        "disk full": 4,
        "write error": 6,
        "killed": 0,
        "missed by a program": 9,
    }
    assert totals.lost == sum(totals.by_cause.values())
