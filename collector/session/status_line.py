# SPDX-License-Identifier: Apache-2.0
"""The live status line of a capture on stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from tcpkmon.formats.base.text import counted, human_bytes

if TYPE_CHECKING:
    from rich.live import Live

REFRESH_S = 0.25


def describe_losses(causes: Mapping[str, int]) -> str:
    """The losses by cause, without those that are 0."""
    named = [f"{name} {count:,}" for name, count in causes.items() if count]
    return ", ".join(named) or "none"


class Status:
    """A line of counts and rates, if stderr is a terminal and not `quiet`. Use it in a `with`."""

    def __init__(self, quiet: bool) -> None:
        self._live: Live | None = None
        stderr: TextIO | None = sys.stderr
        able = os.environ.get("TERM", "dumb") != "dumb"
        self._wanted = not quiet and able and stderr is not None and stderr.isatty()
        self._seen = (time.monotonic(), 0)
        self._rate = 0.0
        self._next = 0.0

    def __enter__(self) -> Status:
        if self._wanted:
            # The import is slow, and most captures have no terminal.
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, markup=False, highlight=False)
            self._live = Live(console=console, transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Erase the line: what is printed then has lines of its own."""
        live, self._live = self._live, None
        if live is not None:
            with suppress(OSError):
                live.stop()

    def show(self, text: str) -> None:
        """Show this text as the line."""
        if self._live is None:
            return
        from rich.text import Text

        try:
            self._live.update(Text(text), refresh=True)
        except OSError:  # the terminal is closed; the capture goes on
            self.close()

    def update(
        self,
        records: int,
        connections: Callable[[], int],
        written: Callable[[], int],
        causes: Callable[[], Mapping[str, int]],
    ) -> None:
        """Show the counts so far: records, connections, bytes in the file, losses by cause.

        It calls the callables only when it shows the line.
        """
        now = time.monotonic()
        if self._live is None or now < self._next:
            return
        before, count = self._seen
        if now - before >= REFRESH_S:
            self._rate = (records - count) / (now - before)
            self._seen = (now, records)
        self._next = now + REFRESH_S
        self.show(
            f"{counted(records, 'record')}  {self._rate:,.0f}/s  "
            f"{counted(connections(), 'socket')}  "
            f"{human_bytes(written())}  lost: {describe_losses(causes())}"
        )
