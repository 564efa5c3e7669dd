# SPDX-License-Identifier: Apache-2.0
"""The clock checks, the same for every record format: pairs of readings, and the order of times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tcpkmon.formats.verify.report import I64, U64, Mask

NESTING_TOLERANCE_NS = 1_000_000_000
"""How far time may run back from one record to the next: a program may be interrupted, or
preempted, between its clock and its serial, on a virtual CPU that is taken away meanwhile."""
STEP_NS = 1_000_000
"""A change of the clocks' difference beyond this is a step: somebody set the clock."""
STEP_TOLERANCE_NS = 4 * STEP_NS
"""A pair's step may be told from a reading that was not written, which is this near at most."""


def runs_back(times: I64, before: int | None) -> tuple[I64, I64]:
    """Where times (one at least) run back by too much, and by how many ns.

    before: the time before the first one, None if there is none.
    """
    step = np.diff(times, prepend=times[:1] if before is None else np.int64(before))
    places = np.flatnonzero(step < -NESTING_TOLERANCE_NS)
    return places, -step[places]


@dataclass(frozen=True)
class Judged:
    """What became of n clock pairs; offset: real time less monotonic time [ns].

    found: by how much the offset changed since the pair before; off: where that is not the step
    that the pair tells; back: where the monotonic clock runs back, by back_ns.
    """

    offset: I64
    found: I64
    off: Mask
    back: Mask
    back_ns: U64


class ClockPairs:
    """Follows the readings of both clocks: each pair is the one before it and the step it tells.

    pairs: how many there were; steps: how many told that the clock was set.
    """

    def __init__(self) -> None:
        self.pairs = 0
        self.steps = 0
        self._mono = np.zeros(0, np.uint64)  # of the last pair, 0 or 1 long
        self._offset = np.zeros(0, np.int64)

    def feed(
        self, mono: U64, real: U64, step: I64, room: I64, tells: Mask, follows: Mask
    ) -> Judged:
        """The next pairs [ns], one at least. room: their uncertainty; tells: which tell a step;
        follows: which are known to be next to the pair before."""
        offset = (real - mono).view(np.int64)
        before_mono = np.concatenate((self._mono, mono))[: len(mono)]
        before = np.concatenate((self._offset, offset))[: len(offset)]
        if not self.pairs:  # the first pair of all has nothing before it
            before_mono = np.concatenate((mono[:1], mono[:-1]))
            before = np.concatenate((offset[:1], offset[:-1]))
            follows = follows & (np.arange(len(follows)) > 0)
        found = offset - before
        off, room = step - found, room + STEP_TOLERANCE_NS
        self.pairs += len(mono)
        self.steps += int(np.count_nonzero(tells & (np.abs(step) > STEP_NS)))
        self._mono, self._offset = mono[-1:], offset[-1:]
        return Judged(
            offset,
            found,
            tells & follows & ((off > room) | (off < -room)),
            tells & (mono < before_mono),
            before_mono - mono,
        )
