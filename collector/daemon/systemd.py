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


class Systemd:
    """The service manager that started this process, if one did."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watched = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        interval_us = environment.get("WATCHDOG_USEC", "") if watched else ""
        self.watchdog_s = int(interval_us) / 1e6 if interval_us.isdigit() else 0.0
        """It wants to hear of this process so often; 0: it does not."""

    def tell(self, *lines: str, fds: Sequence[int] = ()) -> None:
        """Send lines such as READY=1. The manager may be away."""
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_SEND_S)
            sender.connect(self._address)
            message = ["\n".join(lines).encode()]
            socket.send_fds(sender, message, fds) if fds else sender.send(message[0])

    def reloading(self) -> None:
        """The configuration is being read again, until the next READY=1."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.tell("RELOADING=1", f"MONOTONIC_USEC={now_us}")
