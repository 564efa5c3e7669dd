# SPDX-License-Identifier: Apache-2.0
"""What tests of the sequencer ask beyond what a capture asks: whole releases, and whose entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.sequencer.cpu_queue import FOREVER_NS
from tcpkmon.collector.sequencer.ordered_batch import Ordered, Origin, opaque
from tcpkmon.collector.sequencer.sequencer import Sequencer
from tcpkmon.formats.base.control import Control

NO_CPU = 0xFFFF


class Whole(Sequencer):
    """A sequencer that gives each release in one piece."""

    def release(self, watermark_ns: int) -> Ordered:
        whole = next(self._merge(self.take(watermark_ns), FOREVER_NS), None)
        return whole or self._control([], np.empty(0, np.int64), 0)

    def finish(self, serials: Mapping[int, int], mono_ns: int | None = None) -> Ordered:
        return joined(self.release(FOREVER_NS), self.missing(serials, mono_ns))

    def control(self, entries: Iterable[Control], mono_ns: int) -> Ordered:
        """Control entries with the next sequence numbers, all of one moment."""
        listed = list(entries)
        first = self._first()
        return self._control(listed, np.arange(first, first + len(listed), dtype=np.int64), mono_ns)

    @property
    def last_serial(self) -> dict[int, int]:
        """By CPU, the serial up to which all were released or counted as lost."""
        return {number: cpu.decided for number, cpu in self._cpus.items()}


def cpus_of(ordered: Ordered) -> NDArray[np.uint16]:
    """The CPU of each entry, NO_CPU for control entries."""
    cpus = np.full(len(ordered), NO_CPU, np.uint16)
    for origin in ordered.origins:
        cpus[origin.where] = origin.cpu
    return cpus


def joined(one: Ordered, other: Ordered) -> Ordered:
    """Two batches as one; `other` has the numbers right after `one`."""
    moved = [Origin(o.cpu, o.where + len(one), o.locations) for o in other.origins]
    return Ordered(
        _join_rows((one.entries, other.entries), one.entries.dtype),
        np.concatenate((one.seqs, other.seqs)),
        [*one.origins, *moved],
        one.first_seq,
        one.span + other.span,
        one.first_ns if len(one) else other.first_ns,
    )


def _join_rows(parts: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Rows of several arrays, one after the other, with all their bytes."""
    return np.concatenate([part.view(opaque(dtype)) for part in parts]).view(dtype)
