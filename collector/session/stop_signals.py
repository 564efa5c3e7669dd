# SPDX-License-Identifier: Apache-2.0
"""Why and when a capture stops: signals, its duration, the end of its command.

SIGUSR1 does not stop it, but requests a MARK entry; SIGUSR2 a dump of the flight recorder.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tcpkmon.formats.base.control import EndReason

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopping:
    """Keeps the reason to stop. After a second signal, the capture ends without draining all.

    It handles the process's signals inside a `with`.
    """

    def __init__(self, duration_s: float | None = None) -> None:
        self.reason: EndReason | None = None
        self.exit_code = 0
        """128 + the first signal's number, as in a shell; 0 without a signal."""
        self.hurry = False
        self.marks = 0
        """How many marks were requested."""
        self.dumps = 0
        """How many dumps were requested."""
        self._duration_s = duration_s
        self._deadline: float | None = None
        self._before: dict[signal.Signals, object] = {}
        self.forward: Callable[[int], None] | None = None
        """Also gets each signal's number: for the captured command."""
        self._wake: Callable[[], None] = lambda: None

    def __enter__(self) -> Stopping:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if number == signal.SIGHUP and before is signal.SIG_IGN:
                continue  # nohup: the capture goes on without the terminal
            self._before[number] = before
            signal.signal(number, self._handle)
        for number, handle in ((signal.SIGUSR1, self._mark), (signal.SIGUSR2, self._dump)):
            self._before[number] = signal.getsignal(number)
            signal.signal(number, handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # type: ignore[arg-type]

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Inside a `with`, each signal calls `wake`, which ends the main thread's wait."""
        self._wake = wake
        try:
            yield
        finally:
            self._wake = lambda: None

    def start_clock(self) -> None:
        """Start the duration."""
        if self._duration_s is not None:
            self._deadline = time.monotonic() + self._duration_s

    def ask(self, reason: EndReason) -> None:
        """Request a stop. Only the first reason counts."""
        if self.reason is None:
            self.reason = reason

    def due(self) -> bool:
        """Whether the capture must stop now."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self.ask(EndReason.DURATION)
        return self.reason is not None

    def remaining_s(self, most: float) -> float:
        """How long to wait at most: `most`, or less if the deadline is earlier."""
        if self._deadline is None:
            return most
        return min(most, max(0.0, self._deadline - time.monotonic()))

    def _mark(self, number: int, frame: FrameType | None) -> None:
        self.marks += 1
        self._wake()

    def _dump(self, number: int, frame: FrameType | None) -> None:
        self.dumps += 1
        self._wake()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.hurry = self.exit_code != 0
        self.exit_code = self.exit_code or 128 + number
        self.ask(EndReason.ASKED)
        self._wake()
        if self.forward is not None:
            self.forward(number)
