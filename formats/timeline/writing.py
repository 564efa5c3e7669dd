# SPDX-License-Identifier: Apache-2.0
"""Writes the timeline of a capture of any format: its clocks, its connections, its host."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

from tcpkmon.formats.analysis import why
from tcpkmon.formats.base.control import Clock
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.reader import Records
from tcpkmon.formats.klogger import merge_logs
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.logs import Logs
from tcpkmon.formats.klogger.overlap import LOST, base_numbers
from tcpkmon.formats.klogger.table import LogFormat
from tcpkmon.formats.psc.reader import Capture
from tcpkmon.formats.timeline.host import Disk, Pages, Sched, has_fields, parts_of
from tcpkmon.formats.timeline.layers import Layers
from tcpkmon.formats.timeline.losses import Cpus
from tcpkmon.formats.timeline.model import INSTANT, Sink, Timeline, make
from tcpkmon.formats.timeline.perfetto import PerfettoSink
from tcpkmon.formats.timeline.tcp import Connections

OTHERS = "events"
SNAPSHOT, _CLOCK = "SNAPSHOT", "CLOCK"
_SHOWN = ("MARK", "TRIGGER", "KLOGGER_START", "KLOGGER_FINISH")
"""Of the collector's events."""
_MOST_NS = 1 << 62


def write_perfetto(records: Records, out: BinaryIO) -> None:
    """Write a Perfetto trace. UsageError without the package, and as Source does."""
    sink = PerfettoSink(out)
    timeline = Timeline(sink)
    if isinstance(records, Capture):
        with why.Source(records) as source:
            _tell_clock(sink, records.clock)
            for _, entry in records.controls():
                if isinstance(entry, Clock):
                    _tell(sink, entry.mono_ns, entry.realtime_ns)
            last = records.mono_ns(max(len(records) - 1, 0))
            end_ns = int(last[0]) if last is not None and len(last) else 0
            Connections(timeline, source, min(end_ns, _MOST_NS)).write()
    elif isinstance(records, Logs):
        _tell_clock(sink, records.format.clock)
        if has_fields(records.format, SNAPSHOT, *why.NEEDED):
            with why.Source(records) as source:
                Connections(timeline, source).write()
        _write_events(timeline, records)
    else:
        raise UsageError("a timeline needs the records of a capture")
    sink.finish(_about(timeline, records))


def read_host(sink: Sink, logs: Logs) -> None:
    """Tell a sink what ran on the CPUs, the requests of the disks and the page-ins."""
    timeline = Timeline(sink)
    cpus = _cpus_of(timeline, logs.format)
    first, *parts = parts_of(timeline, cpus, logs.format, (Sched, Pages, Disk))
    for batch in merge_logs(logs.readers, note=cpus.note) if parts else ():
        for part in (first, *parts):
            part.feed(batch)


def _cpus_of(timeline: Timeline, log: LogFormat) -> Cpus:
    return Cpus(timeline, log.find_event("DUMP_BEGIN") is not None)  # a MAGNeT file has all CPUs'


def _write_events(timeline: Timeline, logs: Logs) -> None:
    log = logs.format
    cpus = _cpus_of(timeline, log)
    parts = list(parts_of(timeline, cpus, log))
    if Layers.is_in(log):
        parts.append(Layers(timeline, cpus, log))
    taken = {SNAPSHOT, *(name for part in parts for name in part.events)}
    is_other = ~base_numbers(log)
    for event in log.events:
        if event.name in taken or event.name in _SHOWN or event.name == LOST:
            is_other[event.number] = event.name in _SHOWN
    for batch in merge_logs(logs.readers, note=cpus.note):
        timeline.records += len(batch)
        _tell_steps(timeline.sink, batch)
        with timeline.at_once():
            for part in parts:
                part.feed(batch)
            _add_others(timeline, cpus, log, batch, is_other)


def _add_others(
    timeline: Timeline, cpus: Cpus, log: LogFormat, batch: LogBatch, is_other: np.ndarray
) -> None:
    """Events that no part knows, such as those of a user's own schema: instants on their CPU."""
    at = np.flatnonzero(is_other[batch.numbers])
    numbers, of = np.unique(batch.numbers[at], return_inverse=True)
    names = timeline.names([log.event(int(number)).name for number in numbers.tolist()])
    timeline.add(
        make(INSTANT, batch.times_ns[at].astype(np.int64), cpus.lines(batch.cpus[at], OTHERS),
             name=names[of])
    )  # fmt: skip


def _tell_clock(sink: Sink, clock: tuple[int, int, int] | None) -> None:
    if clock is not None:
        _tell(sink, clock[0], clock[1])
    else:
        sink.clock(0, None)


def _tell_steps(sink: Sink, batch: LogBatch) -> None:
    if not has_fields(batch.format, _CLOCK, "mono_ns", "realtime_ns"):
        return
    rows = batch.rows(_CLOCK)
    pairs = zip(rows["mono_ns"].tolist(), rows["realtime_ns"].tolist(), strict=True)
    for mono_ns, realtime_ns in pairs:
        _tell(sink, mono_ns, realtime_ns)


def _tell(sink: Sink, mono_ns: int, realtime_ns: int) -> None:
    if 0 <= mono_ns < _MOST_NS and 0 <= realtime_ns < _MOST_NS:
        sink.clock(mono_ns, realtime_ns)


def _about(timeline: Timeline, records: Capture | Logs) -> dict[str, str | int]:
    return {
        "file": records.path.name.encode("utf-8", "backslashreplace").decode(),
        "records": timeline.records,
        "lost_records": min(records.lost, _MOST_NS),
        "complete": int(records.complete),
        "damaged": int(records.damaged),
        "decimation": "none: counters have each change, all else each record",
        "clock": "CLOCK_MONOTONIC",
    }
