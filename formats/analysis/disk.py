# SPDX-License-Identifier: Apache-2.0
"""Disks in a log of the schema disk: requests from queue to completion, and the queue itself."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.event import Event
from tcpkmon.formats.analysis.intervals import Batched
from tcpkmon.formats.analysis.log import Log
from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.base.limits import MOST_QUEUED

SWAP = 32
"""In `flags`: the request moves pages to or from swap."""
Columns = dict[str, NDArray[np.int64]]
_COLUMNS = (
    "request", "device", "operation", "flags", "priority_class", "tid", "tgid", "uid", "cgroup",
)  # fmt: skip
_FIELDS = (*_COLUMNS, "sector", "bytes")
REQUEST_FIELDS: Mapping[str, Sequence[str]] = {
    "DISK_INSERT": _FIELDS,
    "DISK_ISSUE": _FIELDS,
    "DISK_COMPLETE": (*_FIELDS, "last"),
    "DISK_MERGE": _FIELDS,
}
"""The events of requests, and those of their fields that pair_requests() needs."""
_QUEUE_EVENTS = (*REQUEST_FIELDS, "DISK_REQUEUE", "DISK_QUEUE")
_QUEUE_FIELDS: Mapping[str, Sequence[str]] = {
    "DISK_MERGE": ("front",),
    "DISK_QUEUE": ("length", "chunk", "count"),
}
_REALTIME = "REALTIME"


def device_name(device: int) -> str:
    """A device as `major:minor`, as lsblk and /proc/diskstats have it."""
    return f"{device >> 20}:{device & 0xFFFFF}"


@dataclass(frozen=True)
class Requests:
    """n requests that were inserted and completed in the log, ordered by their ids.

    columns: (n,) int64 for request, device, operation, flags, priority_class, tid, tgid, uid,
    cgroup, sector, bytes (as completed), inserted_ns, issued_ns (the last time; where the device
    has no queue, inserted_ns), completed_ns. open: inserted, and not completed or merged in the
    log. merged: requests that became a part of another. unknown: completions of requests from
    before the log.
    """

    columns: Columns
    open: int
    merged: int
    unknown: int

    def __len__(self) -> int:
        return len(self["request"])

    def __getitem__(self, name: str) -> NDArray[np.int64]:
        return self.columns[name]

    def where(self, **values: int) -> Requests:
        """The requests whose columns have these values; the counts are not divided."""
        mask = np.ones(len(self), np.bool_)
        for name, value in values.items():
            mask &= self[name] == value
        chosen = {name: column[mask] for name, column in self.columns.items()}
        return Requests(chosen, self.open, self.merged, self.unknown)

    @property
    def queued_ns(self) -> NDArray[np.int64]:
        """(n,) from the insertion to the device."""
        return self["issued_ns"] - self["inserted_ns"]

    @property
    def served_ns(self) -> NDArray[np.int64]:
        """(n,) from the device's start to the completion."""
        return self["completed_ns"] - self["issued_ns"]

    def busy_ns(self, since: str = "issued_ns") -> int:
        """How long at least one request was at a device; with since="inserted_ns", or queued.

        Choose one device before: where(device=...). Divided by the elapsed time it is the
        utilisation, without and with queueing.
        """
        order = np.argsort(self["completed_ns"], kind="stable")
        begins, ends = self[since][order], self["completed_ns"][order]
        if not len(ends):
            return 0
        # Of each end, the part since the end before it in which a later request was there too.
        first = np.minimum.accumulate(begins[::-1])[::-1]
        before = np.concatenate((first[:1], ends[:-1]))
        return int((ends - np.maximum(first, before)).sum())

    def mean_depth(self, elapsed_ns: int, since: str = "issued_ns") -> float:
        """How many requests there were at a time, on average over the elapsed time."""
        return float((self["completed_ns"] - self[since]).sum()) / elapsed_ns if elapsed_ns else 0.0


def requests(log: Batched) -> Requests:
    """The requests of a log, by their ids. UsageError for a log without these events."""
    found: dict[str, list[Columns]] = {event: [] for event in REQUEST_FIELDS}
    for batch in log.batches():
        for event, parts in found.items():
            fields = REQUEST_FIELDS[event]
            at = batch.where(batch.format.require(event, *fields))
            rows = batch.rows(event, at)
            part = {name: rows[name].astype(np.int64) for name in fields}
            parts.append({**part, "time_ns": batch.times_ns[at].astype(np.int64)})
    return pair_requests(
        {
            event: {
                name: np.concatenate([part[name] for part in parts] or [np.empty(0, np.int64)])
                for name in (*REQUEST_FIELDS[event], "time_ns")
            }
            for event, parts in found.items()
        }
    )


def pair_requests(events: Mapping[str, Columns]) -> Requests:
    """The requests of these events in time order: for each event of REQUEST_FIELDS, its fields and
    time_ns, (n,) int64 each."""
    inserts, issues, ends, merges = (events[event] for event in REQUEST_FIELDS)
    unknown = int(((ends["request"] == 0) & (ends["last"] == 1)).sum())
    inserts, issues, ends, merges = map(_known, (inserts, issues, ends, merges))
    final = ends["last"] == 1
    over, end_at = np.unique(ends["request"][final], return_index=True)
    ids, at = np.unique(inserts["request"], return_index=True)
    known, of_ids, of_over = np.intersect1d(ids, over, return_indices=True)
    columns = {name: inserts[name][at[of_ids]] for name in (*_COLUMNS, "sector")}
    columns["inserted_ns"] = inserts["time_ns"][at[of_ids]]
    columns["completed_ns"] = ends["time_ns"][final][end_at[of_over]]
    columns["issued_ns"] = columns["inserted_ns"].copy()
    columns["bytes"] = np.zeros(len(known), np.int64)
    where, place = _places(known, issues["request"])
    columns["issued_ns"][place] = issues["time_ns"][where]  # in time order: the last one stays
    columns["sector"][place] = issues["sector"][where]
    where, place = _places(known, ends["request"])
    np.add.at(columns["bytes"], place, ends["bytes"][where])
    absorbed = len(np.setdiff1d(np.intersect1d(merges["request"], ids), known))
    return Requests(columns, len(ids) - len(known) - absorbed, absorbed, unknown)


def _known(events: Columns) -> Columns:
    """Those of requests that have an id."""
    has_id = events["request"] != 0
    return {name: column[has_id] for name, column in events.items()}


def _places(
    known: NDArray[np.int64], wanted: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices of those `wanted` that are in `known` (sorted), and their places there."""
    place = np.searchsorted(known, wanted)
    inside = np.flatnonzero(place < len(known))
    where = inside[known[place[inside]] == wanted[inside]]
    return where, place[where]


class Queue(NamedTuple):
    """The queue of a device when a request was inserted, without that request.

    positions: sectors, realtime ones first and as -1 - sector; both parts by rising sector. At most
    1000 of them are there if the queue is exact, that is, read from the scheduler. Otherwise it is
    rebuilt from the events: with requests on their way from the queue to the device, and with
    those that had not reached the queue.
    """

    time_ns: int
    device: int
    request: int
    sector: int
    length: int
    positions: tuple[int, ...]
    exact: bool


def queues(log: Log, rebuild: bool = False) -> Iterator[Queue]:
    """The queue at each insertion; for each device in time order.

    It is what DISK_QUEUE says if the scheduler's lists could be read there, unless `rebuild`. In a
    log without DISK_QUEUE, a request is in the queue from its DISK_INSERT on. UsageError for a log
    without these events; DamagedError if more than MOST_QUEUED requests are in a rebuilt queue.
    """
    for name in _QUEUE_EVENTS:
        fields = ("request", "device", "sector", "bytes", *_QUEUE_FIELDS.get(name, ()))
        log.format.require(name, *fields, kinds=("int",))
        log.format.require(name, "priority_class")
    log.format.require("DISK_QUEUE", "positions", kinds=("bytes",))
    settings = log.format.header.get("settings")
    ways = settings.get("locations") if isinstance(settings, dict) else None
    start = "DISK_QUEUE" if isinstance(ways, dict) and "DISK_QUEUE" in ways else "DISK_INSERT"
    devices: dict[int, _Device] = {}
    for event in log.choose(*_QUEUE_EVENTS):
        device = devices.setdefault(event["device"], _Device(start, log.format.order))
        if event.type == start:
            yield from device.insert(event, rebuild)
        else:
            device.follow(event)
    for device in devices.values():
        yield from device.read()


class _Device:
    """The queue of a device, by what the log says of it."""

    def __init__(self, start: str, order: str) -> None:
        self._start, self._order = start, order
        self._queued: dict[int, tuple[int, bool]] = {}  # request -> sector, whether realtime
        self._chunks: list[Event] = []

    def insert(self, event: Event, rebuild: bool) -> Iterator[Queue]:
        """The queue before this insertion; a read one when all its events are there."""
        if event.get("chunk", 0):
            self._chunks += [] if rebuild else [event]
            return
        yield from self.read()
        if not rebuild and event.get("length", -1) >= 0:
            self._chunks = [event]
        else:
            positions = sorted(self._queued.values(), key=lambda one: (not one[1], one[0]))
            signed = tuple(-1 - sector if realtime else sector for sector, realtime in positions)
            yield _queue(event, len(signed), signed, exact=False)
        self._add(event)

    def read(self) -> Iterator[Queue]:
        """The queue that the last events have read."""
        if self._chunks:
            first = self._chunks[0]
            found = [x for event in self._chunks for x in _positions(event, self._order)]
            found.sort(key=lambda x: (x >= 0, x if x >= 0 else -x))
            self._chunks = []
            yield _queue(first, first["length"], tuple(found), exact=True)

    def follow(self, event: Event) -> None:
        """What takes requests out of the queue, puts them back or changes them."""
        request = event["request"]
        if event.type == "DISK_REQUEUE" and self._start == "DISK_INSERT":
            self._add(event)
        elif event.type == "DISK_MERGE" and event["front"]:
            end = event["sector"] + event["bytes"] // 512
            for queued, (sector, realtime) in self._queued.items():
                if sector == end:
                    self._queued[queued] = (event["sector"], realtime)
                    break
        elif event.type in ("DISK_ISSUE", "DISK_COMPLETE", "DISK_MERGE"):
            self._queued.pop(request, None)

    def _add(self, event: Event) -> None:
        if event["request"]:
            realtime = event["priority_class"] == _REALTIME
            self._queued[event["request"]] = (event["sector"], realtime)
            if len(self._queued) > MOST_QUEUED:
                raise DamagedError(f"more than {MOST_QUEUED:,} requests wait for a device at once")


def _queue(event: Event, length: int, positions: tuple[int, ...], exact: bool) -> Queue:
    place = (event.timestamp, event["device"], event["request"], event["sector"])
    return Queue(*place, length, positions, exact)


def _positions(event: Event, order: str) -> tuple[int, ...]:
    """The positions in one DISK_QUEUE."""
    data: bytes = event["positions"]
    count = max(0, min(event["count"], len(data) // 8))
    return struct.unpack(f"{order}{count}q", data[: 8 * count])
