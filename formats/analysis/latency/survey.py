# SPDX-License-Identifier: Apache-2.0
"""First look at the logs: their connections and who is whose peer, what was recorded, what is lost.

A byte's way needs it all from the start: a connection's record may come after the first bytes of
its peer, and a send call is logged at its end, when its first bytes may have been read long ago.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.latency.missing import Missing, Windows
from tcpkmon.formats.analysis.latency.peers import END, first_of_each, pair_flows, read_ends
from tcpkmon.formats.analysis.latency.stages import CONNECTION, EVENTS, Stage
from tcpkmon.formats.base.errors import DamagedError, UsageError
from tcpkmon.formats.base.limits import MOST_CONNECTIONS
from tcpkmon.formats.base.text import text_of
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.source import Source
from tcpkmon.formats.klogger.table import NUMBERS, LogFormat

LONG_CALL_NS = 10_000_000
"""Send calls that last longer are known before their bytes are joined."""
FIELDS = ("connection", "entered", "seq_lo", "seq_hi", "ack", "size", "flags")
"""Of each event that is joined."""
_WHERE = ("not in a log level in use", "this kernel has no place to log it", "switched off")

Array = NDArray[np.int64]
Rows = NDArray[Any]


@dataclass
class Survey:
    """What the logs hold.

    recorded: by stage, empty text if its event was recorded, otherwise why not. windows: when
    records are missing. begin_ns, end_ns: CLOCK_MONOTONIC of the first and the last record of an
    event that is joined. long_calls: (n,) rows of send calls that lasted longer than LONG_CALL_NS:
    FIELDS. ids: (c,) int64 the connections, ascending; out, inn: (c,) the flow of the data that
    each sends and receives. sender, receiver: (f,) a flow's connections, as indices of ids, -1:
    not recorded. ends: (c,) END, what MAGNET_CONNECTION says of each connection.
    """

    recorded: dict[Stage, str]
    windows: Windows
    begin_ns: int
    end_ns: int
    long_calls: Rows
    ids: Array
    out: Array
    inn: Array
    sender: Array
    receiver: Array
    ends: Rows

    def is_recorded(self, stage: Stage) -> bool:
        """Whether a stage's event was recorded."""
        return not self.recorded[stage]


def find_fields(log: LogFormat) -> dict[Stage, int]:
    """The numbers of the events that are joined. UsageError for a log without any of them."""
    numbers = {}
    for stage in EVENTS:
        event = log.find_event(stage.name)
        if event is None:
            continue
        for name in FIELDS:
            found = event.find_field(name)
            if found is None or found.kind != "int":
                raise DamagedError(f"the log has no good {stage.name}.{name}")
        numbers[stage] = event.number
    if not numbers:
        raise UsageError("the log has no events of schema magnet", "collect --schema magnet")
    return numbers


def make_survey(readers: tuple[Source, ...]) -> Survey:
    """Reads all logs once. Raises UsageError for logs of another schema or too many connections."""
    said: dict[str, int] = {}
    occurs: set[str] = set()
    spans, calls, rows = [], [], []
    first, last = [], []
    for reader in readers:
        numbers = find_fields(reader.format)
        stage_numbers = np.zeros(NUMBERS, np.bool_)
        stage_numbers[list(numbers.values())] = True
        missing = Missing(reader, [*(stage.name for stage in numbers), CONNECTION])
        for batch in reader.batches():
            missing.add(batch)
            at = np.flatnonzero(stage_numbers[batch.numbers])
            if len(at):
                times = batch.times_ns[at]
                first.append(int(times.min()))
                last.append(int(times.max()))
            present = {event.name for event in batch.events()}
            occurs |= present
            if "LOGGING_EVENT" in present:
                said.update(_read_said(batch))
            if CONNECTION in present:
                rows.append(read_ends(batch))
            if Stage.SOCK_SEND.name in present:
                calls.append(_long_calls(batch))
        spans += missing.spans(reader.losses.complete and not reader.problems)
    begin, end = min(first, default=0), max(last, default=0)
    recorded = {stage: _why_not(stage.name, said, occurs) for stage in EVENTS}
    recorded |= {Stage.ACK: recorded[Stage.IP_RECV], Stage.ANCHOR: ""}
    ends = first_of_each(np.concatenate([np.empty(0, END), *rows]))
    if len(ends) > MOST_CONNECTIONS:
        raise UsageError(f"more than {MOST_CONNECTIONS:,} connections", "filter the capture")
    calls = [some for some in calls if len(some)]
    long_calls = np.concatenate(calls) if calls else np.empty(0, _CALL)
    return Survey(
        recorded, Windows.of(spans), begin, end, long_calls,
        ends["connection"].copy(), *pair_flows(ends), ends,
    )  # fmt: skip


def _read_said(batch: LogBatch) -> dict[str, int]:
    """What LOGGING_EVENT says: 1 logged, 0 off, -1 not on this kernel, by event."""
    rows = batch.rows("LOGGING_EVENT")
    if not {"name", "enabled"} <= set(rows.dtype.names or ()):
        return {}
    kinds = [batch.format.event("LOGGING_EVENT").find_field(n) for n in ("name", "enabled")]
    if [kind.kind for kind in kinds if kind is not None] != ["string", "int"]:
        return {}
    names = [text_of(name) for name in rows["name"].tolist()]
    return dict(zip(names, map(int, rows["enabled"].tolist()), strict=True))


def _why_not(name: str, said: dict[str, int], occurs: set[str]) -> str:
    """Why an event was not recorded; empty if it was."""
    if said.get(name) == 1 or name in occurs:
        return ""
    if name not in said:
        return _WHERE[0]
    return _WHERE[1] if said[name] < 0 else _WHERE[2]


_CALL = np.dtype([("connection", "<i8"), ("entered", "<i8"), ("seq_lo", "<u4"), ("seq_hi", "<u4")])


def _long_calls(batch: LogBatch) -> Rows:
    at = batch.where(Stage.SOCK_SEND.name)
    rows = batch.rows(Stage.SOCK_SEND.name, at)
    entered = rows["entered"].astype(np.int64)
    lasted = batch.times_ns[at].astype(np.int64) - entered
    chosen = (lasted > LONG_CALL_NS) & (entered > 0) & (rows["seq_lo"] != rows["seq_hi"])
    found = np.empty(int(chosen.sum()), _CALL)
    for name in found.dtype.names or ():
        found[name] = rows[name][chosen]
    return found
