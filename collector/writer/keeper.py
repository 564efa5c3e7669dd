# SPDX-License-Identifier: Apache-2.0
"""The window of the flight recorder: the last seconds of a capture, in memory.

It is kept in blocks. Each begins with the ledger, so that a dump can begin there:

    evicted        | block        | block        | block        | now
    counted; of    ^ ledger       ^ ledger       ^ ledger
    each connection the last record is kept
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tcpkmon.collector.sequencer.ordered import Ordered
from tcpkmon.collector.writer.codec import Batch
from tcpkmon.collector.writer.states import States
from tcpkmon.collector.writer.tape import Account, Item
from tcpkmon.collector.writer.written import Place
from tcpkmon.formats.base.control import Clock

BLOCKS = 8
"""A block is at most this part of the window's bytes."""
PIECE_COST = 1 << 10
"""Bytes of memory that a piece takes beside its records, roughly."""


@dataclass(frozen=True)
class Noted:
    """Items of control in their place between the records."""

    mono_ns: int
    items: Sequence[Item]


@dataclass
class Block:
    """A part of the window.

    account: the ledger at its beginning. passed: the records before it. logging, off: what is
    logged, what is switched off, and the budget's step. clock: the time up to which all records
    come before it. from_ns: when the ledger was read: all that was lost later is lost in the
    window.
    """

    account: Account
    passed: Counter[Place]
    logging: Sequence[Item]
    off: Sequence[Item]
    clock: Clock
    from_ns: int
    items: list[Batch | Noted] = field(default_factory=list)
    nbytes: int = 0


class Keeper:
    """Keeps the last last_s seconds, and of them the last last_bytes; at least one block.

    states: gets what leaves the window. One thread uses it.
    """

    def __init__(self, states: States | None, last_s: float | None, last_bytes: int) -> None:
        self._last_ns = None if last_s is None else int(last_s * 1e9)
        self._last_bytes = last_bytes
        self._states = states
        self.blocks: deque[Block] = deque()
        self.passed: Counter[Place] = Counter()
        """All records so far."""
        self.evicted = 0
        """Records that left the window."""
        self.nbytes = 0

    @property
    def is_due(self) -> bool:
        """The last block is large: begin() another."""
        return self.blocks[-1].nbytes > self._last_bytes // BLOCKS

    def begin(self, block: Block) -> None:
        """Begin a block, and evict those that are too old."""
        self.blocks.append(block)
        oldest_ns = 0 if self._last_ns is None else block.clock.mono_ns - self._last_ns
        while len(self.blocks) > 1 and (
            self.nbytes > self._last_bytes or self.blocks[1].clock.mono_ns <= oldest_ns
        ):
            self._evict(self.blocks.popleft())

    def add(self, batch: Batch) -> Counter[Place]:
        """The next records; how many there are of each place."""
        counts = batch.counts()
        self.passed.update(counts)
        beside = getattr(batch, "cpus", getattr(batch, "serials", None))
        self._add(batch, batch.nbytes + getattr(beside, "nbytes", 0) + PIECE_COST)
        return counts

    def note(self, noted: Noted) -> None:
        """The next control entries."""
        self._add(noted, PIECE_COST)

    def _add(self, item: Batch | Noted, cost: int) -> None:
        self.blocks[-1].items.append(item)
        self.blocks[-1].nbytes += cost
        self.nbytes += cost

    def _evict(self, block: Block) -> None:
        self.nbytes -= block.nbytes
        for item in block.items:
            if not isinstance(item, Noted):
                self.evicted += item.records
            if self._states is not None and isinstance(item, Ordered):
                self._states.add(item)
