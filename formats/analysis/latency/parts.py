# SPDX-License-Identifier: Apache-2.0
"""Parts of the time of byte ranges, and whether they are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.latency.joins import Ranges
from tcpkmon.formats.analysis.latency.missing import ALWAYS, NEVER
from tcpkmon.formats.analysis.latency.stages import (
    CHAINS,
    PARTS,
    ROUND_TRIP,
    Chain,
    Link,
    Stage,
    State,
    make_links,
)
from tcpkmon.formats.analysis.latency.survey import Survey

Array = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass
class Measured:
    """n ranges, and what is known of their time.

    ranges: by flow and number. state: (n,) of State. chain: (n,) of Chain. parts: (n,) ns by name
    of PARTS; 0 where the chain lacks it or the state is not MEASURED. whole: (n,) their sum, from
    the first time of the chain to the last.
    """

    ranges: Ranges
    state: NDArray[np.uint8]
    chain: NDArray[np.uint8]
    parts: dict[str, Array]
    whole: Array

    def __len__(self) -> int:
        return len(self.whole)

    @property
    def sizes(self) -> Array:
        """(n,) bytes of each range."""
        return self.ranges.hi - self.ranges.lo


def find_links(survey: Survey) -> dict[Chain, list[Link]]:
    """The links of each chain, by what was recorded."""

    def is_usable(stage: Stage) -> bool:
        # Which TCP_SEND began a call is known by the call alone.
        needed = {stage, Stage.SOCK_SEND} if stage == Stage.TCP_SEND else {stage}
        return all(map(survey.is_recorded, needed))

    return {chain: make_links(chain, is_usable) for chain in CHAINS}


def measure(ranges: Ranges, links: dict[Chain, list[Link]], survey: Survey) -> Measured:
    """The parts of n ranges."""
    count = len(ranges)
    chain = np.where(ranges.has_sender & ranges.has_receiver, Chain.BOTH, Chain.RECEIVER)
    alone = ranges.has_sender & ~ranges.has_receiver
    chain[alone] = np.where(ranges.sent_again[alone] > 0, Chain.SENT_AGAIN, Chain.SENDER)
    state = np.empty(count, np.uint8)
    parts = {name: np.zeros(count, np.int64) for name in PARTS}
    whole = np.zeros(count, np.int64)
    for kind, wanted in links.items():
        at = np.flatnonzero(chain == kind)
        if not len(at):
            continue
        if not wanted:
            state[at] = State.MISSING
            continue
        some = ranges.take(at)
        names = [wanted[0].begin, *(link.end for link in wanted)]
        starts = some.arrived if kind == Chain.RECEIVER else some.written
        state[at] = found = _judge(some, names, survey, starts)
        good = at[found == State.MEASURED]
        for link in wanted:
            spent = ranges.times[link.end][good] - ranges.times[link.begin][good]
            if link.part == ROUND_TRIP:
                parts["network"][good] += spent // 2
                parts["return"][good] += spent - spent // 2
            else:
                parts[link.part][good] += spent
        whole[good] = ranges.times[names[-1]][good] - ranges.times[names[0]][good]
    return Measured(ranges, state, chain.astype(np.uint8), parts, whole)


def _judge(
    ranges: Ranges, names: list[str], survey: Survey, starts: Array
) -> NDArray[np.uint8]:
    """The states of ranges with one chain, whose times have these names.

    starts: (n,) the first byte of which the beginning of the chain is known.
    """
    table = np.stack([ranges.times[name] for name in names])
    known = table >= 0
    # Known times are one run: what is missing is before it, or after it.
    runs = known[0].astype(np.int8) + (known[1:] & ~known[:-1]).sum(0)
    some = known.any(0)
    state = np.full(len(ranges), State.MEASURED, np.uint8)
    rises = np.maximum.accumulate(table, 0)
    state[(known & (rises > table)).any(0) | ranges.overlapping] = State.CONTRADICTORY
    lacking = ~known.all(0)
    state[lacking] = State.MISSING
    one_run = some & (runs == 1)
    ended = one_run & ~known[-1] & (ranges.hi > ranges.over)
    began = (~some | one_run) & ~known[0] & (ranges.lo < starts)
    state[lacking & ended & known[0]] = State.ENDED
    state[lacking & began & (known[-1] | ended | ~some)] = State.BEGAN
    # What is not known may have been long ago, or be still to come.
    begin = np.where(known[0], table[0], ALWAYS)
    # A send call is logged when it returns, which may be long after its bytes were read.
    open_ = ~known[-1] | ((state == State.MISSING) & ~known[0] & (names[0] == "write"))
    end = np.where(open_, NEVER, table[-1])
    state[survey.windows.touch(begin, end)] = State.LOST
    return state
