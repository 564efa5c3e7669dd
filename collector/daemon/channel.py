# SPDX-License-Identifier: Apache-2.0
"""Messages between the supervisor and the process of a capture: JSON, and descriptors with it."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from collector.linux.syscalls import close_all
from formats.base.closing import Closing

_MOST_BYTES = 1 << 22
"""Of a message: a capture's table has what its files have, of 1 MiB each."""
_SO_SNDBUFFORCE = 32
_MOST_PARTS, _PART_S = 16, 1.0
_MOST_FDS = 253
"""SCM_MAX_FD: the kernel passes no more in a message."""


@dataclass(frozen=True)
class Message:
    """What was sent, and the descriptors that came with it; the receiver closes them."""

    what: dict[str, Any]
    fds: list[int]


class Channel(Closing):
    """One end of a pair(). Both ends see when the other is closed."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def of(cls, fd: int) -> Channel:
        """The end that a parent process passed on."""
        os.set_inheritable(fd, False)
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, what: dict[str, Any], fds: Sequence[int] = ()) -> bool:
        """Send a message, in parts where there are many descriptors; False if nobody receives it.
        """
        parts = [fds[at : at + _MOST_FDS] for at in range(0, len(fds), _MOST_FDS)] or [[]]
        try:
            for index, part in enumerate(parts):
                more = index + 1 < len(parts)
                line = json.dumps({"more": True} if more else what).encode()
                if part:
                    socket.send_fds(self._socket, [line], part)
                else:
                    self._socket.send(line)
        except OSError:
            return False
        return True

    def receive(self) -> Message | None:
        """The next message; None when the other end is closed, or sends what is none. It waits
        for one."""
        fds: list[int] = []
        for part in range(_MOST_PARTS):
            if part and not self.has_more(_PART_S):
                break
            try:
                line, some, _, _ = socket.recv_fds(self._socket, _MOST_BYTES, _MOST_FDS)
            except OSError:
                line, some = b"", []
            for fd in some:
                os.set_inheritable(fd, False)
            fds += some
            try:
                what = json.loads(line)
                if not what.get("more"):
                    return Message(what, fds)
            except (ValueError, AttributeError, RecursionError):
                break
        close_all(fds)
        return None

    def has_more(self, wait_s: float = 0.0) -> bool:
        """Whether receive() would not wait."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(1000 * wait_s))

    def close(self) -> None:
        self._socket.close()


def pair() -> tuple[Channel, Channel]:
    """Two connected ends."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with suppress(OSError):  # without the right to it, messages have 200 KiB
        ends[0].setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _MOST_BYTES)
    return Channel(ends[0]), Channel(ends[1])
