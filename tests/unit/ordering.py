# SPDX-License-Identifier: Apache-2.0
"""What tests of the sequencer ask beyond what a capture asks: whole releases, and whose entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.sequencer import sequencer
from tcpkmon.collector.sequencer.ordered import Ordered, opaque
from tcpkmon.collector.sequencer.sequencer import FOREVER_NS, Sequencer
from tcpkmon.formats.base.control import ANY_CPU, Control, Loss, LossCause, words_view

NO_CPU = ANY_CPU


class Whole(Sequencer):
    """A sequencer that gives each release in one piece."""

    def release(self, watermark_ns: int) -> Ordered:
        with mock.patch.object(sequencer, "PIECE_BYTES", FOREVER_NS):
            return next(self.pieces(watermark_ns), None) or self._control([], [], 0)

    def finish(self, serials: Mapping[int, int], mono_ns: int = 0) -> Ordered:
        released = self.release(FOREVER_NS)
        return joined(released, self.missing(self.tails(serials), mono_ns, LossCause.KERNEL))

    def control(self, entries: Iterable[Control], mono_ns: int) -> Ordered:
        """Control entries with the next sequence numbers, all of one moment."""
        listed = list(entries)
        return self._control(listed, [0] * len(listed), mono_ns)


def seqs_of(ordered: Ordered) -> NDArray[np.int64]:
    """The sequence number of each entry, by the LOSS entries: these count the numbers before."""
    rows = ordered.entries
    words = words_view(rows).astype(np.int64)
    lost = np.where(rows["location"] == Loss.location, words[:, 2] + (words[:, 3] << 32), 0)
    seqs: NDArray[np.int64] = ordered.first_seq - 1 + np.cumsum(lost + 1)
    return seqs


def joined(one: Ordered, other: Ordered) -> Ordered:
    """Two batches as one; `other` has the numbers right after `one`."""
    return Ordered(
        _join_rows((one.entries, other.entries), one.entries.dtype),
        np.concatenate((one.cpus, other.cpus)),
        np.concatenate((one.places, other.places)),
        one.first_seq,
        one.span + other.span,
        one.first_ns if len(one) else other.first_ns,
        one.records + other.records,
    )


def _join_rows(parts: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Rows of several arrays, one after the other, with all their bytes."""
    return np.concatenate([part.view(opaque(dtype)) for part in parts]).view(dtype)
