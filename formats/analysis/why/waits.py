# SPDX-License-Identifier: Apache-2.0
"""Which process a connection waited for, and what for: from sched beside tcp in one log.

    limits of the sender    | app            | cwnd | app   |     unknown: the same
    its process             | disk  | runs   |      | disk  |     adds up over all of app
    a receiver's reader     stalls of formats.analysis.stalls
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.doing import CPU_WAIT, DOING, RUNNING, Doing
from tcpkmon.formats.analysis.gather import EventTable, gather
from tcpkmon.formats.analysis.log import open_log
from tcpkmon.formats.analysis.stalls import Stall, find_stalls
from tcpkmon.formats.analysis.why.assemble import Table
from tcpkmon.formats.analysis.why.snapshots import Source
from tcpkmon.formats.base.tcp import Location
from tcpkmon.formats.klogger.logs import Logs

_LEAST_SHARE = 0.05
_IDLE = {"sleeps: poll", "sleeps: futex", "sleeps: wait", "sleeps: other"}
_SAID = {
    RUNNING: "ran", CPU_WAIT: "waited for a CPU", "sleeps: disk": "waited for the disk",
    "sleeps: socket": "waited for a socket", "sleeps: timer": "slept for a time of its own",
    "sleeps: pipe": "waited for a pipe", "sleeps: futex": "waited for another thread",
    "sleeps: tty": "waited for a terminal", "sleeps: wait": "waited for another process",
    "sleeps: poll": "waited in poll", "sleeps: other": "slept", "sleeps": "slept",
}  # fmt: skip


@dataclass(frozen=True)
class Wait:
    """What the process of a connection did while that waited for it.

    why: "app" (it had nothing to send), "unknown" (data and room, and nothing was sent), or
    "reader" (data waited to be read). span_ns: how long, together. did: for how long it did what
    [ns], as of Stall. pid, tid: of the process and its thread that did most; comm: its name, or "".
    """

    conn_id: int
    why: str
    pid: int
    tid: int
    comm: str
    span_ns: int
    did: Mapping[str, int]

    def __str__(self) -> str:
        name = f"{self.comm} ({self.pid})".strip()
        parts = [said_of(self.did, self.span_ns)]
        when = {
            "app": "while there was nothing to send",
            "unknown": "while data and room were there",
            "reader": f"while data waited for it ({self.span_ns / 1e6:.0f} ms)",
        }[self.why]
        if self.why == "reader" and 2 * self.did.get(CPU_WAIT, 0) > self.span_ns:
            parts.append("it is starved: look at its CPU quota (cpu.max of its cgroup, "
                         "nr_throttled in cpu.stat), and at what else runs there")  # fmt: skip
        owner = "reader" if self.why == "reader" else "sender"
        return f"the {owner}'s process {name}, {when}: {', '.join(parts)}"


def said_of(did: Mapping[str, int], span_ns: int) -> str:
    """What a thread did in a time, most first: for how long it did what [ns]."""
    return ", ".join(
        f"{_SAID.get(what, what)} {100 * ns / span_ns:.0f} % of that time"
        for what, ns in sorted(did.items(), key=lambda item: -item[1])
        if ns >= _LEAST_SHARE * span_ns
    )


def has_waits(source: Source) -> bool:
    """Whether the capture has what waits() needs: one log of tcp with owners, and sched."""
    reader = source.reader
    return isinstance(reader, Logs) and "pid" in source.names and all(
        reader.format.find_event(name) is not None for name in DOING
    )  # fmt: skip


def waits(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    connections: Table,
    intervals: Table,
) -> list[Wait]:
    """The waits of all connections with a known owner, those of a connection together.

    path: of a capture, or those of several of its segments. Of an owner's threads it takes the
    one that made most calls on the connection, where the log has calls, else the least idle one.

    UsageError where the log has no events of sched; DamagedError, FileError.
    """
    paths = [path] if isinstance(path, (str, os.PathLike)) else path
    with open_log(*paths) as log:
        data = gather(log, {**DOING, "SNAPSHOT": ("conn_id", "location")})
        classes = log.format.enums.get("sleep_class", {})
        doing = Doing(data["SLEEP"], data["ADD_TO_RUNQ"], data["SCHEDIN"], data["SCHEDOUT"],
                      classes)  # fmt: skip
        stalls: defaultdict[int, list[Stall]] = defaultdict(list)
        for stall in find_stalls(log):
            stalls[stall.conn_id].append(stall)
    callers = _callers(data["SNAPSHOT"], data["SCHEDIN"])
    found = []
    order = np.argsort(intervals["conn_id"], kind="stable")
    ids = intervals["conn_id"][order]
    for at in range(len(connections["conn_id"])):
        row = {name: connections[name][at] for name in ("conn_id", "pid", "comm", "duration_us")}
        conn_id = int(row["conn_id"])
        low, high = np.searchsorted(ids, [conn_id, conn_id + 1])
        mine = {name: intervals[name][order[low:high]]
                for name in ("start_ns", "end_ns", "family")}  # fmt: skip
        sends = connections["bytes_acked"][at] >= connections["bytes_received"][at]
        spans = {
            why: (mine["start_ns"][chosen], mine["end_ns"][chosen])
            for why in ("app", "unknown") if sends and (chosen := mine["family"] == why).any()
        }  # fmt: skip
        if stalled := stalls.get(conn_id):
            starts, stops = zip(*((one.start_ns, one.stop_ns) for one in stalled), strict=True)
            spans["reader"] = (np.array(starts), np.array(stops))
        if not row["pid"] > 0:
            continue
        for why, (starts, stops) in spans.items():
            span_ns = int((stops - starts).sum())
            if span_ns < _LEAST_SHARE * row["duration_us"] * 1000:
                continue
            tids = doing.threads(int(row["pid"]))
            called = callers.get((conn_id, why == "reader"), {})
            if known := [tid for tid in tids if tid in called]:
                tids = [max(known, key=lambda tid: called[tid])]
            if (one := _most(doing, tids, row, why, starts, stops, span_ns)) is not None:
                found.append(one)
    return found


Callers = dict[tuple[int, bool], dict[int, int]]


def _callers(snapshots: EventTable, switched_in: EventTable) -> Callers:
    """How often each thread made calls on each connection: to send, and (True) to receive.

    A call is recorded on the CPU on which its thread runs.
    """
    found: Callers = {}
    is_call = np.isin(snapshots["location"], (Location.SEND_CALL, Location.RECEIVE_CALL))
    calls = snapshots.take(is_call)
    for cpu in np.unique(calls.cpus).tolist():
        mine = calls.take(calls.cpus == cpu)
        runs = switched_in.take(switched_in.cpus == cpu)
        at = np.searchsorted(runs.times_ns, mine.times_ns, "right") - 1
        known = at >= 0
        mine, tids = mine.take(known), runs["pid"][at[known]]
        is_receive = mine["location"] == Location.RECEIVE_CALL
        keys = np.stack([mine["conn_id"].astype(np.int64), is_receive, tids])
        rows, counts_of = np.unique(keys.T, axis=0, return_counts=True)
        for (conn_id, receives, tid), count in zip(rows.tolist(), counts_of.tolist(), strict=True):
            counts = found.setdefault((conn_id, bool(receives)), {})
            counts[tid] = counts.get(tid, 0) + count
    return found


def _most(
    doing: Doing, tids: Sequence[int], row: Mapping[str, Any], why: str, starts: Any, stops: Any,
    span_ns: int,
) -> Wait | None:  # fmt: skip
    """Of these threads the one that was least idle; None where the log has none of them."""
    best: tuple[int, int, dict[str, int]] | None = None
    for tid in tids:
        did = doing.in_spans(tid, starts, stops)
        busy = sum(ns for what, ns in did.items() if what not in _IDLE)
        if did and (best is None or busy > best[0]):
            best = busy, tid, did
    if best is None:
        return None
    return Wait(int(row["conn_id"]), why, int(row["pid"]), best[1], row["comm"] or "", span_ns,
                best[2])  # fmt: skip
