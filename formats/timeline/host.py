# SPDX-License-Identifier: Apache-2.0
"""The tracks of the host, from logs: threads on CPUs and wake-ups, disk requests, page-ins, calls.

A slice across lost records is not drawn on a CPU, as another thread may have run there; elsewhere
its name says that it is uncertain.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tcpkmon.formats.analysis import RECORD_CPU, Intervals, Matcher, device_name
from tcpkmon.formats.base.text import text_of
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.table import LogFormat
from tcpkmon.formats.timeline.losses import Cpus
from tcpkmon.formats.timeline.model import (
    INSTANT,
    Array,
    Timeline,
    flow_of,
    make,
    slices,
)

RUNS, CALLS, PAGES = "threads", "calls", "page-ins"
UNCERTAIN = ", uncertain"
Needs = Mapping[str, Sequence[str]]
"""The events without which there is nothing to draw, and their fields."""
_TEXTS = {"comm": "string", "laddr": "address", "raddr": "address"}
_IDLE = 0
_NAMING = ("PROCESS_EXISTS", "FORK", "SCHEDIN", "EXEC")


class Comms:
    """The names of threads, as the records so far tell them."""

    events: frozenset[str] = frozenset()

    def __init__(self, log: LogFormat) -> None:
        self._events = [name for name in _NAMING if has_fields(log, name, "pid", "comm")]
        self._names: dict[int, bytes] = {}

    def feed(self, batch: LogBatch) -> None:
        """The next records in time order."""
        for event in self._events:
            rows = batch.rows(event)
            self._names.update(zip(rows["pid"].tolist(), rows["comm"].tolist(), strict=True))

    def of(self, tid: int) -> str:
        """A thread's name, or what else to call it."""
        return text_of(self._names.get(tid, b"")) or f"thread {tid}"


class Sched:
    """Which thread ran on each CPU, and who woke it: a flow to the slice that followed."""

    events = frozenset({"SCHEDIN", "SCHEDOUT", "TRY_TO_WAKEUP"})
    needs: ClassVar[Needs] = {"SCHEDIN": ("pid", "comm"), "SCHEDOUT": ("pid",)}

    def __init__(self, timeline: Timeline, cpus: Cpus, log: LogFormat, comms: Comms) -> None:
        self._timeline, self._cpus = timeline, cpus
        self._runs = Matcher(("SCHEDIN",), "SCHEDOUT", (RECORD_CPU,), ("pid",), ("comm",))
        has_wakes = has_fields(log, "TRY_TO_WAKEUP", "pid", "wakes")
        self._wakes = (
            Matcher(("TRY_TO_WAKEUP",), "SCHEDIN", ("pid",), (), (RECORD_CPU,))
            if has_wakes else None
        )  # fmt: skip
        self._threads: dict[tuple[int, bytes], int] = {}

    def feed(self, batch: LogBatch) -> None:
        """The next records in time order."""
        self._runs.feed(batch)
        found = self._runs.take()
        cpus, pids, comms = found.keys
        good = pids != _IDLE
        good &= ~self._cpus.across(found.starts_ns, found.stops_ns, cpus)
        cpus, pids, comms = cpus[good], pids[good], comms[good]
        begin, end = found.starts_ns[good], found.stops_ns[good]
        names = [self._thread(*key) for key in zip(pids.tolist(), comms.tolist(), strict=True)]
        self._timeline.add(
            slices(begin, end, self._cpus.lines(cpus, RUNS), name=np.array(names, np.uint32),
                   flow=flow_of(pids, begin) if self._wakes else 0)
        )  # fmt: skip
        if self._wakes is None:
            return
        at = batch.where("TRY_TO_WAKEUP")
        asleep = at[batch.rows("TRY_TO_WAKEUP", at)["wakes"] == 0]
        kept = np.ones(len(batch), np.bool_)
        kept[asleep] = False
        self._wakes.feed(batch.take(np.flatnonzero(kept)))
        woken = self._wakes.take()
        pids, cpus = woken.keys
        sure = (pids != _IDLE) & ~self._cpus.across(woken.starts_ns, woken.stops_ns)
        pids, cpus = pids[sure], cpus[sure]
        self._timeline.add(
            make(INSTANT, woken.starts_ns[sure], self._cpus.lines(cpus, RUNS),
                 name=self._timeline.name("wake-up"), flow=flow_of(pids, woken.stops_ns[sure]),
                 arg=self._timeline.name("pid"), arg_value=pids)
        )  # fmt: skip

    def _thread(self, pid: int, comm: bytes) -> int:
        number = self._threads.get((pid, comm))
        if number is None:
            number = self._timeline.name(f"{text_of(comm)} ({pid})")
            self._threads[pid, comm] = number
        return number


class Calls:
    """System calls, on the track of their thread."""

    events = frozenset({"SYSCALL_START", "SYSCALL_EXIT"})
    needs: ClassVar[Needs] = {
        "SYSCALL_START": ("tid", "tgid", "number"), "SYSCALL_EXIT": ("tid", "number"),
    }  # fmt: skip

    def __init__(self, timeline: Timeline, cpus: Cpus, log: LogFormat, comms: Comms) -> None:
        self._timeline, self._cpus, self._comms = timeline, cpus, comms
        self._matcher = Matcher(
            ("SYSCALL_START",), "SYSCALL_EXIT", ("tid",), ("number",), ("tgid",)
        )
        self._name = enumerated(log, "SYSCALL_START", "number")

    def feed(self, batch: LogBatch) -> None:
        """The next records in time order."""
        self._matcher.feed(batch)
        found = self._matcher.take()
        tids, numbers, tgids = found.keys
        across = self._cpus.across(found.starts_ns, found.stops_ns)
        names = _named(self._timeline, numbers, across, self._name)
        tracks = _threads(self._timeline, self._comms, tgids, tids, CALLS)
        self._timeline.add(slices(found.starts_ns, found.stops_ns, tracks, name=names))


class Pages:
    """Page faults, on a track of their thread: from their beginning until the page is there."""

    events = frozenset({"PAGEIN_START", "PAGEIN_END"})
    needs: ClassVar[Needs] = {"PAGEIN_END": ("tid", "tgid", "since", "with_io")}

    def __init__(self, timeline: Timeline, cpus: Cpus, log: LogFormat, comms: Comms) -> None:
        self._timeline, self._comms = timeline, comms
        self._names = timeline.names(["page fault", "page-in"])

    def feed(self, batch: LogBatch) -> None:
        """The next records in time order."""
        at = batch.where("PAGEIN_END")
        rows, end = batch.rows("PAGEIN_END", at), batch.times_ns[at].astype(np.int64)
        tracks = _threads(self._timeline, self._comms, rows["tgid"], rows["tid"], PAGES)
        begin = np.minimum(rows["since"].astype(np.uint64), end.astype(np.uint64)).astype(np.int64)
        waited = (rows["with_io"] != 0).astype(np.int64)
        self._timeline.add(slices(begin, end, tracks, name=self._names[waited]))


class Disk:
    """Requests of each device: in its queue, and at the device. Those at one time lie in lanes."""

    events = frozenset({"DISK_INSERT", "DISK_ISSUE", "DISK_COMPLETE"})
    needs: ClassVar[Needs] = {
        "DISK_INSERT": ("request", "device", "operation", "bytes"),
        "DISK_ISSUE": ("request", "device", "operation", "bytes"),
        "DISK_COMPLETE": ("request", "last"),
    }

    def __init__(self, timeline: Timeline, cpus: Cpus, log: LogFormat, comms: Comms) -> None:
        self._timeline, self._cpus = timeline, cpus
        carry = ("device", "operation", "bytes")
        self._queued = Matcher(("DISK_INSERT",), "DISK_ISSUE", ("request",), (), carry)
        self._served = Matcher(
            ("DISK_INSERT", "DISK_ISSUE"), "DISK_COMPLETE", ("request",), (), carry
        )
        self._name = enumerated(log, "DISK_INSERT", "operation")
        self._lanes: dict[tuple[int, str], list[tuple[int, int]]] = {}

    def feed(self, batch: LogBatch) -> None:
        """The next records in time order."""
        kept = np.ones(len(batch), np.bool_)
        for name in sorted(self.events):
            at = batch.where(name)
            rows = batch.rows(name, at)
            kept[at[rows["request"] == 0]] = False
            if name == "DISK_COMPLETE":
                kept[at[rows["last"] == 0]] = False
        known = batch.take(np.flatnonzero(kept))
        for matcher, line in ((self._queued, "queued"), (self._served, "at the device")):
            matcher.feed(known)
            self._add(matcher.take(), line)

    def _add(self, found: Intervals, line: str) -> None:
        requests, devices, operations, sizes = found.keys
        begin, end = found.starts_ns, found.stops_ns
        tracks = [
            self._lane(*one, line)
            for one in zip(devices.tolist(), begin.tolist(), end.tolist(), strict=True)
        ]
        across = self._cpus.across(begin, end)
        names = _named(self._timeline, operations, across, self._name)
        flows = flow_of(requests)
        self._timeline.add(
            slices(begin, end, np.array(tracks, np.uint64), name=names, flow=flows,
                   arg=self._timeline.name("bytes"), arg_value=sizes)
        )  # fmt: skip

    def _lane(self, device: int, begin: int, end: int, line: str) -> int:
        """The track whose last request ended first; a new one if that was later than `begin`."""
        group = self._timeline.track(("disk", device), f"disk {device_name(device)}")
        lanes = self._lanes.setdefault((device, line), [])
        if lanes and lanes[0][0] <= begin:
            track = heapq.heappop(lanes)[1]
        else:
            track = self._timeline.new_track(line, group)
        heapq.heappush(lanes, (end, track))
        return track


def has_fields(log: LogFormat, event: str, *fields: str) -> bool:
    """Whether a log has the event, with these fields: numbers, but for those of _TEXTS."""
    found = log.find_event(event)
    known = {field.name: field.kind for field in found.fields} if found is not None else {}
    return found is not None and all(
        known.get(name) == _TEXTS[name] if name in _TEXTS else known.get(name) in ("int", "enum")
        for name in fields
    )


def enumerated(log: LogFormat, event: str, field: str) -> Callable[[int], str]:
    """The function that names the values of an enumerated field."""
    found = log.event(event).find_field(field)
    names = log.enums.get(found.type, {}) if found is not None else {}
    return lambda number: names.get(number, f"{field} {number}")


def _named(
    timeline: Timeline, numbers: Array, across: Array, name: Callable[[int], str]
) -> Array:
    """(n,) the names of slices."""
    found, of = np.unique(numbers * 2 + across, return_inverse=True)
    texts = [name(one >> 1) + (UNCERTAIN if one & 1 else "") for one in found.tolist()]
    return timeline.names(texts)[of]


def _threads(
    timeline: Timeline, comms: Comms, tgids: Array, tids: Array, line: str
) -> Array:  # fmt: skip
    """(n,) the tracks `line` of threads."""
    keys = tgids.astype(np.int64) << 32 | tids.astype(np.int64) & 0xFFFFFFFF
    found, of = np.unique(keys, return_inverse=True)
    tracks = []
    for tgid, tid in ((int(key) >> 32, int(key) & 0xFFFFFFFF) for key in found.tolist()):
        group = timeline.track(("thread", tgid, tid), comms.of(tid), 0, None, tgid, tid)
        tracks.append(timeline.track(("thread", tgid, tid, line), line, group))
    return np.array(tracks, np.uint64)[of]


PARTS: tuple[Any, ...] = (Sched, Calls, Pages, Disk)


def parts_of(
    timeline: Timeline, cpus: Cpus, log: LogFormat, parts: Sequence[Any] = PARTS
) -> Iterator[Any]:
    """Those parts of which the log has the events. All are fed in this order."""
    yield (comms := Comms(log))
    for part in parts:
        if all(has_fields(log, event, *fields) for event, fields in part.needs.items()):
            yield part(timeline, cpus, log, comms)


