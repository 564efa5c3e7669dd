# SPDX-License-Identifier: Apache-2.0
"""Verify's third check: clock pairs follow from one another, and entries' times from them."""

from __future__ import annotations

import numpy as np

from formats.base import control
from formats.verify.entries import I64, ControlRows, Mask
from formats.verify.report import Problems
from formats.verify.serials import NESTING_TOLERANCE_NS

TIME_TOLERANCE_NS = 10_000_000
"""Between `time` less `time_ns` and the clock pairs: the clock's slewing between two pairs, the
pairs' uncertainty, and the microsecond."""


STEP_NS = 1_000_000
"""A change of the clocks' difference beyond this is a step: somebody set the clock."""
STEP_TOLERANCE_NS = 4 * STEP_NS
"""A pair's step may be told from a reading that was not written, which is this near at most."""
MOST_FAR = 1 << 14


class ClockCheck:
    """Follows START and CLOCK entries through the file; judges entries' times at its end."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._mono = np.zeros(0, np.uint64)  # of the last pair, 0 or 1 long
        self._offset = np.zeros(0, np.int64)
        self._at = -1
        self._least: int | None = None
        self._most: int | None = None
        self._back_ns = 0
        self._far: list[tuple[int, int]] = []  # (time - time_ns, entry)
        self._jumps: list[tuple[int, int]] = []  # (ns, entry)
        self._last_time: int | None = None
        self.pairs = 0
        self.steps = 0

    def feed(self, rows: ControlRows, unsure_at: I64) -> None:
        """Control rows of a segment; `unsure_at`: entries of LOSSes that may hide a pair."""
        is_start = rows.location == control.Start.location
        pairs = rows.take(is_start | (rows.location == control.Clock.location))
        if not len(pairs):
            return
        mono = pairs.pairs[:, 0]
        offset = (pairs.pairs[:, 1] - mono).view(np.int64)
        self.pairs += len(pairs)
        least, most = int(offset.min()), int(offset.max())
        self._least = least if self._least is None else min(least, self._least)
        self._most = most if self._most is None else max(most, self._most)
        told = (pairs.words[:, 5] | (pairs.words[:, 6] << np.uint64(32))).view(np.int64)
        before_at = np.concatenate((np.array([self._at]), pairs.index[:-1]))
        before_mono = np.concatenate((self._mono, mono))[: len(mono)]
        before = np.concatenate((self._offset, offset))[: len(offset)]
        if not len(self._mono):  # the first pair of all has nothing before it
            before_mono = np.concatenate((mono[:1], mono[:-1]))
            before = np.concatenate((offset[:1], offset[:-1]))
        clock = pairs.location == control.Clock.location
        hidden = np.searchsorted(unsure_at, pairs.index) > np.searchsorted(unsure_at, before_at)
        follows = clock & ~hidden & (before_at >= 0)
        room = STEP_TOLERANCE_NS + pairs.words[:, 4].astype(np.int64)
        self._steps(pairs, told, offset - before, follows, room)
        for at in np.flatnonzero(clock & (pairs.callvalue != 0))[:8]:
            self._problems.add(pairs.index[at], "the callvalue of a clock pair should be zero")
        for at in np.flatnonzero(clock & (mono < before_mono))[:8]:
            self._problems.add(pairs.index[at], "the monotonic clock of this pair runs back")
        changed = told[clock]
        self.steps += int(np.count_nonzero(np.abs(changed) > STEP_NS))
        self._back_ns -= int(changed[changed < 0].sum())
        self._mono, self._offset, self._at = mono[-1:], offset[-1:], int(pairs.index[-1])

    def _steps(self, pairs: ControlRows, told: I64, found: I64, follows: Mask, room: I64) -> None:
        off = told - found
        wrong = np.flatnonzero(follows & ((off > room) | (off < -room)))
        for at in wrong[:8]:
            self._problems.add(
                pairs.index[at],
                f"clock pair says a step of {told[at]} ns, its values one of {found[at]} ns",
            )
        self._problems.count(max(0, len(wrong) - 8))

    def feed_both(self, index: I64, time: I64, time_ns: I64) -> None:
        """Entries that have both times: the difference must lie within what the pairs say.

        Those that lie beyond all pairs so far are judged again at the end.
        """
        offset = time - time_ns
        if self._least is None or self._most is None:
            far = np.arange(len(offset))
        else:
            low, high = self._least - TIME_TOLERANCE_NS, self._most + TIME_TOLERANCE_NS
            far = np.flatnonzero((offset < low) | (offset > high))
        room = MOST_FAR - len(self._far)
        if room > 0 and len(far):
            far = far[:room]
            self._far.extend(zip(offset[far].tolist(), index[far].tolist(), strict=True))

    def feed_time(self, index: I64, time: I64) -> None:
        """Snapshots without time_ns, in order of the file: `time` runs on but for clock steps."""
        if not len(index):
            return
        first = int(time[0]) if self._last_time is None else self._last_time
        step = np.diff(time, prepend=np.int64(first))
        for at in np.flatnonzero(step < -NESTING_TOLERANCE_NS):
            if len(self._jumps) < 64:
                self._jumps.append((-int(step[at]), int(index[at])))
        self._last_time = int(time[-1])

    def finish(self) -> None:
        """The whole file was fed: judge the times against all the clock pairs in it."""
        for jump_ns, entry in self._jumps:
            if jump_ns > self._back_ns + NESTING_TOLERANCE_NS:
                self._problems.add(entry, f"time runs back by {jump_ns} ns without a clock step")
        if self._least is None or self._most is None:
            return
        for offset, entry in self._far:
            beyond = max(self._least - offset, offset - self._most)
            if beyond > TIME_TOLERANCE_NS:
                self._problems.add(
                    entry, f"time and time_ns are {beyond} ns further apart than any clock pair"
                )
