# SPDX-License-Identifier: Apache-2.0
"""Compares the last record of each connection with what the kernel's sockets say.

    sock_diag asked     |t0 ......... t1|
    last record    A ^                           nothing happened since: must equal the socket
    last record                  B ^             something happened meanwhile: not compared

The values of a connection that is at rest are those of its last record, and what a segment that was
recorded before TCP took it brought. Without privileges: the sockets were made before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from collector.metrics.watching import Watching
from collector.plan.request import Request
from collector.session.existing import Existing
from collector.writer.base_stream import Stream
from formats.base.errors import TcpkmonError
from formats.base.reconciled import Reconciled, What

if TYPE_CHECKING:
    from collector.loader.sock_diag import Connection

LISTED = 100
"""The most differences that get an entry of their own each time."""
REST_NS = 1_000_000
"""A record may be so much older than what TCP does right after it."""
PAUSE_S = 0.02
"""The rings are drained so often while the kernel lists its sockets."""
_RECEIVED, _STATE_CHANGE = 1, 4
_ESTABLISHED = 1


class Reconciling:
    """Asks and compares, if the request says so. Make it before privileges are given up.

    step: drains the rings. OSError and TcpkmonError where the kernel refuses.
    """

    def __init__(
        self,
        request: Request,
        existing: Existing,
        watching: Watching,
        stream: Stream[Any],
        step: Callable[[], None],
    ) -> None:
        self._watching, self._stream, self._step = watching, stream, step
        self._filters = request.filters
        self._asked: tuple[int, list[Connection]] | None = None
        self._wires: list[Any] = []
        for namespace in existing.namespaces if request.reconcile else ():
            # The import of pyroute2 is slow, and few captures need it.
            from collector.loader.later_listing import open_wire

            with suppress(OSError, TcpkmonError):  # a namespace without it is not compared
                self._wires.append(open_wire(namespace))

    def start(self) -> None:
        """At the start: ask, drain what was recorded meanwhile, and compare."""
        self.ask()
        if self._wires:
            time.sleep(REST_NS / 1e9)
            self._step()
            self.compare(0, 0)

    def ask(self) -> None:
        """List the kernel's connections. The rings are drained meanwhile."""
        if not self._wires:
            return
        from collector.loader.later_listing import list_by

        next_s = time.monotonic() + PAUSE_S

        def pause() -> None:
            nonlocal next_s
            if time.monotonic() >= next_s:
                self._step()
                next_s = time.monotonic() + PAUSE_S

        began_ns = time.monotonic_ns()
        self._asked = began_ns, list_by(self._wires, self._filters, pause)

    def compare(self, when: int, lost: int) -> None:
        """Compare with the records so far, which must be all; lost: records that were lost."""
        asked, self._asked = self._asked, None
        if asked is None:
            return
        rows, is_full = self._watching.last_records()
        compared, found = find_differences(rows, is_full, *asked)
        differences = list(found)
        summary = Reconciled(
            when, What.SUMMARY, len(differences), compared[0], len(asked[1]), min(lost, 0xFFFFFFFF)
        )
        told = [] if lost else differences[:LISTED]
        entries = [summary, *(Reconciled(when, *one) for one in told)]
        self._stream.reconciled(entries)


def find_differences(
    rows: NDArray[Any], is_full: bool, began_ns: int, connections: Iterable[Connection]
) -> tuple[list[int], Iterator[tuple[int, int, int, int, int]]]:
    """The count of compared connections (complete when the differences are read), and these: what,
    conn_id, by the record, by the kernel, ports.

    rows: last records; is_full: there may be more connections.
    """
    names = rows.dtype.names or ()
    has_netns = "netns" in names
    compared = [0]

    def key(row: Any) -> tuple[Any, ...]:
        ends = (bytes(row["laddr"]), int(row["lport"]), bytes(row["raddr"]), int(row["rport"]))
        return (int(row["netns"]), *ends) if has_netns else ends

    def walk() -> Iterator[tuple[int, int, int, int, int]]:
        by_ends: dict[tuple[Any, ...], list[Any]] = {}
        for row in rows:
            by_ends.setdefault(key(row), []).append(row)
        for one in connections:
            ends: tuple[Any, ...] = (one.local, one.local_port, one.remote, one.remote_port)
            mine = by_ends.get((one.netns, *ends) if has_netns else ends, [])
            ports = one.local_port << 16 | one.remote_port
            if not mine and not is_full:
                compared[0] += 1
                yield What.NO_RECORD, 0, 0, one.state, ports
            if len(mine) != 1 or int(mine[0]["time_ns"]) >= began_ns - REST_NS:
                continue
            compared[0] += 1
            row = mine[0]
            for what, record, kernel in _compare(row, names, one):
                if record != kernel:
                    yield what, int(row["conn_id"]), record, kernel, ports

    return compared, walk()


def _compare(row: Any, names: tuple[str, ...], one: Connection) -> Iterator[tuple[int, int, int]]:
    """What, by the record, by the kernel: of a connection at rest."""
    from collector.loader.tcp_info import TCP_INFO

    changes = int(row["location"]) == _STATE_CHANGE
    state = int(row["callvalue"]) if changes else int(row["state"])
    yield What.STATE, state, one.state
    if not state == one.state == _ESTABLISHED:
        return  # only those have a record of each segment
    info = np.frombuffer(one.info[: TCP_INFO.itemsize].ljust(TCP_INFO.itemsize, b"\0"), TCP_INFO)[0]
    segment = int(row["location"]) == _RECEIVED
    if "bytes_acked" in names and (not segment or "seg_ack" in names):
        more = _ahead(int(row["seg_ack"]), int(row["snd_una"])) if segment else 0
        yield What.BYTES_ACKED, int(row["bytes_acked"]) + more, int(info["bytes_acked"])
    if "bytes_received" in names and not info["rcv_ooopack"] and (
        not segment or {"seg_seq", "seg_len", "rcv_nxt"} <= set(names)
    ):
        more = 0
        if segment and not _ahead(int(row["seg_seq"]), int(row["rcv_nxt"])):
            end = int(row["seg_seq"]) + int(row["seg_len"])
            more = _ahead(end, int(row["rcv_nxt"]))
        yield What.BYTES_RECEIVED, int(row["bytes_received"]) + more, int(info["bytes_received"])
    if "total_retrans" in names:
        # A segment that this machine itself dropped is counted, and no retransmission for us.
        record, kernel = int(row["total_retrans"]), int(info["total_retrans"])
        yield What.RETRANSMITS, record, min(record, kernel)


def _ahead(number: int, before: int) -> int:
    """How far a sequence number is ahead of another; 0 if it is not."""
    step = (number - before) & 0xFFFFFFFF
    return step if step < 1 << 31 else 0
