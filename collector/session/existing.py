# SPDX-License-Identifier: Apache-2.0
"""The connections and sockets that existed before the capture."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.linux.netns import is_own
from tcpkmon.collector.linux.privileges import lacking
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.loader.socket_iterator import find_namespaces
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.points import row_of
from tcpkmon.collector.writer.base_events import socket_note
from tcpkmon.collector.writer.note import Note
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.control import EXISTING


class Existing(Closing):
    """Records the open connections of the network namespaces that the request names, or of all.

    Make it while this process has all its capabilities. Close it after the walk, since an open
    namespace outlives its container: close() also closes those of the request. Nothing is recorded
    with --no-existing.
    """

    def __init__(self, request: Request, prepared: Prepared, kernel: Kernel) -> None:
        self._filters = request.filters
        self._prepared = prepared
        self._kernel = kernel
        self._open = [space.fd for space in request.filters.namespaces]
        if request.existing and not self._open:
            may_enter = not lacking(["CAP_SYS_ADMIN"])
            for fd in find_namespaces():
                if may_enter or is_own(fd):
                    self._open.append(fd)
                else:
                    os.close(fd)
        self._namespaces = list(self._open) if request.existing else []
        self.listed = 0
        """How many connections sock_diag listed."""

    @property
    def namespaces(self) -> list[int]:
        """Descriptors of the namespaces that it lists, before close()."""
        return list(self._namespaces)

    def walk(self, step: int) -> Generator[list[Batch], None, None]:
        """Record them by the kernel's iterator, `step` at a time; drain the rings after each step.

        Without an iterator, yields what sock_diag lists, as records of a CPU after the last one.
        """
        if not self._namespaces or self._prepared.tcp is None:
            return
        walk = self._kernel.walk(self._namespaces, step)
        if walk is None:
            from tcpkmon.collector.loader.sock_diag import list_batch

            cpu = len(self._kernel.heads())
            batch = list_batch(self._prepared.layout, self._namespaces, self._filters, cpu)
            self.listed = len(batch.entries)
            yield [batch]
            return
        try:
            while walk.step():
                yield []
        finally:
            walk.close()

    def record(
        self,
        step: int,
        optional: Callable[[str, Callable[[], Any]], Any],
        push: Callable[[list[Batch]], None],
        drain: Callable[[], bool],
    ) -> None:
        """walk(), then close(). push: takes what is listed; drain: drains the rings, False to stop.
        optional: calls what may fail; None if it does."""
        with self, closing(self.walk(step)) as walk:
            what = "listing the open connections"
            while (listed := optional(what, lambda: next(walk, None))) is not None:
                push(listed)
                if not drain():
                    break

    def sockets(self) -> Iterator[Note]:
        """SOCKET_EXISTS of each TCP socket that sock_diag lists."""
        from tcpkmon.collector.loader.sock_diag import list_connections

        for one in list_connections(self._namespaces, Filters(), every=True):
            yield socket_note(
                one.netns, one.inode, one.family, one.state,
                (one.local, one.local_port), (one.remote, one.remote_port),
            )  # fmt: skip

    def heads(self) -> NDArray[Any]:
        """The kernel's counts by CPU, and in the last row those of the entries of sock_diag."""
        heads = self._kernel.heads()
        listed = np.zeros(1, heads.dtype)
        listed["serial"] = self.listed
        for name in ("attempts", "written"):
            listed["accounts"][name][0, row_of(EXISTING)] = self.listed
        return np.concatenate((heads, listed))

    def close(self) -> None:
        """Close the namespaces' descriptors. It may be called again."""
        self._namespaces = []
        while self._open:
            os.close(self._open.pop())
