# SPDX-License-Identifier: Apache-2.0
"""Second look at the logs: their records, of all CPUs, as events of flows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.latency.missing import NEVER
from tcpkmon.formats.analysis.latency.stages import ACK_FLAG, SENT, UDP, Stage
from tcpkmon.formats.analysis.latency.survey import FIELDS, LONG_CALL_NS, Survey, find_fields
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.source import Source
from tcpkmon.formats.klogger.table import NUMBERS

_LOW = (1 << 32) - 1
_IS_SENT = np.isin(np.arange(len(Stage)), SENT)
RECORD = np.dtype(
    [
        ("conn_id", "u8"), ("time", "i8"), ("lo", "i8"), ("hi", "i8"), ("flow", "i4"),
        ("flags", "u2"), ("stage", "u1"),
    ]
)  # fmt: skip
"""An event as it is sorted. conn_id: of both directions and both ends of a connection, which
blocks.blocks() has together; the others: see Events."""

Array = NDArray[np.int64]


@dataclass
class Events:
    """n events of flows. All arrays are (n,).

    lo, hi: the byte range, sequence numbers; for TCP_RECV, ACK and ANCHOR both are how far TCP has
    come. lo has 32 bits, until it is unwrapped. time: CLOCK_MONOTONIC [ns]; of SOCK_SEND: when the
    call began.
    """

    stage: NDArray[np.uint8]
    flow: NDArray[np.int32]
    time: Array
    lo: Array
    hi: Array
    flags: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.stage)

    def take(self, at: NDArray[np.bool_] | Array) -> Events:
        """The events at these places."""
        return Events(*(getattr(self, one.name)[at] for one in fields(self)))


def events_of(records: NDArray[Any], at: Array) -> Events:
    """Those of rows of RECORD."""
    return Events(*(records[one.name][at] for one in fields(Events)))


@dataclass
class Left:
    """Records with data that cannot be joined, and calls that sent none: counts."""

    udp: int = 0
    unknown_connection: int = 0
    failed_calls: int = 0


class Records:
    """The events of all logs, as arrays of RECORD; iterate once.

    left: what is left out. records: how many records of events that are joined were read.
    """

    def __init__(self, readers: Sequence[Source], survey: Survey) -> None:
        self.left = Left()
        self.records = 0
        self._readers, self._survey = readers, survey
        ends = np.stack([survey.sender, survey.receiver])
        self._pair = np.where(ends < 0, NEVER, ends).min(0)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        for reader in self._readers:
            stage_of = np.full(NUMBERS, -1, np.int16)
            for stage, number in find_fields(reader.format).items():
                stage_of[number] = stage
            for batch in reader.batches():
                yield from self._read(batch, stage_of)
        rows = self._survey.long_calls
        nothing = np.zeros(len(rows), np.int64)
        yield from self._events(
            np.full(len(rows), Stage.SOCK_SEND, np.uint8), rows["connection"], rows["entered"],
            rows["seq_lo"], rows["seq_hi"], nothing, nothing.astype(np.uint16),
        )  # fmt: skip
        ends = self._survey.ends  # what each connection had received when its record was made
        told = np.flatnonzero(ends["rcv_nxt"] != 0)
        yield self._make(Stage.ANCHOR, self._survey.inn[told], ends["time_ns"][told],
                         ends["rcv_nxt"][told].astype(np.int64), 0, 0)  # fmt: skip

    def _read(self, batch: LogBatch, stage_of: NDArray[np.int16]) -> Iterator[NDArray[Any]]:
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
        yield from self._events(
            stages, columns["connection"], times, columns["seq_lo"], columns["seq_hi"],
            columns["ack"], columns["flags"].astype(np.uint16),
        )  # fmt: skip

    def _events(
        self, stages: NDArray[np.uint8], connections: Array, times: Array, seq_lo: Array,
        seq_hi: Array, acks: Array, flags: NDArray[np.uint16],
    ) -> Iterator[NDArray[Any]]:  # fmt: skip
        """Give the records their flows, and make events of their own of what is acknowledged."""
        ids = self._survey.ids
        if not len(ids):
            self.left.unknown_connection += int(np.count_nonzero(seq_lo != seq_hi))
            return
        index = np.minimum(np.searchsorted(ids, connections), len(ids) - 1)
        known = ids[index] == connections
        self.left.unknown_connection += int(np.count_nonzero(~known & (seq_lo != seq_hi)))
        is_progress = stages == Stage.TCP_RECV
        lo = np.where(is_progress, seq_hi, seq_lo).astype(np.int64) & _LOW
        length = np.where(is_progress, 0, (seq_hi.astype(np.int64) - lo) & _LOW)
        keep = np.flatnonzero(known & (is_progress | (length > 0)))
        is_sent = _IS_SENT[stages]
        out, inn = self._survey.out[index], self._survey.inn[index]
        flow = np.where(is_sent, out, inn)
        yield self._make(stages[keep], flow[keep], times[keep], lo[keep], length[keep], flags[keep])
        told = np.flatnonzero(known & (stages == Stage.IP_RECV) & (flags & ACK_FLAG != 0))
        yield self._make(Stage.ACK, out[told], times[told], acks[told] & _LOW, 0, flags[told])

    def _make(
        self, stage: NDArray[np.uint8] | Stage, flow: Array, time: Array, lo: Array,
        length: Array | int, flags: NDArray[np.uint16] | int,
    ) -> NDArray[Any]:  # fmt: skip
        found = np.empty(len(flow), RECORD)
        for name, values in (("conn_id", self._pair[flow]), ("time", time), ("lo", lo),
                             ("hi", lo + length), ("flow", flow), ("flags", flags),
                             ("stage", stage)):  # fmt: skip
            found[name] = values
        return found
