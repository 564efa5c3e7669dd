# SPDX-License-Identifier: Apache-2.0
"""What each thread did from when until when: ran, waited for a CPU, slept for what.

It needs the events of the schema sched: SLEEP, ADD_TO_RUNQ, SCHEDIN, SCHEDOUT.
"""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.gather import EventTable

RUNNING, CPU_WAIT = "running", "waits for a CPU"
DOING = {
    "SLEEP": ("tid", "class"),
    "ADD_TO_RUNQ": ("pid", "tgid"),
    "SCHEDIN": ("pid", "tgid"),
    "SCHEDOUT": ("pid", "tgid", "state"),
}
"""The events and their fields that Doing is made of."""


class Doing:
    """What each thread did from when until when: spans of (tid, what), from the switches."""

    def __init__(
        self, sleep: EventTable, queued: EventTable, switched_in: EventTable,
        switched_out: EventTable, classes: dict[int, str],
    ) -> None:  # fmt: skip
        self._names: list[str] = [RUNNING, CPU_WAIT, "sleeps"]
        places = {number: self._place(name) for number, name in classes.items()}
        kinds = np.array([places.get(int(value), 2) for value in sleep["class"]], np.int64)
        stays = switched_out["state"] == 0  # it stays runnable
        parts = (
            (sleep["tid"], sleep.times_ns, kinds),
            (queued["pid"], queued.times_ns, np.ones(len(queued), np.int64)),
            (switched_in["pid"], switched_in.times_ns, np.zeros(len(switched_in), np.int64)),
            (switched_out["pid"][stays], switched_out.times_ns[stays],
             np.ones(int(stays.sum()), np.int64)),
        )  # fmt: skip
        tids, times, what = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.lexsort((times, tids))
        self._tids, self._times, self._what = tids[order], times[order], what[order]
        owners = [(table["pid"], table["tgid"]) for table in (queued, switched_in, switched_out)]
        self._threads: dict[int, set[int]] = {}
        for mine, process in owners:
            for tid, tgid in {*zip(mine.tolist(), process.tolist(), strict=True)}:
                self._threads.setdefault(tgid, set()).add(tid)

    def _place(self, name: str) -> int:
        text = f"sleeps: {name.lower()}"
        if text not in self._names:
            self._names.append(text)
        return self._names.index(text)

    def most(self, pid: int, start_ns: int, stop_ns: int) -> tuple[int, dict[str, int]]:
        """The thread of a process that was least idle in this time, and for how long it did what.

        Idle is to sleep in poll, futex or wait: there a reader with data does not sleep.
        """
        idle = {"sleeps: poll", "sleeps: futex", "sleeps: wait", "sleeps: other"}
        best: tuple[int, dict[str, int]] = (0, {})
        score = -1
        for tid in sorted(self._threads.get(pid, ())):
            did = self.of_thread(tid, start_ns, stop_ns)
            busy = sum(ns for what, ns in did.items() if what not in idle)
            if busy > score:
                best, score = (tid, did), busy
        return best

    def threads(self, pid: int) -> list[int]:
        """Those of a process that the log has."""
        return sorted(self._threads.get(pid, ()))

    def in_spans(self, tid: int, starts: Array, stops: Array) -> dict[str, int]:
        """For how long a thread did what in all these times together [ns]; they do not overlap."""
        low, high = np.searchsorted(self._tids, [tid, tid + 1])
        times, what = self._times[low:high], self._what[low:high]
        found = {}
        for number in np.unique(what).tolist():
            # How much of it there was until each change, and from that until any time.
            spans = np.where(what[:-1] == number, np.diff(times), 0)
            sums = np.concatenate(([0], np.cumsum(spans)))
            after = np.where(what[-1] == number, np.maximum(stops - times[-1], 0)
                             - np.maximum(starts - times[-1], 0), 0)  # fmt: skip
            inside = np.interp(stops, times, sums) - np.interp(starts, times, sums) + after
            if total := int(inside.sum()):
                found[self._names[number]] = total
        return found

    def of_thread(self, tid: int, start_ns: int, stop_ns: int) -> dict[str, int]:
        """For how long a thread did what in this time [ns]."""
        low, high = np.searchsorted(self._tids, [tid, tid + 1])
        times, what = self._times[low:high], self._what[low:high]
        starts = np.clip(times, start_ns, stop_ns)
        stops = np.clip(np.append(times[1:], stop_ns), start_ns, stop_ns)
        sums = np.bincount(what, stops - starts, len(self._names))
        return {
            name: int(ns) for name, ns in zip(self._names, sums.tolist(), strict=True) if ns
        }
