# SPDX-License-Identifier: Apache-2.0
"""The window of the flight recorder: the last seconds of a capture, in memory.

It is kept in blocks. Each begins with the ledger, so that a dump can begin there:

    evicted        | block        | block        | block        | now
    counted; of    ^ ledger       ^ ledger       ^ ledger
    each connection the last record is kept
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from collector.sequencer.ordered_batch import Ordered
from collector.writer.ledger import Books
from collector.writer.spool import Sized
from collector.writer.states import States
from collector.writer.turn import keep_off
from collector.writer.written import Place
from formats.base.control import Change

BLOCKS = 8
"""A block is at most this part of the window's bytes."""
PIECE_COST = 1 << 10
"""Bytes of memory that a piece takes beside its records, roughly."""


class Kept(Sized, Protocol):
    """A batch of records."""

    @property
    def records(self) -> int: ...


@dataclass(frozen=True)
class Noted:
    """Control entries, or base events of a log, in their place between the records."""

    mono_ns: int
    entries: Sequence[Any]


@dataclass
class Block:
    """A part of the window.

    books: the ledger at its beginning. released: by CPU, the last serial before it, and how many
    of those before were lost. passed: the records before it. off: what was switched off, and the
    budget's step. mono_ns, realtime_ns: the time up to which all records come before it. from_ns:
    when the ledger was read: all that was lost later is lost in the window.
    """

    books: Books
    released: Mapping[int, tuple[int, int]]
    passed: Counter[Place]
    off: Sequence[Change]
    mono_ns: int
    realtime_ns: int
    from_ns: int
    items: list[Kept | Noted] = field(default_factory=list)
    nbytes: int = 0
    logging: Sequence[Any] = ()
    """What a log's file that begins here says of what is logged."""


class Keeper:
    """Keeps the last last_s seconds, and of them the last last_bytes; at least one block.

    dtype: of an entry. One thread uses it.
    """

    def __init__(self, dtype: np.dtype[Any], last_s: float | None, last_bytes: int) -> None:
        self._last_ns = None if last_s is None else int(last_s * 1e9)
        self._last_bytes = last_bytes
        self._states = States(dtype)
        self.blocks: deque[Block] = deque()
        self.passed: Counter[Place] = Counter()
        """All records so far."""
        self.evicted = 0
        """Records that left the window."""
        self.nbytes = 0
        self._off: dict[int, Change] = {}

    @property
    def is_due(self) -> bool:
        """The last block is large: begin() another."""
        return self.blocks[-1].nbytes > self._last_bytes // BLOCKS

    def begin(
        self,
        books: Books,
        released: Mapping[int, tuple[int, int]],
        mono_ns: int,
        realtime_ns: int,
        from_ns: int,
    ) -> None:
        """Begin a block, and evict those that are too old."""
        off = list(self._off.values())
        block = Block(books, released, self.passed.copy(), off, mono_ns, realtime_ns, from_ns)
        self.blocks.append(block)
        while len(self.blocks) > 1 and (
            self.nbytes > self._last_bytes
            or (self._last_ns is not None and self.blocks[1].mono_ns <= mono_ns - self._last_ns)
        ):
            self._evict(self.blocks.popleft())

    def add(self, batch: Kept) -> Counter[Place]:
        """The next records; how many there are of each place."""
        counts = batch.counts()
        self.passed.update(counts)
        beside = getattr(batch, "seqs", getattr(batch, "keys", None))
        self._add(batch, batch.nbytes + getattr(beside, "nbytes", 0) + PIECE_COST)
        return counts

    def note(self, noted: Noted) -> None:
        """The next control entries."""
        keep_off(self._off, [entry for entry in noted.entries if isinstance(entry, Change)])
        self._add(noted, PIECE_COST)

    def states(self, cpu: int, mono_ns: int) -> Ordered | None:
        """The last record before the window of each open connection: see States.repeat()."""
        return self._states.repeat(cpu, mono_ns)[0]

    def _add(self, item: Kept | Noted, cost: int) -> None:
        self.blocks[-1].items.append(item)
        self.blocks[-1].nbytes += cost
        self.nbytes += cost

    def _evict(self, block: Block) -> None:
        self.nbytes -= block.nbytes
        for item in block.items:
            if not isinstance(item, Noted):
                self.evicted += item.records
            if isinstance(item, Ordered):
                self._states.add(item)
