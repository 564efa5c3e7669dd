# SPDX-License-Identifier: Apache-2.0
"""Records of one CPU in order of serials, as the queues hand them to the merge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.sequencer.buffer_pool import Pool, even
from tcpkmon.collector.sequencer.ordered_batch import I64

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
