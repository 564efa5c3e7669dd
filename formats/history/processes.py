# SPDX-License-Identifier: Apache-2.0
"""The processes of a capture: whose they are, and the CPU time that each used meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.gather import EventTable
from tcpkmon.formats.history.spans import Spans

Array = NDArray[Any]
TASK = ("tid", "tgid", "uid", "cgroup", "cpu_time")
"""The fields of the group `task`, which events of a known thread have."""
NO_USER = (1 << 32) - 1


class Told(NamedTuple):
    """n times whose a process is: times_ns, tgid, uid (NO_USER) and cgroup (0), (n,) each."""

    times_ns: Array
    tgid: Array
    uid: Array
    cgroup: Array


class Processes:
    """n processes, by tgid in ascending order.

    tgids, uids, cgroups: (n,) int64, the last known user (NO_USER: none is known) and cgroup (0).
    cpu_ns: (n,) CPU time in the capture, as of the last event of each thread. fault_ns: (n,) the
    part that page faults took.
    """

    def __init__(
        self,
        owned: Sequence[EventTable],
        scheduled: Sequence[EventTable],
        forks: EventTable,
        faults: Spans,
        told: Sequence[Told],
    ) -> None:
        """owned: events with the fields TASK. scheduled: with pid, tgid and runtime. told: whose
        processes are, as other events say."""
        unknown = [np.full(len(table), NO_USER, np.int64) for table in scheduled]
        tid = _join([t["tid"] for t in owned] + [t["pid"] for t in scheduled])
        tgid = _join([t["tgid"] for t in (*owned, *scheduled)])
        uid = _join([t["uid"] for t in owned] + unknown)
        cgroup = _join([t["cgroup"] for t in owned] + [values * 0 for values in unknown])
        cpu = _join([t["cpu_time"] for t in owned] + [t["runtime"] for t in scheduled])
        when = _join([t.times_ns for t in (*owned, *scheduled)])
        order = np.argsort(when, kind="stable")
        order = order[tgid[order] > 0]
        tid, tgid, uid, cgroup, cpu = (one[order] for one in (tid, tgid, uid, cgroup, cpu))
        self.tgids, place = np.unique(tgid, return_inverse=True)
        every = (*told, Told(when[order], tgid, uid, cgroup))
        self.uids = self._last(every, [one.uid for one in every], NO_USER)
        self.cgroups = self._last(every, [one.cgroup for one in every], 0)
        self.cpu_ns = np.zeros(len(self.tgids), np.int64)
        lives, began = _lives(tid, when[order], forks)
        _, first, where = np.unique(lives, return_index=True, return_inverse=True)
        most = np.zeros(len(first), np.int64)
        np.maximum.at(most, where, cpu)
        # A thread that was made during the capture began with none.
        least = np.where(began[first], 0, cpu[first])
        np.add.at(self.cpu_ns, place[first], np.maximum(most - least, 0))
        self.fault_ns = np.zeros(len(self.tgids), np.int64)
        at, found = self.find(faults["tgid"])
        np.add.at(self.fault_ns, at, faults["cpu_ns"][found])

    def _last(self, told: Sequence[Told], values: Sequence[Array], unknown: int) -> Array:
        """(n,) the last known value of each process."""
        found = np.full(len(self.tgids), unknown, np.int64)
        order = np.argsort(_join([one.times_ns for one in told]), kind="stable")
        value = _join(values)[order]
        at, known = self.find(_join([one.tgid for one in told])[order])
        at, value = at[value[known] != unknown], value[known][value[known] != unknown]
        found[at] = value  # the last one stays
        return found

    def __len__(self) -> int:
        return len(self.tgids)

    def find(self, tgids: Array) -> tuple[Array, Array]:
        """The places of those of these tgids that are known, and their indices in `tgids`."""
        if not len(self):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        at = np.minimum(np.searchsorted(self.tgids, tgids), len(self) - 1)
        found = np.flatnonzero(self.tgids[at] == tgids)
        return at[found], found

    def are_members(self, tgids: Array, members: Array) -> Array:
        """(len(tgids),) whether each is a process in the mask `members`."""
        at, found = self.find(tgids)
        mask = np.zeros(len(tgids), np.bool_)
        mask[found] = members[at]
        return mask

    @property
    def true_cpu_ns(self) -> Array:
        """(n,) CPU time without that of page faults."""
        found: Array = np.maximum(self.cpu_ns - self.fault_ns, 0)
        return found

    def classes(self, limits_ms: Sequence[float], by_user: bool = False) -> Array:
        """(n,) how many of the limits the CPU time without page faults reaches. by_user: that of
        all processes of its user."""
        used = self.true_cpu_ns
        if by_user:
            _, user = np.unique(self.uids, return_inverse=True)
            sums = np.zeros(len(used), np.int64)
            np.add.at(sums, user, used)
            used = sums[user]
        found: Array = np.searchsorted(np.array(limits_ms) * 1e6, used, "right")
        return found


def _lives(tid: Array, when: Array, forks: EventTable) -> tuple[Array, Array]:
    """(n,) a number for each thread, and whether the capture saw it begin; in the order of `tid`.

    A kernel gives a tid again when the thread that had it is gone: each FORK begins another thread.
    """
    made = forks["child_pid"].astype(np.int64)
    is_fork = np.arange(len(made) + len(tid)) < len(made)
    tids = np.concatenate((made, tid))
    order = np.lexsort((np.concatenate((forks.times_ns, when)), tids))
    forked = is_fork[order]
    starts = forked.copy()
    starts[1:] |= np.diff(tids[order]) != 0
    starts[:1] = True
    number = np.cumsum(starts)
    lives, began = np.empty_like(number), np.empty_like(is_fork)
    lives[order] = number
    began[order] = forked[starts][number - 1]
    return lives[len(made) :], began[len(made) :]


def _join(parts: Sequence[Array]) -> Array:
    return np.concatenate([part.astype(np.int64) for part in parts])
