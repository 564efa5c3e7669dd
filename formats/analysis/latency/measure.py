# SPDX-License-Identifier: Apache-2.0
"""Measures logs in bounded memory: joins piece by piece, and puts out what has ended its way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.latency.axis import Flows
from tcpkmon.formats.analysis.latency.joins import Ranges, join
from tcpkmon.formats.analysis.latency.missing import NEVER
from tcpkmon.formats.analysis.latency.parts import Measured, find_links, measure
from tcpkmon.formats.analysis.latency.records import PIECE, Events, Records, join_events
from tcpkmon.formats.analysis.latency.stages import Stage
from tcpkmon.formats.analysis.latency.survey import LONG_CALL_NS, make_survey
from tcpkmon.formats.analysis.latency.thinking import Thinking
from tcpkmon.formats.analysis.log import Log
from tcpkmon.formats.base.limits import MOST_OPEN

_HOLD_NS = LONG_CALL_NS + 1_000_000
"""Records may come so much later than their times say."""
Array = NDArray[np.int64]


class Latency:
    """The byte ranges of a log: iterate once; then `records` has counts.

    survey: what the log holds. links: the parts that can be told apart. Raises UsageError for a
    log of another schema, DamagedError for one that holds nonsense.
    """

    def __init__(self, log: Log, piece: int = PIECE) -> None:
        self.survey = make_survey(log.readers)
        self.links = find_links(self.survey)
        self.records = Records(log.readers, self.survey, piece)
        self.thinking = Thinking(self.survey)
        self._most_open = min(MOST_OPEN, 4 * piece)
        self._flows = Flows(len(self.survey.sender))
        self._over = np.full(len(self.survey.sender), -1, np.int64)

    def __iter__(self) -> Iterator[Measured]:
        """The ranges, each once, by flow and number within a piece."""
        open_: list[Events] = []
        for new, limit_ns in self.records:
            self.thinking.add(new, limit_ns)
            given = join_events([*open_, new])
            given = given.take(np.argsort(given.time, kind="stable"))
            if not len(given):
                continue
            measured, events = self._step(given, limit_ns)
            open_ = [events]
            if len(measured):
                yield measured
        self.thinking.finish()
        if open_ and len(open_[0]):
            given = open_[0].take(np.argsort(open_[0].time, kind="stable"))
            measured, _ = self._step(given, NEVER, to_end=True)
            if len(measured):
                yield measured

    def _step(self, given: Events, limit_ns: int, to_end: bool = False) -> tuple[Measured, Events]:
        """Put out what has ended; returns that, and the events that the rest still needs."""
        ranges, events = join(given, self._flows, self.survey)
        self._come_further(events, limit_ns - _HOLD_NS)
        until = self._over.copy()
        if to_end:
            until[:] = NEVER
        else:
            self._give_up_oldest(events, until)
        ready = ranges.take(ranges.hi <= until[ranges.flow])
        done = self._flows.done
        np.maximum.at(done, ready.flow, ready.hi)
        measured = measure(ready, self.survey, self._flows, self.links, self._over)
        return measured, self._still_needed(events, ready)

    def _come_further(self, events: Events, before_ns: int) -> None:
        """How far each flow has been read and acknowledged: no more records of it will come."""
        survey = self.survey
        marks = []
        has_sender, has_receiver = survey.sender >= 0, survey.receiver >= 0
        reads = next(filter(survey.is_recorded, (Stage.SOCK_RECV, Stage.TCP_RECV)), Stage.IP_RECV)
        for stage, matters in (
            (reads, has_receiver),
            (Stage.ACK, has_sender & (survey.is_recorded(Stage.IP_RECV) | ~has_receiver)),
        ):
            mark = np.where(matters, -1, NEVER)
            at = np.flatnonzero((events.stage == stage) & (events.time < before_ns))
            at = at[matters[events.flow[at]]]
            np.maximum.at(mark, events.flow[at], events.hi[at])
            marks.append(mark)
        come = np.minimum(*marks)
        self._over = np.maximum(self._over, np.where(come == NEVER, -1, come))

    def _give_up_oldest(self, events: Events, until: Array) -> None:
        """Where too many events wait, put out flows to their ends, the longest silent first."""
        waiting = np.flatnonzero(events.hi > until[events.flow])
        if len(waiting) <= self._most_open:
            return
        counts = np.bincount(events.flow[waiting], minlength=len(until))
        latest = np.zeros(len(until), np.int64)
        np.maximum.at(latest, events.flow[waiting], events.time[waiting])
        order = np.argsort(latest, kind="stable")
        order = order[counts[order] > 0]
        left = len(waiting) - np.cumsum(counts[order])
        enough = int(np.searchsorted(-left, -(self._most_open // 2))) + 1
        until[order[:enough]] = NEVER

    def _still_needed(self, events: Events, ready: Ranges) -> Events:
        done = self._flows.done[events.flow]
        is_open = events.hi > done
        # A send call needs the TCP_SEND of its first byte.
        calls = np.flatnonzero((events.stage == Stage.SOCK_SEND) & is_open)
        since = self._flows.done.copy()
        np.minimum.at(since, events.flow[calls], events.lo[calls])
        keep = np.where(events.stage == Stage.TCP_SEND, events.lo >= since[events.flow], is_open)
        is_anchor = events.stage == Stage.ANCHOR
        keep[is_anchor] |= done[is_anchor] < 0
        # The time at which the last hole before the open bytes was filled.
        held = events.stage == Stage.HELD
        keep[held] = False
        kept = events.take(keep)
        return join_events([kept, self._holds(events.take(held), ready, kept)])

    def _holds(self, before: Events, ready: Ranges, kept: Events) -> Events:
        """When all bytes that were put out had come, for each flow with open arrivals.

        flags 0: surely; 1: perhaps, as their arrival is not known, but when they were in order is.
        """
        complete = ready.times["complete"]
        sure = complete >= 0
        waiting = np.unique(kept.flow[kept.stage <= Stage.IP_RECV].astype(np.int64))
        parts = []
        for flag, mine, came in ((0, sure, complete), (1, ~sure, ready.come)):
            old = before.flags == flag
            latest = np.full(len(self._flows.done), -1, np.int64)
            np.maximum.at(latest, before.flow[old], before.time[old])
            np.maximum.at(latest, ready.flow[mine], came[mine])
            flows = waiting[latest[waiting] >= 0]
            done = self._flows.done[flows]
            count = len(flows)
            parts.append(
                Events(
                    np.full(count, Stage.HELD, np.uint8),
                    flows.astype(np.int32),
                    latest[flows],
                    done,
                    done.copy(),
                    np.full(count, flag, np.uint16),
                    np.zeros(count, np.bool_),
                )
            )
        return join_events(parts)
