# SPDX-License-Identifier: Apache-2.0
"""Compares the last record of each connection with what the kernel's sockets say.

    sock_diag asked     |t0 ......... t1|
    last record    A ^                           nothing happened since: must equal the socket
    last record                  B ^             something happened meanwhile: not compared

The values of a connection that is at rest are those of its last record, and what a segment that was
recorded before TCP took it brought. It works in short turns, between which the rings are drained.
Without privileges: the sockets were made before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.metrics.watching import Watching
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.session.counts import Counts
from tcpkmon.collector.session.differences import Found, find_differences
from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.base.reconciled import Reconciled, What, When

LISTED = 100
"""The most differences that get an entry of their own each time."""
REST_NS = 1_000_000
"""A record may be so much older than what TCP does right after it."""
TURN_S = 0.01
"""The rings are drained so often."""
_AT_ONCE = 4096
"""Connections that are compared at once."""

_NEEDED = {"time_ns", "laddr", "raddr", "lport", "rport", "conn_id", "location", "callvalue"}

Work = Generator[bool, None, None]
"""Yields where the rings may be drained; True: where they must be."""


class Reconciling:
    """Asks and compares, if the request says so. Make it before privileges are given up.

    OSError and TcpkmonError where the kernel refuses.
    """

    def __init__(self, request: Request, counts: Counts, watching: Watching) -> None:
        self._counts, self._watching, self._stream = counts, watching, counts.stream
        self._work: Work | None = None
        self._began_ns = 0
        self._sockets: list[NDArray[Any]] = []
        self._wires: list[Any] = []
        for namespace in counts.existing.namespaces if request.reconcile else ():
            # The import of pyroute2 is slow, and few captures need it.
            from tcpkmon.collector.loader.sock_diag import open_wire

            with suppress(OSError, TcpkmonError):  # a namespace without it is not compared
                self._wires.append(open_wire(namespace))

    def start(self, step: Callable[[], None]) -> None:
        """Compare at the start. step: a round, with step() in it."""
        self._begin(When.START)
        self._finish(step)

    def rotated(self) -> None:
        """Compare from now on, in step(); not while an earlier comparison is under way."""
        self._begin(When.ROTATION)

    def step(self) -> None:
        """Work for a turn. Call it after the rings were drained."""
        if self._work is None:
            return
        until_s = time.monotonic() + TURN_S
        for must_drain in self._work:
            if must_drain or time.monotonic() >= until_s:
                return
        self._work = None

    def wait_s(self, most: float) -> float:
        """How long a round may wait for records."""
        return most if self._work is None else 0.0

    def ask(self, step: Callable[[], None]) -> None:
        """At the end, list the kernel's connections before the programs are detached.

        step: as in start().
        """
        self._finish(step)
        if self._wires:
            self._work = self._list()
            self._finish(step)

    def compare(self, lost: int) -> None:
        """At the end: with all records. lost: those that the file lacks."""
        if self._sockets:
            for _ in self._compare(When.END, lambda: lost):
                pass

    def _begin(self, when: When) -> None:
        if self._wires and self._work is None:
            self._work = self._whole(when)

    def _finish(self, step: Callable[[], None]) -> None:
        while self._work is not None:
            step()

    def _whole(self, when: When) -> Work:
        try:
            yield from self._list()
            rest_ns = time.monotonic_ns() + REST_NS
            while time.monotonic_ns() < rest_ns:
                yield True
            yield True
            yield from self._compare(when, self._counts.absent)
        finally:
            self._watching.table().hold(False)

    def _list(self) -> Work:
        """List the kernel's connections."""
        from tcpkmon.collector.loader.sock_diag import list_by

        self._watching.table().hold(True)
        self._began_ns = time.monotonic_ns()
        pieces = []
        for piece in list_by(self._wires, self._counts.kernel.filters):
            pieces.append(piece)
            yield False
        self._sockets = pieces

    def _compare(self, when: When, lost: Callable[[], int]) -> Work:
        """Compare with the records so far, which must be those before the question at least."""
        sockets, self._sockets = np.concatenate(self._sockets), []
        sockets = sockets[np.unique(sockets["cookie"], return_index=True)[1]]
        yield False
        table = self._watching.table()
        slots, is_full = table.slots(), not table.is_whole
        if lacking := _NEEDED - set(table.names):
            raise TcpkmonError(f"the columns {', '.join(sorted(lacking))} are not stored")
        rows: dict[str, NDArray[Any]] = {}
        # The time is the last one: whatever changed meanwhile is then not compared.
        for name in (*(name for name in table.names if name != "time_ns"), "time_ns"):
            rows[name] = table.values(name, slots)
            yield False
        table.hold(False)
        rows["at_rest"] = rows["time_ns"].astype(np.int64) < self._began_ns - REST_NS
        found = Found()
        if not self._stream.altered:
            for _ in find_differences(rows, is_full, sockets, found, _AT_ONCE, LISTED):
                yield False
        count = min(lost(), 0xFFFFFFFF)
        summary = Reconciled(
            when, What.SUMMARY, found.differences, found.compared, len(sockets), count
        )
        told = [] if count else [Reconciled(when, *one) for one in found.told]
        self._stream.tell([summary, *told])
