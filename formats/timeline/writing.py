# SPDX-License-Identifier: Apache-2.0
"""Writes the timeline of a capture of any format: its clocks, its connections, its host."""

from __future__ import annotations

from typing import Any, BinaryIO

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
from tcpkmon.formats.timeline.losses import Cpus
from tcpkmon.formats.timeline.model import (
    INSTANT,
    Array,
    Sink,
    Timeline,
    flow_of,
    make,
    slices,
    title_of,
)
from tcpkmon.formats.timeline.perfetto import PerfettoSink
from tcpkmon.formats.timeline.tcp import Connections

# The way of each segment through the layers, of logs of the schema magnet and of MAGNeT files.
#
#     SOCK_SEND   |--------- call ---------|        slices, the others are instants
#     TCP_SEND        |      |                      flow2: from the call to its segments
#     IP_SEND          |      |                     flow: that of the segment's first byte
#     DEV_SEND          |      |
#
# A MAGNeT file of 2001 names no bytes: its events are there, and no flows.

LAYERS = (
    "SOCK_SEND", "TCP_SEND", "IP_SEND", "QDISC_ENQUEUE", "QDISC_DEQUEUE", "DEV_SEND",
    "DRIVER_START", "DRIVER_RESULT", "DEV_RECV", "IP_RECV", "TCP_RECV", "SOCK_RECV",
)  # fmt: skip
_PREFIX = "MAGNET_"
"""Of the events' names in MAGNeT files."""
_RANGE = ("connection", "entered", "seq_lo", "seq_hi", "ack", "flags", "size")
_CONNECTION = ("connection", "laddr", "raddr", "lport", "rport")
_AGAIN = 256
_WIDE = np.uint64(1 << 32)


class Layers:
    """Adds the tracks of each connection: one for each layer."""

    def __init__(self, timeline: Timeline, cpus: Cpus, log: LogFormat) -> None:
        self._timeline = timeline
        self._names = _layers_of(log)
        self.events = frozenset(self._names)
        self._ranges = all(has_fields(log, name, *_RANGE) for name in self._names)
        self._key = "connection" if self._ranges else "sockid"
        self._titles: dict[int, str] = {}
        self._has_titles = has_fields(log, "MAGNET_CONNECTION", *_CONNECTION)
        self.events |= {"MAGNET_CONNECTION"}
        self._free_ns: dict[int, int] = {}
        self._calls: dict[str, tuple[Array, Array, Array]] = {}

    @staticmethod
    def is_in(log: LogFormat) -> bool:
        """Whether a log has layers."""
        found = _layers_of(log)
        return bool(found) and any(
            all(has_fields(log, name, *fields) for name in found)
            for fields in (_RANGE, ("sockid", "size"))
        )

    def feed(self, batch: LogBatch) -> None:
        """The next records in time order."""
        if self._has_titles:
            self._learn(batch)
        rows = {name: batch.where(name) for name in self._names}
        payloads = {name: batch.rows(name, at) for name, at in rows.items()}
        for name, at in rows.items():
            times, data = batch.times_ns[at].astype(np.int64), payloads[name]
            if not len(at):
                continue
            tracks = self._tracks(data[self._key], name)
            layer = name.removeprefix(_PREFIX)
            label = self._timeline.name(layer)
            size: dict[str, Any] = {"arg": self._timeline.name("size")}
            size["arg_value"] = data["size"].astype(np.int64)
            if not self._ranges:
                self._timeline.add(make(INSTANT, times, tracks, name=label, **size))
                continue
            again = (data["flags"] & _AGAIN) != 0
            labels = np.where(again, self._timeline.name(f"{name} again"), label)
            way = int(name.endswith("RECV"))
            if name.startswith("SOCK_"):
                flow = _call_flow(data, way)
                self._add_calls(data, times, tracks, labels, flow, size)
                continue
            flow2: Array | int = 0
            if name in ("TCP_SEND", "TCP_RECV"):
                call = "SOCK_SEND" if way == 0 else "SOCK_RECV"
                flow2 = self._flow_of_call(data, call, payloads.get(call), way)
            self._timeline.add(
                make(INSTANT, times, tracks, name=labels, flow=_segment_flow(data, way),
                     flow2=flow2, **size)
            )  # fmt: skip

    def _add_calls(
        self, data: Array, times: Array, tracks: Array, labels: Array, flow: Array,
        size: dict[str, Any],
    ) -> None:  # fmt: skip
        """Slices. A call during another one of its connection (of another thread) is an instant."""
        began = data["entered"].astype(np.uint64).astype(np.int64)
        begin = np.where((began > 0) & (began <= times), began, times)
        order = np.lexsort([times, tracks])
        line, until = tracks[order], times[order]
        before = np.empty_like(until)
        before[1:] = until[:-1]
        first = np.append(True, line[1:] != line[:-1])
        before[first] = [self._free_ns.get(one, 0) for one in line[first].tolist()]
        last = np.append(first[1:], True)
        self._free_ns.update(zip(line[last].tolist(), until[last].tolist(), strict=True))
        alone = np.empty(len(times), np.bool_)
        alone[order] = begin[order] >= before
        for kept, is_slice in ((alone, True), (~alone, False)):
            more = {"name": labels[kept], "flow": flow[kept], "arg": size["arg"],
                    "arg_value": size["arg_value"][kept]}  # fmt: skip
            self._timeline.add(
                slices(begin[kept], times[kept], tracks[kept], **more) if is_slice
                else make(INSTANT, times[kept], tracks[kept], **more)
            )  # fmt: skip

    def _flow_of_call(self, data: Array, name: str, calls: Array | None, way: int) -> Array:
        """(n,) the flow of the call that wrote or read the first byte of each segment; 0: of none
        of this batch or the one before."""
        if calls is None:
            return np.zeros(len(data), np.uint64)
        kept = calls[(calls["size"] > 0) & (calls["connection"] > 0)]
        now = kept["connection"].astype(np.uint64), kept["seq_lo"], kept["seq_hi"]
        old = self._calls.get(name, tuple(part[:0] for part in now))
        self._calls[name] = now
        ids, lo, hi = (np.concatenate(pair) for pair in zip(old, now, strict=True))
        if not len(ids):
            return np.zeros(len(data), np.uint64)
        known, of = np.unique(ids, return_inverse=True)
        key = of.astype(np.uint64) * _WIDE + lo
        order = np.argsort(key, kind="stable")
        wanted = data["connection"].astype(np.uint64)
        place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        sought = place.astype(np.uint64) * _WIDE + data["seq_lo"]
        at = order[np.maximum(np.searchsorted(key[order], sought, "right") - 1, 0)]
        offset = (data["seq_lo"] - lo[at]).astype(np.uint32)
        inside = (ids[at] == wanted) & (offset < (hi[at] - lo[at]).astype(np.uint32))
        flow = flow_of(ids[at], way + 2, lo[at])
        return np.where(inside & (data["seq_lo"] != data["seq_hi"]), flow, np.uint64(0))

    def _tracks(self, connections: Array, name: str) -> Array:
        found, of = np.unique(connections, return_inverse=True)
        made = [self._track(one, name) for one in found.tolist()]
        return np.array(made, np.uint64)[of]

    def _track(self, connection: int, name: str) -> int:
        told = self._titles.get(connection, f"{self._key} {connection}")
        title = f"layers of {told}" if connection or not self._ranges else "layers, other packets"
        group = self._timeline.track(("layers", connection), title)
        layer = name.removeprefix(_PREFIX)
        return self._timeline.track(("layers", connection, name), layer, group)

    def _learn(self, batch: LogBatch) -> None:
        for row in batch.rows("MAGNET_CONNECTION"):
            number = int(row["connection"])
            if number not in self._titles:
                self._titles[number] = title_of(row.__getitem__, number)


def _layers_of(log: LogFormat) -> list[str]:
    """The events of layers that a log can have, in the order of LAYERS."""
    names = (name for layer in LAYERS for name in (layer, _PREFIX + layer))
    return [name for name in names if log.find_event(name) is not None]


def _segment_flow(data: Array, way: int) -> Array:
    """Of a segment's first byte; of one without data, of its ACK too. 0 for other packets."""
    empty = data["seq_lo"] == data["seq_hi"]
    flow = flow_of(data["connection"], way, data["seq_lo"], np.where(empty, data["ack"], 0), empty)
    return np.where(data["connection"] > 0, flow, np.uint64(0))


def _call_flow(data: Array, way: int) -> Array:
    flow = flow_of(data["connection"], way + 2, data["seq_lo"])
    return np.where((data["connection"] > 0) & (data["size"] > 0), flow, np.uint64(0))


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
