# SPDX-License-Identifier: Apache-2.0
"""Second look at the logs: their records as columns, all CPUs together, piece by piece of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.latency.missing import ALWAYS, NEVER
from tcpkmon.formats.analysis.latency.stages import ACK_FLAG, SENT, UDP, Stage
from tcpkmon.formats.analysis.latency.survey import FIELDS, LONG_CALL_NS, Survey, find_fields
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.source import Source
from tcpkmon.formats.klogger.table import NUMBERS

PIECE = 1 << 19
"""Records of a piece, about."""
LEAST_BATCH = 1 << 12
"""Records of one log that are read at once, at least."""
_LOW = (1 << 32) - 1
_IS_SENT = np.isin(np.arange(len(Stage)), SENT)

Array = NDArray[np.int64]


@dataclass
class Events:
    """n events of flows. All arrays are (n,).

    lo, hi: the byte range; for TCP_RECV, ACK and ANCHOR both are how far TCP has come. While
    is_new they are sequence numbers of 32 bits, then unwrapped ones. time: CLOCK_MONOTONIC [ns]; of
    SOCK_SEND: when the call began.
    """

    stage: NDArray[np.uint8]
    flow: NDArray[np.int32]
    time: Array
    lo: Array
    hi: Array
    flags: NDArray[np.uint16]
    is_new: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.stage)

    def take(self, at: NDArray[np.bool_] | Array) -> Events:
        """The events at these places."""
        return Events(*(getattr(self, one.name)[at] for one in fields(self)))


def join_events(parts: Sequence[Events]) -> Events:
    """All of them, in this order; at least one part."""
    if len(parts) == 1:
        return parts[0]
    names = [one.name for one in fields(Events)]
    return Events(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass
class Left:
    """Records with data that cannot be joined, and calls that sent none: counts."""

    udp: int = 0
    unknown_connection: int = 0
    failed_calls: int = 0


class Records:
    """The events of all logs in pieces of time; iterate once.

    left: what is left out. records: how many records of events that are joined were read.
    """

    def __init__(self, readers: Sequence[Source], survey: Survey, piece: int = PIECE) -> None:
        self.left = Left()
        self.records = 0
        self._survey = survey
        self._piece = piece
        most = max(LEAST_BATCH, piece // (4 * len(readers)))
        self._sources = [_Source(self._columns(reader, most)) for reader in readers]
        self._known = join_events([self._long_calls(), self._anchors()])

    def __iter__(self) -> Iterator[tuple[Events, int]]:
        """Events in time order, and the time before which all were returned.

        Few come later than they should: records of nested programs, and send calls, which are
        logged at their end, by LONG_CALL_NS at most.
        """
        sources = self._sources
        while any(not source.is_empty for source in sources):
            while behind := [source for source in sources if not source.is_done]:
                min(behind, key=lambda source: source.last_ns).refill()
                if sum(source.count for source in sources) >= self._piece:
                    break
            behind = [source for source in sources if not source.is_done]
            limit = min((source.last_ns for source in behind), default=NEVER)
            parts = [part for source in sources for part in source.take(limit)]
            early = (self._known.time < limit) | (limit == NEVER)
            known, self._known = self._known.take(early), self._known.take(~early)
            found = join_events([*parts, known])
            yield found.take(np.argsort(found.time, kind="stable")), limit

    def _long_calls(self) -> Events:
        rows = self._survey.long_calls
        stages = np.full(len(rows), Stage.SOCK_SEND, np.uint8)
        nothing = np.zeros(len(rows), np.int64)
        return self._events(
            stages, rows["connection"], rows["entered"], rows["seq_lo"], rows["seq_hi"],
            nothing, nothing.astype(np.uint16),
        )  # fmt: skip

    def _anchors(self) -> Events:
        """What each connection had received when its record was made."""
        ends = self._survey.ends
        told = np.flatnonzero(ends["rcv_nxt"] != 0)
        stage = np.full(len(told), Stage.ANCHOR, np.uint8)
        number = ends["rcv_nxt"][told].astype(np.int64)
        flags = np.zeros(len(told), np.uint16)
        flow = self._survey.inn[told]
        return _make(stage, flow, ends["time_ns"][told], number, 0, flags, None)

    def _columns(self, reader: Source, most: int) -> Iterator[Events]:
        numbers = find_fields(reader.format)
        stage_of = np.full(NUMBERS, -1, np.int16)
        for stage, number in numbers.items():
            stage_of[number] = stage
        for batch in reader.batches(most):
            found = self._read(batch, stage_of)
            if len(found):
                yield found

    def _read(self, batch: LogBatch, stage_of: NDArray[np.int16]) -> Events:
        found = stage_of[batch.numbers]
        at = np.flatnonzero(found >= 0)
        stages = found[at].astype(np.uint8)
        self.records += len(at)
        columns = {name: np.empty(len(at), np.int64) for name in FIELDS}
        for stage in np.flatnonzero(np.bincount(stages)).tolist():
            mine = np.flatnonzero(stages == stage)
            rows = batch.rows(Stage(stage).name, at[mine])
            for name, column in columns.items():
                column[mine] = rows[name].astype(np.int64)
        times = batch.times_ns[at].astype(np.int64)
        is_call = stages == Stage.SOCK_SEND
        self.left.failed_calls += int(np.count_nonzero(columns["size"][is_call] < 0))
        entered = columns["entered"]
        keep = columns["flags"] & UDP == 0
        self.left.udp += int(len(at) - np.count_nonzero(keep))
        # Long calls are in the survey already; a call without its beginning tells no time.
        keep &= ~is_call | ((entered > 0) & (times - entered <= LONG_CALL_NS))
        times[is_call] = entered[is_call]
        if not keep.all():
            stages, times = stages[keep], times[keep]
            columns = {name: column[keep] for name, column in columns.items()}
        return self._events(
            stages, columns["connection"], times, columns["seq_lo"], columns["seq_hi"],
            columns["ack"], columns["flags"].astype(np.uint16),
        )  # fmt: skip

    def _events(
        self, stages: NDArray[np.uint8], connections: Array, times: Array, seq_lo: Array,
        seq_hi: Array, acks: Array, flags: NDArray[np.uint16],
    ) -> Events:  # fmt: skip
        """Give the records their flows, and make events of their own of what is acknowledged."""
        ids = self._survey.ids
        if not len(ids):
            self.left.unknown_connection += int(np.count_nonzero(seq_lo != seq_hi))
            return _none()
        index = np.minimum(np.searchsorted(ids, connections), len(ids) - 1)
        known = ids[index] == connections
        self.left.unknown_connection += int(np.count_nonzero(~known & (seq_lo != seq_hi)))
        is_progress = stages == Stage.TCP_RECV
        lo = np.where(is_progress, seq_hi, seq_lo).astype(np.int64) & _LOW
        length = np.where(is_progress, 0, (seq_hi.astype(np.int64) - lo) & _LOW)
        keep = known & (is_progress | (length > 0))
        is_sent = _IS_SENT[stages]
        out, inn = self._survey.out[index], self._survey.inn[index]
        flow = np.where(is_sent, out, inn)
        parts = [_make(stages, flow, times, lo, length, flags, keep)]
        told = np.flatnonzero(known & (stages == Stage.IP_RECV) & (flags & ACK_FLAG != 0))
        if len(told):
            stage = np.full(len(told), Stage.ACK, np.uint8)
            parts.append(
                _make(stage, out[told], times[told], acks[told] & _LOW, 0, flags[told], None)
            )
        return join_events(parts)


def _make(
    stage: NDArray[np.uint8], flow: Array, time: Array, lo: Array, length: Array | int,
    flags: NDArray[np.uint16], keep: NDArray[np.bool_] | None,
) -> Events:  # fmt: skip
    new = np.ones(len(stage), np.bool_)
    made = Events(stage, flow.astype(np.int32), time.astype(np.int64), lo, lo + length, flags, new)
    return made if keep is None else made.take(keep)


def _none() -> Events:
    nothing = np.empty(0, np.int64)
    return _make(
        nothing.astype(np.uint8), nothing, nothing, nothing, nothing,
        nothing.astype(np.uint16), None,
    )  # fmt: skip


class _Source:
    """One log. last_ns: the latest time that was read; count: events that were not taken yet."""

    def __init__(self, events: Iterator[Events]) -> None:
        self._events = events
        self._pending: list[Events] = []
        self.is_done = False
        self.last_ns = ALWAYS
        self.count = 0
        self.refill()

    @property
    def is_empty(self) -> bool:
        return self.is_done and not self._pending

    def refill(self) -> None:
        found = next(self._events, None)
        if found is None:
            self.is_done = True
            return
        self._pending.append(found)
        self.last_ns = max(self.last_ns, int(found.time.max()))
        self.count += len(found)

    def take(self, limit: int) -> list[Events]:
        """Remove and return the events before `limit`."""
        taken, kept = [], []
        for part in self._pending:
            early = (part.time < limit) | (limit == NEVER)
            if early.all():
                taken.append(part)
            else:
                taken.append(part.take(early))
                kept.append(part.take(~early))
        self._pending = kept
        self.count = sum(map(len, kept))
        return taken
