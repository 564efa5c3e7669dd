# SPDX-License-Identifier: Apache-2.0
"""Walks the sockets that were open before the capture, one namespace after another, in steps.

A BPF iterator records each socket as every other program does, in the same rings. The program
writes one byte for each socket, so a read of n bytes walks n sockets. So the rings can be drained
between two steps.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from tcpkmon.collector.linux.netns import list_namespaces, run_inside
from tcpkmon.formats.base.errors import TcpkmonError, UsageError

_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Walk:
    """A walk over the sockets of `namespaces` (descriptors), `step` sockets in each read.

    open_iter: opens an iterator for the calling thread's namespace.
    """

    def __init__(self, open_iter: Callable[[], int], namespaces: Iterable[int], step: int) -> None:
        self._open_iter = open_iter
        self._waiting = list(namespaces)
        self._step = max(1, step)
        self._fd: int | None = None

    def step(self) -> bool:
        """Walks some sockets; False after the last."""
        while True:
            if self._fd is None:
                if not self._waiting:
                    return False
                self._fd = run_inside(self._waiting.pop(0), self._open_iter)
            try:
                if os.read(self._fd, self._step):
                    return True
            except BlockingIOError:
                return True  # the kernel pauses after a million sockets that are not recorded
            self.close()

    def close(self) -> None:
        """Ends the walk in the current namespace."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def find_namespaces() -> Iterator[int]:
    """Descriptors of all network namespaces that have a process or a name, each once. The caller
    closes them."""
    for path in list_namespaces().values():
        with suppress(OSError):  # the process has ended
            yield os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def socket_inodes(pid: int) -> set[int]:
    """Inodes of the sockets that a process has open. UsageError where there is no process,
    TcpkmonError where it may not be looked at."""
    inodes = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, ProcessLookupError):
        raise UsageError(f"--pid: there is no process {pid}", "ps -e lists them") from None
    except OSError as error:
        raise TcpkmonError(f"process {pid}: {error.strerror}", "is it still there?") from error
    for name in names:
        try:
            found = _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue  # just closed
        if found:
            inodes.add(int(found[1]))
    return inodes
