# SPDX-License-Identifier: Apache-2.0
"""The condenser's figures computed again, one event after the other, by docs/condense.md alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from statistics import fmean
from typing import Any

from tcpkmon.formats.analysis import Event
from tcpkmon.formats.history import NO_USER

Span = tuple[int, int]
SWAP = 32
"""Of a request's flags: for swap (bpf/schemata/disk.conf)."""
CLASSES = ("Light", "Medium", "Heavy", "Overall")
OWNERS = {"PROCESS_EXISTS": "pid", "FORK": "child_tgid", "EXEC": "tgid", "EXIT": "tgid"}
"""Events that tell whose a process is, and the field that names the process."""


class Reference:
    """Give it all events of a log in time order, by add(); report() has the figures then."""

    def __init__(self) -> None:
        self.begin: int | None = None
        self.end = 0
        self.turns: list[tuple[int, int]] = []  # ns, tgid
        self.thoughts: list[tuple[int, int]] = []
        self._typed: dict[Any, int] = {}
        self._answered: dict[Any, tuple[int, int]] = {}
        self.faults: dict[int, list[int]] = defaultdict(lambda: [0, 0])  # tgid: without I/O, with
        self._of_faults: dict[int, int] = defaultdict(int)  # tgid: ns of CPU
        self._fault: dict[int, Event] = {}  # the START of each thread
        self._lately: dict[int, list[dict[str, Any]]] = defaultdict(list)  # requests of a thread
        self._open: dict[int, dict[str, Any]] = {}
        self.requests: list[dict[str, Any]] = []
        self._life: dict[int, list[int]] = {}  # thread: first and most CPU time of this life
        self._owner: dict[int, int] = {}
        self.cpu: dict[int, int] = defaultdict(int)
        self.uid: dict[int, int] = {}
        self._session: dict[int, int] = {}
        self.sessions: list[int] = []
        self.pauses: list[int] = []
        self._logouts: list[int] = []
        self._runs: dict[int, tuple[int, bool]] = {}
        self._busy: dict[int, int] = defaultdict(int)
        self._by_name: dict[str, Callable[[Event], None]] = {
            "TRANSACTION_START": self._typing, "TRANSACTION_END": self._answer,
            "PAGEIN_START": self._fault_begins, "PAGEIN_END": self._fault_ends,
            "DISK_INSERT": self._insert, "DISK_ISSUE": self._issue, "DISK_COMPLETE": self._complete,
            "LOGIN": self._login, "LOGOUT": self._logout, "FORK": self._fork,
            "SCHEDIN": self._switch_in,
        }  # fmt: skip

    def add(self, event: Event) -> None:
        if self.begin is None and event.type != "CLOCK":  # which may be of before
            self.begin = event.timestamp
        self.end = max(self.end, event.timestamp)
        if event.type in ("SCHEDOUT", "EXIT"):
            self._use(event["pid"], event["tgid"], event["runtime"], NO_USER)
        elif "cpu_time" in event.fields:
            self._use(event["tid"], event["tgid"], event["cpu_time"], event["uid"])
        if event.type in OWNERS:
            tgid = event[OWNERS[event.type]]
            if event["uid"] != NO_USER:
                self.uid[tgid] = event["uid"]
        handle = self._by_name.get(event.type)
        if handle is not None:
            handle(event)

    def _use(self, tid: int, tgid: int, used: int, uid: int) -> None:
        """A thread has used so much CPU time by now."""
        if tgid <= 0:
            return
        self.cpu[tgid] += 0
        life = self._life.setdefault(tid, [used, used])
        if used > life[1]:
            # What a thread gains belongs to its process.
            self.cpu[tgid] += used - life[1]
            life[1] = used
        if uid != NO_USER:
            self.uid[tgid] = uid

    def _fork(self, event: Event) -> None:
        self._life[event["child_pid"]] = [0, 0]

    def _typing(self, event: Event) -> None:
        terminal = (event["device"], event["tty"])
        if terminal in self._typed:
            return
        self._typed[terminal] = event.timestamp
        if terminal in self._answered:
            when, tgid = self._answered.pop(terminal)
            self.thoughts.append((event.timestamp - when, tgid))

    def _answer(self, event: Event) -> None:
        terminal = (event["device"], event["tty"])
        if terminal in self._typed:
            began = self._typed.pop(terminal)
            self.turns.append((event.timestamp - began, event["tgid"]))
            self._answered[terminal] = (event.timestamp, event["tgid"])
        elif terminal not in self._answered:
            self._answered[terminal] = (event.timestamp, event["tgid"])

    def _fault_begins(self, event: Event) -> None:
        self._fault[event["tid"]] = event

    def _fault_ends(self, event: Event) -> None:
        if event["tid"] not in self._fault:
            return
        start = self._fault.pop(event["tid"])
        since = event.get("since") or start.timestamp
        used = max(0, event["cpu_time"] - start["cpu_time"])
        self._of_faults[event["tgid"]] += used
        self.faults[event["tgid"]][event["with_io"] != 0] += 1
        # Its START came with its END: what the thread asked of a disk since then is known by now.
        for request in self._lately.pop(event["tid"], ()):
            request["fault"] = request["inserted"] >= since

    def _insert(self, event: Event) -> None:
        if event["request"]:
            known = ("device", "tid", "tgid")
            one = {
                **{name: event[name] for name in known}, "bytes": 0, "fault": False,
                "swap": event["flags"] & SWAP != 0,
                "inserted": event.timestamp, "issued": event.timestamp,
            }  # fmt: skip
            self._open[event["request"]] = one
            self._lately[event["tid"]].append(one)

    def _issue(self, event: Event) -> None:
        if event["request"] in self._open:
            self._open[event["request"]]["issued"] = event.timestamp

    def _complete(self, event: Event) -> None:
        one = self._open.get(event["request"])
        if one is None:
            return
        one["bytes"] += event["bytes"]
        if event["last"]:
            one["completed"] = event.timestamp
            self.requests.append(self._open.pop(event["request"]))

    def _login(self, event: Event) -> None:
        self._session.setdefault(event["session"], event.timestamp)
        self.pauses += [event.timestamp - when for when in self._logouts]
        self._logouts.clear()

    def _logout(self, event: Event) -> None:
        self._logouts.append(event.timestamp)
        if event["session"] in self._session:
            self.sessions.append(event.timestamp - self._session[event["session"]])

    def _switch_in(self, event: Event) -> None:
        since, _ = self._runs.get(event.cpu, (self.begin or event.timestamp, False))
        self._busy[event.cpu] += (event.timestamp - since) * (event["prev_pid"] != 0)
        self._runs[event.cpu] = (event.timestamp, event["pid"] != 0)

    def report(self, limits_ms: Sequence[float] = (10, 1000)) -> dict[str, Any]:
        """As `tcpkmon condense --json`, of its parts classes, users, cpu, disk, faults_per_s,
        devices and cpus."""
        elapsed_ns = self.end - (self.begin or 0)
        of_faults = self._of_faults
        true = {tgid: max(0, used - of_faults[tgid]) for tgid, used in self.cpu.items()}
        light, heavy = (1e6 * limit for limit in limits_ms)
        members: dict[str, set[int]] = {name: set() for name in CLASSES}
        by_user: dict[str, set[int]] = defaultdict(set)
        for tgid, used in true.items():
            name = "Light" if used < light else "Medium" if used < heavy else "Heavy"
            members[name].add(tgid)
            members["Overall"].add(tgid)
            by_user[str(self.uid.get(tgid, NO_USER))].add(tgid)
        classes = [self._group(name, mine, true) for name, mine in members.items()]
        classes[-1] |= {"login": times(self.sessions), "logout": times(self.pauses)}
        cpus = {}
        for number, busy_ns in self._busy.items():
            since, busy = self._runs[number]
            cpus[str(number)] = (busy_ns + (self.end - since) * busy) / elapsed_ns
        cpu = fmean(cpus.values()) if cpus else 0.0
        virtual = min(cpu, sum(of_faults.values()) / elapsed_ns / max(1, len(cpus)))
        rates = [
            1e9 * sum(counts[io] for counts in self.faults.values()) / elapsed_ns for io in (1, 0)
        ]
        devices = [self._device(one, elapsed_ns) for one in sorted(
            {request["device"] for request in self.requests}
        )]  # fmt: skip
        disk = [fmean([one["shares"][at] for one in devices] or [0.0]) for at in (0, 1)]
        return {
            "classes": classes,
            "users": [
                self._group(name, by_user[name], true) for name in sorted(by_user, key=int)
            ],
            "cpu": {"true": cpu - virtual, "virtual": virtual, "total": cpu},
            "disk": {"true": disk[0], "virtual": disk[1] - disk[0], "total": disk[1]},
            "faults_per_s": {"true": rates[0], "virtual": rates[1], "total": sum(rates)},
            "devices": [{k: v for k, v in one.items() if k != "shares"} for one in devices],
            "cpus": cpus,
        }

    def _group(
        self, name: str, members: Collection[int], true: dict[int, int]
    ) -> dict[str, Any]:
        virtual, physical = (
            sum(self.faults[tgid][io] for tgid in members if tgid in self.faults) for io in (0, 1)
        )
        return {
            "name": name,
            "processes": len(members),
            "response": times([ns for ns, tgid in self.turns if tgid in members]),
            "think": times([ns for ns, tgid in self.thoughts if tgid in members]),
            "cpu": times([true[tgid] for tgid in members]),
            "io": times([
                one["completed"] - one["inserted"] for one in self.requests
                if one["tgid"] in members and not one["fault"] and not one["swap"]
            ]),
            "physical_faults": physical,
            "virtual_faults": virtual,
        }  # fmt: skip

    def _device(self, number: int, elapsed_ns: int) -> dict[str, Any]:
        mine = [one for one in self.requests if one["device"] == number]
        shares = [
            covered((one["issued"], one["completed"]) for one in chosen) / elapsed_ns
            for chosen in ([one for one in mine if not one["fault"] and not one["swap"]], mine)
        ]
        waited = sum(one["completed"] - one["inserted"] for one in mine)
        return {
            "number": number, "requests": len(mine), "bytes": sum(one["bytes"] for one in mine),
            "utilisation": shares[1], "mean_depth": waited / elapsed_ns, "shares": shares,
        }  # fmt: skip


def covered(spans: Iterable[Span]) -> int:
    """How long at least one of them lasted."""
    found, until = 0, 0
    for start, stop in sorted(spans):
        found += max(0, stop - max(start, until))
        until = max(until, stop)
    return found


def times(durations_ns: Sequence[int]) -> dict[str, float] | None:
    if not durations_ns:
        return None
    ordered = [ns / 1e9 for ns in sorted(durations_ns)]

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return {
        "count": len(ordered), "mean": fmean(ordered), "p50": at(0.5), "p95": at(0.95),
        "most": ordered[-1],
    }  # fmt: skip


def compare(told: Any, again: Any, where: str = "") -> tuple[int, list[str]]:
    """How many cells of `again` there are, and those that `told` has otherwise."""
    if isinstance(again, dict) and isinstance(told, dict):
        parts = [compare(told.get(key), value, f"{where}.{key}") for key, value in again.items()]
    elif isinstance(again, list) and isinstance(told, list) and len(again) == len(told):
        parts = [
            compare(one, other, f"{where}[{at}]")
            for at, (one, other) in enumerate(zip(told, again, strict=True))
        ]
    else:
        numbers = isinstance(told, (int, float)) and isinstance(again, (int, float))
        same = math.isclose(told, again, rel_tol=1e-9, abs_tol=1e-9) if numbers else told == again
        return 1, [] if same else [f"{where.lstrip('.')}: {told}, again {again}"]
    return sum(count for count, _ in parts), [text for _, wrong in parts for text in wrong]
