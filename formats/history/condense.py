# SPDX-License-Identifier: Apache-2.0
"""The condenser: what a machine and its users did during a capture, after the UBC event monitor.

It computes the two tables of the 1987 report from the events of the schemata tty, sched, paging and
disk, beside percentiles, and the same for each user, cgroup, device, CPU and slice of time.
docs/monitor-commands.md defines each figure. What was not recorded is None, never 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis import Log
from tcpkmon.formats.analysis.disk import REQUEST_FIELDS, SWAP, pair_requests
from tcpkmon.formats.analysis.gather import EventTable, Gathered, gather
from tcpkmon.formats.history.condensed import Condensed, Device, Group, Shares, Slice, Times
from tcpkmon.formats.history.processes import NO_USER, TASK, Processes, Told
from tcpkmon.formats.history.spans import (
    Spans,
    covered_ns,
    is_inside,
    match_faults,
    match_transactions,
    total_ns,
)

Array = NDArray[Any]
CLASSES = ("Light", "Medium", "Heavy")
DEFAULT_LIMITS_MS = (10.0, 1000.0)
"""CPU time of a process below which it is Light, and below which it is Medium. The thesis gives no
thresholds."""
WANTED: Mapping[str, Sequence[str]] = {
    "TRANSACTION_START": (*TASK, "tty", "device"),
    "TRANSACTION_END": (*TASK, "tty", "device"),
    "LOGIN": (*TASK, "session"),
    "LOGOUT": (*TASK, "session"),
    "PAGEIN_START": TASK,
    "PAGEIN_END": (*TASK, "with_io", "since"),
    "PAGEOUT_START": TASK,
    **{name: tuple(dict.fromkeys((*TASK, *fields))) for name, fields in REQUEST_FIELDS.items()},
    "PROCESS_EXISTS": ("pid", "uid"),
    "FORK": ("child_pid", "child_tgid", "uid", "cgroup"),
    "EXEC": ("tgid", "uid"),
    "EXIT": ("pid", "tgid", "runtime", "group_dead", "uid", "cgroup"),
    "SCHEDIN": ("pid", "prev_pid"),
    "SCHEDOUT": ("pid", "tgid", "runtime"),
    "SAMPLE": ("state",),
}
_OWNERS = {"PROCESS_EXISTS": "pid", "FORK": "child_tgid", "EXEC": "tgid", "EXIT": "tgid"}
"""Events that tell whose a process is, and the field that names the process."""
_IDLE = 3


def condense(
    log: Log,
    limits_ms: tuple[float, float] = DEFAULT_LIMITS_MS,
    slices: int = 10,
    discard_lossy: int | None = None,
    by_user: bool = False,
    without_collector: bool = False,
) -> Condensed:
    """Condenses a capture's logs. discard_lossy: see gather(). by_user: see Processes.classes().
    without_collector: leave out its requests, faults and processes; CPUs that it used were busy.

    Raises DamagedError, FileError.
    """
    data = gather(log, WANTED, discard_lossy)
    if without_collector:
        for name in WANTED.keys() - {"SCHEDIN"}:
            if "tgid" in data[name].columns:
                others = ~np.isin(data[name]["tgid"], log.collector_pids)
                data.tables[name] = data[name].take(others)
    _give_to_root(data, log.collector_pids)
    whole = _Whole(data, _owners(log, data))
    processes = whole.processes
    classes = processes.classes(limits_ms, by_user)
    groups = [whole.group(name, classes == number) for number, name in enumerate(CLASSES)]
    groups.append(whole.group("Overall", classes >= 0, sessions=True))
    lives, gaps = whole.process_lives()
    return Condensed(
        head=_head(log, data),
        limits_ms=limits_ms,
        classes=groups,
        cpu=whole.cpu_shares(),
        disk=whole.disk_shares(),
        faults_per_s=whole.fault_rates(),
        users=whole.groups_by(processes.uids),
        cgroups=whole.groups_by(processes.cgroups),
        devices=whole.devices(),
        cpus=whole.cpu_busy(data.start_ns, data.stop_ns),
        slices=whole.slices(slices),
        by_user=by_user,
        process_life=lives,
        between_processes=gaps,
        notes=whole.notes(),
    )


def _head(log: Log, data: Gathered) -> dict[str, Any]:
    header = log.format.header
    settings = header.get("settings")
    clock = log.format.clock
    return {
        "started_ns": clock[1] if clock is not None else None,
        "version": header.get("tcpkmon"),
        "kernel": header.get("kernel"),
        "host": header.get("host"),
        "cpus": header.get("cpus"),
        "settings": settings if isinstance(settings, dict) else {},
        "elapsed_s": data.elapsed_ns / 1e9,
        "events": data.events,
        "buffers": data.buffers,
        "lost": data.lost,
        "discarded_buffers": data.discarded,
        "discarded_events": data.discarded_events,
    }


def _give_to_root(data: Gathered, processes: Collection[int]) -> None:
    """The collector's own processes are root's, whoever they became."""
    for name, table in data.tables.items():
        process = _OWNERS.get(name, "tgid")
        if "uid" in table.columns and process in table.columns:
            own = np.isin(table[process], list(processes))
            columns = {**table.columns, "uid": np.where(own, 0, table["uid"])}
            data.tables[name] = replace(table, columns=columns)


def _owners(log: Log, data: Gathered) -> list[Told]:
    """Whose processes are, by events of earlier versions without these fields too."""
    found = []
    for name, process in _OWNERS.items():
        table, event = data[name], log.format.find_event(name)
        missing = {"uid": NO_USER, "cgroup": 0}
        uid, cgroup = (
            table[one] if event is not None and event.find_field(one) is not None
            and one in table.columns else np.full(len(table), value, np.int64)
            for one, value in missing.items()
        )  # fmt: skip
        found.append(Told(table.times_ns, table[process], uid, cgroup))
    return found


class _Whole:
    """The events of a capture, paired, and its processes."""

    def __init__(self, data: Gathered, owners: Sequence[Told]) -> None:
        self.data = data
        self.turns, self.thoughts = match_transactions(
            data["TRANSACTION_START"], data["TRANSACTION_END"]
        )
        self.requests = Spans(pair_requests({n: data[n].numbers() for n in REQUEST_FIELDS}).columns)
        self.faults = match_faults(data["PAGEIN_START"], data["PAGEIN_END"])
        self.for_paging = (self.requests["flags"] & SWAP != 0) | is_inside(
            self.requests["tid"], self.requests["inserted_ns"], self.faults, "tid"
        )
        owned = [data[name] for name, fields in WANTED.items() if tuple(fields[:5]) == TASK]
        self.processes = Processes(
            owned, [data["SCHEDOUT"], data["EXIT"]], data["FORK"], self.faults, owners
        )

    def group(self, name: str, members: Array, sessions: bool = False) -> Group:
        """The figures of the processes in the mask `members`."""

        def of(spans: Spans) -> Spans:
            return spans.take(self.processes.are_members(spans["tgid"], members))

        physical = of(self.faults)["with_io"] != 0
        recorded = self.data["PAGEIN_END"].recorded
        login, logout = self._sessions() if sessions else (None, None)
        io = of(self.requests.take(~self.for_paging))
        return Group(
            name,
            int(members.sum()),
            Times.of(of(self.turns)["response_ns"]),
            Times.of(of(self.thoughts)["think_ns"]),
            Times.of(self.processes.true_cpu_ns[members]),
            Times.of(io["completed_ns"] - io["inserted_ns"]),
            int(physical.sum()) if recorded else None,
            int((~physical).sum()) if recorded else None,
            login,
            logout,
        )

    def groups_by(self, keys: Array) -> list[Group]:
        """A group for each user or cgroup, by number."""
        return [self.group(str(key), keys == key) for key in np.unique(keys).tolist()]

    def _sessions(self) -> tuple[Times | None, Times | None]:
        """How long sessions lasted, and the time from a logout to the next login."""
        return _lasted(self.data["LOGIN"], "session", self.data["LOGOUT"], "session")

    def process_lives(self) -> tuple[Times | None, Times | None]:
        """From the fork of a process to the exit of its last thread; from that to the next fork."""
        forks, exits = self.data["FORK"], self.data["EXIT"]
        forks = forks.take(forks["child_pid"] == forks["child_tgid"])
        return _lasted(forks, "child_tgid", exits.take(exits["group_dead"] != 0), "tgid")

    def cpu_busy(self, start_ns: int, stop_ns: int) -> dict[int, float]:
        """By CPU the share of this time in which it was not idle; empty: not recorded."""
        table = self.data["SCHEDIN"]
        idle_is = "pid"
        if not len(table):
            table, idle_is = self.data["SAMPLE"], "state"
        edges = np.array([start_ns, stop_ns])
        found = {}
        for cpu in np.unique(table.cpus).tolist():
            one = table.take(table.cpus == cpu)
            if idle_is == "state":
                inside = (one.times_ns >= start_ns) & (one.times_ns <= stop_ns)
                if inside.any():
                    found[cpu] = float((one["state"][inside] != _IDLE).mean())
                continue
            # Until a switch a CPU ran what that switch took away: of one before that the log lacks
            # only the time is unknown.
            starts = np.concatenate(([self.data.start_ns], one.times_ns))
            running = np.concatenate((one["prev_pid"], one["pid"][-1:]))
            stops = np.concatenate((starts[1:], [self.data.stop_ns]))
            busy = running != 0
            found[cpu] = float(
                total_ns(starts[busy], stops[busy], edges)[0] / max(stop_ns - start_ns, 1)
            )
        return found

    def cpu_shares(self) -> Shares | None:
        """CPU utilisation of all CPUs together; the virtual part is CPU time of page faults."""
        busy = self.cpu_busy(self.data.start_ns, self.data.stop_ns)
        if not busy:
            return None
        total = float(np.mean(list(busy.values())))
        faults = float(self.faults["cpu_ns"].sum()) / self.data.elapsed_ns / len(busy)
        faults = min(faults, total)
        return Shares(total - faults, faults, total)

    def _disk_busy(self, edges_ns: Array, of: Array) -> Array:
        """The share of the time between edges in which a device served one of these requests."""
        found = np.zeros(len(edges_ns) - 1)
        devices = np.unique(self.requests["device"])
        for device in devices.tolist():
            one = self.requests.take(of & (self.requests["device"] == device))
            found += covered_ns(one["issued_ns"], one["completed_ns"], edges_ns)
        return found / np.maximum(np.diff(edges_ns), 1) / max(len(devices), 1)

    def disk_shares(self) -> Shares | None:
        """Mean utilisation of the devices that were used, without queueing."""
        if not self.data["DISK_COMPLETE"].recorded:
            return None
        edges = np.array([self.data.start_ns, self.data.stop_ns])
        every = np.ones(len(self.requests), np.bool_)
        total = float(self._disk_busy(edges, every)[0])
        true = float(self._disk_busy(edges, ~self.for_paging)[0])
        return Shares(true, total - true, total)

    def fault_rates(self) -> Shares | None:
        """Page faults a second: with I/O (true), without (virtual), all."""
        if not self.data["PAGEIN_END"].recorded:
            return None
        seconds = self.data.elapsed_ns / 1e9
        physical = int((self.faults["with_io"] != 0).sum())
        total = len(self.faults)
        return Shares(physical / seconds, (total - physical) / seconds, total / seconds)

    def devices(self) -> list[Device]:
        """Each block device that was used."""
        found = []
        edges = np.array([self.data.start_ns, self.data.stop_ns])
        for number in np.unique(self.requests["device"]).tolist():
            one = self.requests.take(self.requests["device"] == number)
            served = covered_ns(one["issued_ns"], one["completed_ns"], edges)[0]
            waited = total_ns(one["inserted_ns"], one["completed_ns"], edges)[0]
            found.append(
                Device(
                    number, len(one), int(one["bytes"].sum()),
                    float(served) / self.data.elapsed_ns, float(waited) / self.data.elapsed_ns,
                )
            )  # fmt: skip
        return found

    def slices(self, count: int) -> list[Slice]:
        """The session in `count` parts of one length; the highest figures are marked."""
        edges = np.linspace(self.data.start_ns, self.data.stop_ns, count + 1).astype(np.int64)
        turns, faults = self.turns, self.faults
        every = np.ones(len(self.requests), np.bool_)
        disk = self._disk_busy(edges, every) if self.data["DISK_COMPLETE"].recorded else None
        part_of = np.searchsorted(edges, turns["start_ns"], "right") - 1
        fault_part = np.searchsorted(edges, faults["stop_ns"], "right") - 1
        found = []
        for number, (start, stop) in enumerate(itertools.pairwise(edges)):
            mine = part_of == number
            busy = self.cpu_busy(int(start), int(stop))
            found.append(
                Slice(
                    float(start - edges[0]) / 1e9, float(stop - edges[0]) / 1e9, int(mine.sum()),
                    Times.of(turns["response_ns"][mine]),
                    float(np.mean(list(busy.values()))) if busy else None,
                    float(disk[number]) if disk is not None else None,
                    int((fault_part == number).sum()) if self.data["PAGEIN_END"].recorded else None,
                )
            )  # fmt: skip
        return _mark_peaks(found)

    def notes(self) -> list[str]:
        """What the reader of the report must know."""
        found = []
        absent = [
            what
            for what, event in (
                ("transactions (schema tty)", "TRANSACTION_END"),
                ("page faults (schema paging)", "PAGEIN_END"),
                ("disk requests (schema disk)", "DISK_COMPLETE"),
                ("exits (schema sched)", "EXIT"),
            )
            if not self.data[event].recorded
        ]
        if absent:
            found.append(f"not recorded: {', '.join(absent)}")
        if self.data.discarded:
            found.append(
                f"{self.data.discarded} of {self.data.buffers} buffers left out, with "
                f"{self.data.discarded_events} events: more were lost from each than allowed"
            )
        if self.data.lost:
            found.append(f"{self.data.lost} events were lost: tcpkmon verify lists the causes")
        return found


def _lasted(
    starts: EventTable, start_key: str, stops: EventTable, stop_key: str
) -> tuple[Times | None, Times | None]:
    """How long it was from each start to the next stop of the same key, and from a stop to the next
    start of any."""
    at = np.searchsorted(starts.times_ns, stops.times_ns)
    between = starts.times_ns[at[at < len(starts)]] - stops.times_ns[at < len(starts)]
    keys = np.concatenate((starts[start_key], stops[stop_key])).astype(np.int64)
    times = np.concatenate((starts.times_ns, stops.times_ns))
    is_stop = np.arange(len(keys)) >= len(starts)
    order = np.lexsort((is_stop, times, keys))
    keys, times, is_stop = keys[order], times[order], is_stop[order]
    ends = np.flatnonzero(is_stop[1:] & ~is_stop[:-1] & (keys[1:] == keys[:-1])) + 1
    return Times.of(times[ends] - times[ends - 1]), Times.of(between)


def _mark_peaks(slices: Sequence[Slice]) -> list[Slice]:
    marks: dict[int, list[str]] = {}
    for name in ("transactions", "response", "cpu", "disk", "faults"):
        values = [getattr(one, name) for one in slices]
        numbers = [one.mean if isinstance(one, Times) else one or 0 for one in values]
        if max(numbers, default=0) > 0:
            marks.setdefault(int(np.argmax(numbers)), []).append(name)
    return [replace(one, peak=tuple(marks.get(at, ()))) for at, one in enumerate(slices)]
