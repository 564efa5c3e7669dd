# SPDX-License-Identifier: Apache-2.0
"""A capture's clock pairs follow from one another, and entries' times from the pairs."""

from __future__ import annotations

from itertools import islice

import numpy as np

from tcpkmon.formats.base import control
from tcpkmon.formats.base.limits import MOST_FAR, MOST_JUMPS
from tcpkmon.formats.verify.clock import NESTING_TOLERANCE_NS, ClockPairs, runs_back
from tcpkmon.formats.verify.psc.entries import ControlRows
from tcpkmon.formats.verify.report import I64, Problems

TIME_TOLERANCE_NS = 10_000_000
"""Between `time` less `time_ns` and the clock pairs: the clock's slewing between two pairs, the
pairs' uncertainty, and the microsecond."""


class ClockCheck:
    """Follows START and CLOCK entries through the file; judges entries' times at its end."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._at = -1
        self._least: int | None = None
        self._most: int | None = None
        self._back_ns = 0
        self._last_ns: int | None = None
        self._far: list[tuple[int, int]] = []  # (time - time_ns, entry)
        self._jumps: list[tuple[int, int]] = []  # (ns, entry)
        self._last_time: int | None = None
        self.pairs = ClockPairs()

    def feed(self, rows: ControlRows, unsure_at: I64) -> None:
        """Control rows of a segment; `unsure_at`: entries of LOSSes that may hide a pair."""
        is_start = rows.location == control.Start.location
        pairs = rows.take(is_start | (rows.location == control.Clock.location))
        if not len(pairs):
            return
        step = (pairs.words[:, 5] | (pairs.words[:, 6] << np.uint64(32))).view(np.int64)
        before_at = np.concatenate((np.array([self._at]), pairs.index[:-1]))
        hidden = np.searchsorted(unsure_at, pairs.index) > np.searchsorted(unsure_at, before_at)
        clock = pairs.location == control.Clock.location
        room = pairs.words[:, 4].astype(np.int64)
        mono, real = pairs.pairs[:, 0], pairs.pairs[:, 1]
        found = self.pairs.feed(mono, real, step, room, clock, ~hidden)
        least, most = int(found.offset.min()), int(found.offset.max())
        self._least = least if self._least is None else min(least, self._least)
        self._most = most if self._most is None else max(most, self._most)
        self._back_ns -= int(step[clock & (step < 0)].sum())
        self._at = int(pairs.index[-1])
        add_each = self._problems.add_each
        add_each(
            np.flatnonzero(found.off),
            pairs.index,
            lambda at: (
                f"clock pair says a step of {step[at]} ns, its values one of {found.found[at]} ns"
            ),
            rest=True,
        )
        strange = np.flatnonzero(clock & (pairs.callvalue != 0))
        add_each(strange, pairs.index, lambda _: "the callvalue of a clock pair should be zero")
        what = "the monotonic clock of this pair runs back"
        add_each(np.flatnonzero(found.back), pairs.index, lambda _: what)

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

    def feed_merged(self, index: I64, time_ns: I64) -> None:
        """Records of all CPUs: the file has them in the order of time, but for interrupts."""
        if not len(index):
            return
        places, by_ns = runs_back(time_ns, self._last_ns)
        self._last_ns = int(time_ns[-1])
        self._problems.add_each(
            np.arange(len(places)),
            index[places],
            lambda at: f"time_ns runs back by {by_ns[at]} ns: the records are not in order",
            rest=True,
        )

    def feed_time(self, index: I64, time: I64) -> None:
        """Snapshots without time_ns, in order of the file: `time` runs on but for clock steps."""
        if not len(index):
            return
        places, by_ns = runs_back(time, self._last_time)
        room = MOST_JUMPS - len(self._jumps)
        jumps = zip(by_ns.tolist(), index[places].tolist(), strict=True)
        self._jumps.extend(islice(jumps, max(room, 0)))
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
