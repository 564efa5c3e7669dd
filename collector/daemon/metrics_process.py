# SPDX-License-Identifier: Apache-2.0
"""The process that tells Prometheus what the captures count: tcpkmon metrics, as configured."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping

from tcpkmon.collector.linux import isolated
from tcpkmon.formats.base.cli import say

_COMMAND = "tcpkmon.collector.commands.tcpkmon"
RETRY_S = 10.0
"""After it ended, it is started again so much later."""


def lacking(settings: Mapping[str, str] | None, group: str | None) -> str:
    """What the metrics will not tell, and what to do; "" if there is nothing."""
    if not settings or group is not None:
        return ""
    return (
        "metrics: nothing of TCP will be told, as its process may not ask the captures; add a group"
        " that may: [control] group = 'tcpkmon'"
    )


class MetricsProcess:
    """Runs while the configuration has a table `metrics`."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at_s = 0.0

    def adopt(self, settings: Mapping[str, str] | None, group: str | None) -> None:
        """Take over the table, or none; the process is started again if it changed."""
        words = [f"--{key}={value}" for key, value in (settings or {}).items()]
        if words and group is not None:
            words.append(f"--group={group}")
        if words != self._words:
            if warning := lacking(settings, group):
                say(f"tcpkmon daemon: {warning}")
            self.end()
            self._words, self._start_at_s = words, 0.0

    def look_after(self) -> None:
        """Start it if it does not run. Call it about once a second."""
        if self._process is not None and (code := self._process.poll()) is not None:
            say(f"tcpkmon daemon: metrics ended by {code}; started again in {RETRY_S:g} s")
            self._process, self._start_at_s = None, time.monotonic() + RETRY_S
        if self._words and self._process is None and time.monotonic() >= self._start_at_s:
            words = isolated.command(_COMMAND, "metrics", "--until-eof", *self._words)
            try:  # its standard input ends with this process, also where that is killed
                self._process = subprocess.Popen(
                    words, stdin=subprocess.PIPE, start_new_session=True
                )
            except OSError as error:
                self._start_at_s = time.monotonic() + RETRY_S
                why = f"{error.strerror}; again in {RETRY_S:g} s"
                say(f"tcpkmon daemon: metrics cannot be started: {why}")

    def end(self) -> None:
        """End it; it has nothing to finish."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
