# SPDX-License-Identifier: Apache-2.0
"""Messages between the supervisor and the process of a capture: JSON, and descriptors with it."""

from __future__ import annotations

import json
import os
import socket
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tcpkmon.collector.linux.syscalls import close_aside
from tcpkmon.collector.linux.waiting import readable
from tcpkmon.formats.base.closing import Closing

_MOST_BYTES = 1 << 22
"""Of a message: a capture's table has what its files have, of 1 MiB each."""
_SO_SNDBUFFORCE = 32
_MSG_CMSG_CLOEXEC = 0x40000000
_MORE = b'{"more": true}'
_MOST_PARTS = 16
_MOST_FDS = 253
"""SCM_MAX_FD: the kernel passes no more in a message."""


@dataclass(frozen=True)
class Message:
    """What was sent, and the descriptors that came with it; the receiver closes them."""

    what: dict[str, Any]
    fds: list[int]


@dataclass(frozen=True)
class Raw:
    """A message as it came; line: b"" when the other end is closed. too_long: than was asked for;
    cut: descriptors are missing, for which this process had no room."""

    line: bytes
    fds: list[int]
    too_long: bool = False
    cut: bool = False


class Channel(Closing):
    """One end of a pair(). Both ends see when the other is closed."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._parts: list[int] = []
        """Descriptors of a message whose end is still to come."""

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
                line = _MORE if more else json.dumps(what).encode()
                if part:
                    socket.send_fds(self._socket, [line], part)
                else:
                    self._socket.send(line)
        except OSError:
            return False
        return True

    def receive(self) -> Message | None:
        """Wait for the next message of who is trusted; None when the other end is closed."""
        while (raw := self.next(wait=True)) is None:
            pass
        if raw.line:
            return Message(json.loads(raw.line), raw.fds)
        close_aside(raw.fds)
        return None

    def next(
        self, most_bytes: int = _MOST_BYTES, parts: bool = True, wait: bool = False
    ) -> Raw | None:
        """The next message, from anybody; None where none is there, or a part of one.

        parts: whether it may come in parts. wait: for one.
        """
        flags = _MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
        room = socket.CMSG_LEN(_MOST_FDS * array("i").itemsize)
        try:  # recv_fds() takes flags and forgets them
            line, controls, told, _ = self._socket.recvmsg(most_bytes, room, flags)
        except BlockingIOError:
            return None
        except OSError:
            line, controls, told = b"", [], 0
        for _, kind, data in controls:
            if kind == socket.SCM_RIGHTS:
                whole = len(data) // array("i").itemsize * array("i").itemsize
                self._parts += array("i", data[:whole])
        cut = bool(told & socket.MSG_CTRUNC)
        if line == _MORE and parts and not cut and len(self._parts) <= _MOST_PARTS * _MOST_FDS:
            return None
        found, self._parts = self._parts, []
        return Raw(line, found, bool(told & socket.MSG_TRUNC), cut)

    def has_more(self, wait_s: float = 0.0) -> bool:
        """Whether receive() would not wait."""
        return bool(readable([self._socket.fileno()], wait_s))

    def close(self) -> None:
        if (fd := self._socket.detach()) >= 0:
            close_aside([fd, *self._parts])
        self._parts = []


def pair() -> tuple[Channel, Channel]:
    """Two connected ends."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with suppress(OSError):  # without the right to it, messages have 200 KiB
        ends[0].setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _MOST_BYTES)
    return Channel(ends[0]), Channel(ends[1])
