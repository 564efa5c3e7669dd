# SPDX-License-Identifier: Apache-2.0
"""What the service manager hears of running captures: the watchdog's ping, the status."""

from __future__ import annotations

import time
from collections.abc import Collection

from tcpkmon.collector.daemon.child import Child, State
from tcpkmon.collector.daemon.systemd import Systemd
from tcpkmon.formats.base.cli import say

STATUS_S, PING_S = 5.0, 1.0
HEARD_S = 5.0
"""A capture drains its rings and says so each second; after so long it is stuck."""


class Telling:
    """Tells it when it is time to. Make it at the start."""

    def __init__(self, systemd: Systemd) -> None:
        self._systemd = systemd
        self._told = (time.monotonic(), 0)
        self._next_status_s = 0.0
        self._next_ping_s = 0.0
        self._silent: set[Child] = set()

    def tell(self, children: Collection[Child], is_ready: bool) -> None:
        """How these captures go. is_ready: all were attached once."""
        now_s = time.monotonic()
        if now_s >= self._next_ping_s and is_ready:
            self._next_ping_s = now_s + PING_S
            running = [one for one in children if one.state is State.ATTACHED]
            silent = {one for one in running if now_s - one.heard_s >= HEARD_S}
            if not silent:
                self._systemd.tell("WATCHDOG=1")
            self._say(silent)
        if now_s >= self._next_status_s:
            self._next_status_s = now_s + STATUS_S
            self._systemd.tell(f"STATUS={self._describe(children, now_s)}")

    def _say(self, silent: set[Child]) -> None:
        """Say once of a capture that it stands still, and that it goes on."""
        for one in silent - self._silent:
            say(f"tcpkmon daemon: capture {one.name} has not drained its rings for {HEARD_S:g} s: "
                "a disk that stands still, or no CPU?")  # fmt: skip
        for one in self._silent - silent:
            if one.state is State.ATTACHED:
                say(f"tcpkmon daemon: capture {one.name} drains its rings again")
        self._silent = silent

    def _describe(self, children: Collection[Child], now_s: float) -> str:
        records = sum(one.records for one in children)
        (before_s, before), self._told = self._told, (now_s, records)
        rate = max(0, records - before) / max(now_s - before_s, 1e-3)
        lost = sum(one.lost for one in children)
        away = [f"{c.name} {c.state.value}" for c in children if c.state is not State.ATTACHED]
        away += [f"{c.name} stands still" for c in self._silent]
        return "; ".join([f"{rate:,.0f} records/s, {lost:,} lost", *away])
