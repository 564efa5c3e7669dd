# SPDX-License-Identifier: Apache-2.0
"""Records on their way into a log, and copies of those that are in a ring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.sequencer.buffer_pool import Pool
from collector.sequencer.cpu_queue import COPY_BYTES, Part
from collector.sequencer.ordered_batch import LOCATION_WORD, count_places, head_words
from collector.writer.written import Place


@dataclass(frozen=True)
class LogBatch:
    """Records of several CPUs for the spool, each CPU's in order of its serials."""

    parts: Sequence[Part]

    def __len__(self) -> int:
        return sum(len(part.rows) for part in self.parts)

    @property
    def records(self) -> int:
        return len(self)

    @property
    def span(self) -> int:
        """0: a log has no sequence numbers of all CPUs."""
        return 0

    @property
    def nbytes(self) -> int:
        return sum(int(part.rows.nbytes) for part in self.parts)

    def counts(self) -> Counter[Place]:
        """Records by (cpu, point)."""
        total: Counter[Place] = Counter()
        for part in self.parts:
            total.update(count_places(part.cpu, points_of(part.rows)))
        return total


def copies(parts: Iterable[Part], pool: Pool) -> Iterator[LogBatch]:
    """Batches of about COPY_BYTES, copied out of the rings' memory."""
    pieces: list[Part] = []
    size = 0
    for part in parts:
        for piece in part.copies(pool):
            pieces.append(piece)
            size += piece.rows.nbytes
            if size >= COPY_BYTES // 2:
                yield LogBatch(pieces)
                pieces, size = [], 0
    if pieces:
        yield LogBatch(pieces)


def points_of(rows: NDArray[Any]) -> NDArray[np.uint32]:
    """(n,) the points of records."""
    if rows.flags.c_contiguous:
        return head_words(rows)[:, LOCATION_WORD]
    points: NDArray[np.uint32] = rows.getfield(np.dtype(np.uint32), 4 * LOCATION_WORD)
    return points
