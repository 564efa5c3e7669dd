# SPDX-License-Identifier: Apache-2.0
"""Turns signals, the clock and the command's end into one question: shall the capture stop.

SIGUSR1 does not stop it: it asks for a MARK entry.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from formats.base.control import EndReason

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopping:
    """Collects the reasons to stop; a second signal means: now, without draining all.

    Context manager: the process's signal handlers are this one's inside.
    """

    def __init__(self, duration_s: float | None = None) -> None:
        self.reason: EndReason | None = None
        self.signals = 0
        self.exit_code = 0
        """128 + the first signal's number, as a shell would say; 0 without one."""
        self.hurry = False
        self.marks = 0
        """How many marks were asked for."""
        self._duration_s = duration_s
        self._deadline: float | None = None
        self._before: dict[signal.Signals, object] = {}
        self._forward: Callable[[int], None] | None = None
        self._wake: Callable[[], None] = lambda: None

    def __enter__(self) -> Stopping:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if number == signal.SIGHUP and before is signal.SIG_IGN:
                continue  # nohup: it shall outlive the terminal
            self._before[number] = before
            signal.signal(number, self._handle)
        self._before[signal.SIGUSR1] = signal.getsignal(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, self._mark)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # type: ignore[arg-type]

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Inside, each signal calls `wake`, which ends the main thread's wait."""
        self._wake = wake
        try:
            yield
        finally:
            self._wake = lambda: None

    def forward_to(self, send: Callable[[int], None] | None) -> None:
        """Signals go to the captured command too, through `send`."""
        self._forward = send

    def start_clock(self) -> None:
        """The duration counts from here."""
        if self._duration_s is not None:
            self._deadline = time.monotonic() + self._duration_s

    def ask(self, reason: EndReason) -> None:
        """Asks to stop; the first reason stays."""
        if self.reason is None:
            self.reason = reason

    def due(self) -> bool:
        """Whether the capture shall stop now."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self.ask(EndReason.DURATION)
        return self.reason is not None

    def remaining_s(self, most: float) -> float:
        """How long to wait at most: `most`, or less where the deadline is nearer."""
        if self._deadline is None:
            return most
        return min(most, max(0.0, self._deadline - time.monotonic()))

    def _mark(self, number: int, frame: FrameType | None) -> None:
        self.marks += 1
        self._wake()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.signals += 1
        self.exit_code = self.exit_code or 128 + number
        self.hurry = self.signals > 1
        self.ask(EndReason.ASKED)
        self._wake()
        if self._forward is not None:
            self._forward(number)
