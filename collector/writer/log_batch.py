# SPDX-License-Identifier: Apache-2.0
"""Records on their way into a log, copied out of the rings' memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.sequencer.ordered import I64, LOCATION_WORD, count_places, head_words
from tcpkmon.collector.writer.written import Place

_TIME = np.dtype("=i8"), 4


@dataclass
class LogBatch:
    """Records of a CPU for the spool, in order of their serials: see Queues.copies().

        serials                 7   8  11  12       before is 6
        gaps                    0   0   2   0
        missing                 12 - 6 - 4 = 2
    """

    cpu: int
    before: int
    rows: NDArray[Any]
    serials: I64
    keys_ns: I64

    def __len__(self) -> int:
        return len(self.serials)

    @property
    def records(self) -> int:
        return len(self)

    @property
    def span(self) -> int:
        """0: a log has no sequence numbers of all CPUs."""
        return 0

    def numbers(self, stop: int) -> int:
        return 0

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes)

    @property
    def times_ns(self) -> I64:
        times_ns: I64 = self.rows.getfield(*_TIME)
        return times_ns

    @property
    def first_ns(self) -> int:
        return int(self.times_ns[0])

    @property
    def last(self) -> dict[int, int]:
        return {self.cpu: int(self.serials[-1])}

    @property
    def missing(self) -> int:
        """How many serials are missing before and between the records."""
        return int(self.serials[-1]) - self.before - len(self)

    @property
    def gaps(self) -> I64:
        """How many serials are missing before each record."""
        return np.diff(self.serials, prepend=self.before) - 1

    @property
    def points(self) -> NDArray[np.uint32]:
        """(n,) the points of the records."""
        return head_words(self.rows)[:, LOCATION_WORD]

    def counts(self, start: int = 0, stop: int | None = None) -> Counter[Place]:
        """Records of a range by (cpu, point)."""
        return count_places(self.cpu, self.points[start:stop])

    def cut(self, most: int) -> Iterator[LogBatch]:
        """Batches of so many records at most."""
        before = self.before
        for start in range(0, len(self), most):
            which = slice(start, start + most)
            some = self.rows[which], self.serials[which], self.keys_ns[which]
            yield LogBatch(self.cpu, before, *some)
            before = int(some[1][-1])
