# SPDX-License-Identifier: Apache-2.0
"""Records on their way into a log, and copies of those that are in a ring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.sequencer.buffer_pool import Pool
from tcpkmon.collector.sequencer.ordered_batch import LOCATION_WORD, count_places, head_words
from tcpkmon.collector.sequencer.part import Part
from tcpkmon.collector.writer.written import Place, Tally


class LogBatch(Part):
    """Records of a CPU for the spool, in order of their serials."""

    @property
    def records(self) -> int:
        return len(self)

    @property
    def span(self) -> int:
        """0: a log has no sequence numbers of all CPUs."""
        return 0

    def numbers(self, stop: int) -> int:
        return 0

    def span_from(self, start: int) -> int:
        return 0

    @property
    def nbytes(self) -> int:
        return sum(int(chunk.rows.nbytes) for chunk in self.chunks)

    @property
    def first_ns(self) -> int:
        return int(self.chunks[0].times_ns[0])

    @property
    def last(self) -> dict[int, int]:
        return {self.cpu: int(self.serials[-1])}

    @property
    def points(self) -> NDArray[np.uint32]:
        """(n,) the points of the records."""
        rows: NDArray[Any] = self.rows
        if rows.flags.c_contiguous:
            return head_words(rows)[:, LOCATION_WORD]
        points: NDArray[np.uint32] = rows.getfield(np.dtype(np.uint32), 4 * LOCATION_WORD)
        return points

    def counts(self, start: int = 0, stop: int | None = None) -> Counter[Place]:
        """Records of a range by (cpu, point)."""
        return count_places(self.cpu, self.points[start:stop])

    def tally(self, tally: Tally) -> None:
        tally.add(self.cpu, self.points)

    def cut(self, most: int) -> Iterator[LogBatch]:
        """Batches of so many records at most."""
        if len(self) <= most:
            yield self
            return
        (whole,) = self.chunks
        for start in range(0, len(self), most):
            yield LogBatch(self.cpu, [whole.part(start, start + most)], self.before)


def copies(parts: Iterable[Part], pool: Pool) -> Iterator[LogBatch]:
    """Batches of about COPY_BYTES, copied out of the rings' memory."""
    for part in parts:
        for piece in part.copies(pool):
            yield LogBatch(piece.cpu, piece.chunks, piece.before)
