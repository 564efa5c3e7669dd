# SPDX-License-Identifier: Apache-2.0
"""What the peer has selectively acknowledged: deduced, as no record has the options of a segment.

Each ACK's effect is known: how many segments are sacked after it, and the highest one. Mostly one
set of segments alone has that effect. Where several have it, the likeliest is taken, and the
script says at that line that it is an assumption.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_MOST_BLOCKS = 4
Block = tuple[int, int]


@dataclass
class Board:
    """Sequence numbers count from the SYN's, so that data begins at 1. segments: what was sent and
    is not acknowledged, each from .. to (exclusive), in order. sacked: begins of those that are.
    retried: begins of those that were sent again, the first of it first."""

    segments: list[Block] = field(default_factory=list)
    sacked: set[int] = field(default_factory=set)
    retried: list[int] = field(default_factory=list)

    def send(self, low: int, high: int, mss: int) -> None:
        """New data, which leaves in segments of mss bytes."""
        step = max(mss, 1)
        for at in range(low, high, step):
            self.segments.append((at, min(at + step, high)))

    def retransmit(self, low: int, size: int) -> None:
        """Data is sent again."""
        for begin, _ in self.segments:
            if low <= begin < low + max(size, 1):
                if begin in self.retried:
                    self.retried.remove(begin)
                self.retried.append(begin)

    def acknowledge(
        self, una: int, sacked: int, highest: int, is_duplicate: bool
    ) -> tuple[list[Block], str]:
        """An ACK, by its effect: una, and how many segments are sacked up to `highest` after it.
        is_duplicate: the peer told of data that it got twice. Returns the blocks of its SACK
        option, and what is assumed, "" if nothing is."""
        lost = [one for one in self.segments if one[0] < una]
        again = [one for one in self.retried if one < una]
        self.segments = [one for one in self.segments if one[1] > una]
        begins = {one[0] for one in self.segments}
        self.sacked &= begins
        self.retried = [one for one in self.retried if one in begins]
        if sacked < len(self.sacked):
            self.sacked = set()  # the kernel forgot them, as after a timeout
        before = set(self.sacked)
        new, assumed = self._new(sacked - len(self.sacked), una, highest)
        self.sacked |= new
        blocks = self._blocks(new)
        if is_duplicate:
            extra = (again or self.retried)[-1:]
            of = [one for one in (*lost, *self.segments) if one[0] in extra]
            if of:
                return [of[0], *blocks][:_MOST_BLOCKS], "which segment the peer got twice"
            return blocks, "the peer got a segment twice, which is left out: none is known"
        if before and not new:
            blocks = self._blocks(before)
        return blocks, assumed

    def _new(self, count: int, una: int, highest: int) -> tuple[set[int], str]:
        if count <= 0:
            return set(), ""
        # The first one has not arrived, or the ACK would acknowledge it.
        free = [one for one in self.segments
                if one[0] not in self.sacked and una < one[0] and one[1] <= highest]  # fmt: skip
        top = max((one[1] for one in self.segments if one[0] in self.sacked), default=0)
        above = [one[0] for one in free if one[1] > top]
        holes = [one[0] for one in free if one[1] <= top]
        if above:
            taken = above[-count:]
            sure = count == 1 or len(taken) == len(above)
            if (left := count - len(taken)) > 0:
                more, assumed = self._fill(holes, left)
                return {*taken, *more}, assumed
            return {*taken}, "" if sure else "the newest segments are in one block"
        more, assumed = self._fill(holes, count)
        return more, assumed

    def _fill(self, holes: list[int], count: int) -> tuple[set[int], str]:
        if len(holes) <= count:
            return {*holes}, ""
        tried = [one for one in self.retried if one in holes]
        if len(tried) == count:
            return {*tried}, ""
        order = [*tried, *(one for one in holes if one not in tried)]
        return {*order[:count]}, "which hole was filled: the first that was sent again"

    def _blocks(self, first: set[int]) -> list[Block]:
        """The sacked segments as ranges; those that have one of `first` come first."""
        made: list[Block] = []
        for low, high in self.segments:
            if low not in self.sacked:
                continue
            if made and made[-1][1] == low:
                made[-1] = (made[-1][0], high)
            else:
                made.append((low, high))
        made.reverse()
        made.sort(key=lambda one: not any(one[0] <= at < one[1] for at in first))
        return made[:_MOST_BLOCKS]
