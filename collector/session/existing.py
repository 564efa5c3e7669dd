# SPDX-License-Identifier: Apache-2.0
"""The connections and sockets that existed before the capture."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from tcpkmon.collector.linux.netns import is_own
from tcpkmon.collector.linux.privileges import lacking
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.loader.socket_iterator import find_namespaces
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.writer.base_events import socket_note
from tcpkmon.collector.writer.note import Note
from tcpkmon.formats.base.closing import Closing


class Existing(Closing):
    """Records the open connections of the network namespaces that the request names, or of all.

    Make it while this process has all its capabilities. Close it after the walk, since an open
    namespace outlives its container: close() also closes those of the request. Nothing is recorded
    with --no-existing.
    """

    def __init__(self, request: Request, prepared: Prepared, kernel: Kernel) -> None:
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

    @property
    def namespaces(self) -> list[int]:
        """Descriptors of the namespaces that it lists, before close()."""
        return list(self._namespaces)

    def record(
        self,
        step: int,
        optional: Callable[[str, Callable[[], Any]], Any],
        drain: Callable[[], bool],
    ) -> None:
        """Record them by the kernel's iterator, `step` at a time, then close().

        drain: drains the rings, which it calls after each step; False to stop. optional: calls what
        may fail; None if it does.
        """
        with self:
            if not self._namespaces or self._prepared.tcp is None:
                return
            what = "listing the open connections"
            walk = optional(what, lambda: self._kernel.walk(self._namespaces, step))
            if walk is None:
                return
            with closing(walk):
                while optional(what, walk.step) and drain():
                    pass

    def sockets(self) -> Iterator[Note]:
        """SOCKET_EXISTS of each TCP socket that sock_diag lists."""
        # The import of pyroute2 is slow, and only logs need it.
        from tcpkmon.collector.loader.sock_diag import ends_of, list_sockets

        for one in list_sockets(self._namespaces):
            netns, inode, family, state = (
                int(one[name]) for name in ("netns", "inode", "family", "state")
            )
            yield socket_note(netns, inode, family, state, *ends_of(one))

    def close(self) -> None:
        """Close the namespaces' descriptors. It may be called again."""
        self._namespaces = []
        while self._open:
            os.close(self._open.pop())
