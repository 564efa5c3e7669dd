# SPDX-License-Identifier: Apache-2.0
"""Stalls of TCP readers, and what the reading thread did meanwhile: waited for a disk, a CPU ...

It needs one log with the schemata tcp (with the column pid: --columns full), sched, and for the
disk requests disk. A connection stalls while data waits for its reader and nothing is read:

    snapshots      1      2      3      4      5
    unread [kB]    0      9     90    180     20      2 to 5: nothing was read in between
    the reader       reads |  sleeps in a disk request, becomes runnable, runs | reads
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tcpkmon.formats.analysis.doing import DOING, Doing
from tcpkmon.formats.analysis.gather import EventTable, gather
from tcpkmon.formats.analysis.log import Log
from tcpkmon.formats.base.errors import UsageError

LEAST_NS = 5_000_000
_WANTED = {
    "SNAPSHOT": ("conn_id", "lport", "rport", "rcv_nxt", "rcv_sb_cc", "pid"),
    **DOING,
    "DISK_COMPLETE": ("tgid", "device", "bytes"),
}
_NEEDED = ("SNAPSHOT", *DOING)


@dataclass(frozen=True)
class Stall:
    """Nothing was read from a connection from start_ns to stop_ns (CLOCK_MONOTONIC).

    unread: bytes that waited at its end. tid: the thread of the owner (pid) that did most
    meanwhile; did: for how long it did what [ns]: RUNNING, CPU_WAIT, or the class of its sleep.
    requests: disk requests of the owner that were completed meanwhile.
    """

    conn_id: int
    lport: int
    rport: int
    start_ns: int
    stop_ns: int
    unread: int
    pid: int
    tid: int = 0
    did: dict[str, int] = field(default_factory=dict)
    requests: int = 0

    @property
    def cause(self) -> str:
        """What took most of the time; "unknown" where the log does not have the thread."""
        return max(self.did, key=lambda what: self.did[what]) if self.did else "unknown"

    def __str__(self) -> str:
        length = (self.stop_ns - self.start_ns) / 1e6
        shares = ", ".join(
            f"{what} {ns / 1e6:.1f} ms"
            for what, ns in sorted(self.did.items(), key=lambda item: -item[1])
        )
        disk = f"; {self.requests} disk requests" if self.requests else ""
        return (
            f"{self.lport}.{self.rport}: not read for {length:.1f} ms, {self.unread} bytes waited; "
            f"process {self.pid}: {shares or 'unknown'}{disk}"
        )


def find_stalls(log: Log, least_ns: int = LEAST_NS) -> list[Stall]:
    """The stalls of at least that length, in time order.

    UsageError where the log has no events of a schema that this needs, DamagedError, FileError.
    """
    for name in _NEEDED:
        if log.format.find_event(name) is None:
            raise UsageError(
                f"the log has no event {name}",
                "collect --schema tcp --columns full --schema sched --schema disk",
            )
    data = gather(log, _WANTED)
    classes = log.format.enums.get("sleep_class", {})
    doing = Doing(data["SLEEP"], data["ADD_TO_RUNQ"], data["SCHEDIN"], data["SCHEDOUT"], classes)
    done = data["DISK_COMPLETE"]
    found = []
    for stall in _silences(data["SNAPSHOT"], least_ns):
        tid, did = doing.most(stall.pid, stall.start_ns, stall.stop_ns)
        inside = (done.times_ns >= stall.start_ns) & (done.times_ns <= stall.stop_ns)
        requests = int((done["tgid"][inside] == stall.pid).sum())
        found.append(replace(stall, tid=tid, did=did, requests=requests))
    return sorted(found, key=lambda stall: stall.start_ns)


def _silences(table: EventTable, least_ns: int) -> list[Stall]:
    """The times in which data waited and nothing was read, without what the reader did."""
    order = np.lexsort((table.times_ns, table["conn_id"]))
    ids, times = table["conn_id"][order], table.times_ns[order]
    unread = table["rcv_sb_cc"][order].astype(np.int64)
    copied = (table["rcv_nxt"][order].astype(np.int64) - unread) % (1 << 32)
    waits = np.zeros(len(ids), np.bool_)  # nothing was read between this snapshot and the next
    waits[:-1] = (ids[1:] == ids[:-1]) & (copied[1:] == copied[:-1]) & (unread[:-1] > 0)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], waits, [False])).astype(np.int8)))
    found = []
    for first, last in edges.reshape(-1, 2).tolist():
        # It was read between `last` and the snapshot after that, which bounds the stall.
        stop = min(last + 1, len(ids) - 1)
        stop = stop if ids[stop] == ids[first] else last
        if times[stop] - times[first] < least_ns:
            continue
        at = order[last]
        found.append(
            Stall(
                int(ids[first]), int(table["lport"][at]), int(table["rport"][at]),
                int(times[first]), int(times[stop]), int(unread[last]), int(table["pid"][at]),
            )
        )  # fmt: skip
    return found
