# SPDX-License-Identifier: Apache-2.0
"""What the daemon tells systemd: sd_notify(3). Without systemd nothing happens."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

_SEND_S = 1.0
"""A manager that does not listen must not stop the supervisor."""
_FIRST_FD = 3
"""SD_LISTEN_FDS_START."""


class Systemd:
    """The service manager that started this process, if one did."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = dict(environment)
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def tell(self, *lines: str, fds: Sequence[int] = ()) -> None:
        """Send lines such as READY=1. The manager may be away."""
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_SEND_S)
            sender.connect(self._address)
            message = ["\n".join(lines).encode()]
            socket.send_fds(sender, message, fds) if fds else sender.send(message[0])

    @property
    def is_there(self) -> bool:
        """Whether a service manager listens, which may store descriptors."""
        return bool(self._address)

    def store(self, name: str, fd: int) -> None:
        """Store a descriptor, for the next process of this service if this one is killed."""
        # Without FDPOLL=0 it would be forgotten when it can be read.
        self.tell("FDSTORE=1", f"FDNAME={name}", "FDPOLL=0", fds=[fd])

    def forget(self, name: str) -> None:
        """Close what is stored by this name."""
        self.tell("FDSTOREREMOVE=1", f"FDNAME={name}")

    def stored(self) -> list[tuple[str, int]]:
        """The descriptors that the process before this one stored: sd_listen_fds(3). Once."""
        words = [self._environment.get(f"LISTEN_{each}", "") for each in ("PID", "FDS", "FDNAMES")]
        pid, count, names = words
        if pid != str(os.getpid()) or not count.isdigit():
            return []
        for each in ("PID", "FDS", "FDNAMES"):
            os.environ.pop(f"LISTEN_{each}", None)
        fds = range(_FIRST_FD, _FIRST_FD + int(count))
        for fd in fds:
            os.set_inheritable(fd, False)
        return [*zip(names.split(":"), fds, strict=False)]

    def reloading(self) -> None:
        """The configuration is being read again, until the next READY=1."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.tell("RELOADING=1", f"MONOTONIC_USEC={now_us}")
