# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a capture: an error that ends it in order, or one that it only reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tcpkmon.collector.session.stop_signals import Stopping
from tcpkmon.collector.session.summary import say
from tcpkmon.formats.base.control import EndReason

T = TypeVar("T")


class Failures:
    """The errors of one capture. first: the one that ends it, None if there is none."""

    def __init__(self, stopping: Stopping, output: str) -> None:
        self.first: Exception | None = None
        self.now: dict[str, str] = {}
        """What the capture does without now, and why."""
        self.refused: dict[str, str] = {}
        """What it ever did without."""
        self._stopping = stopping
        self._output = output
        self._writing = ""

    def fail(self, error: Exception) -> None:
        """End the capture, in order."""
        self.first = self.first or error
        self._stopping.ask(EndReason.ERROR)

    @property
    def end_reason(self) -> EndReason:
        """Why the capture ended."""
        if self.first is not None:
            return EndReason.ERROR
        return self._stopping.reason or EndReason.ASKED

    @contextmanager
    def ending(self) -> Iterator[None]:
        """An error of any kind inside a `with` ends the capture, in order."""
        try:
            yield
        except Exception as error:
            self.fail(error)

    def optional(self, what: str, do: Callable[[], T]) -> T | None:
        """Do what a capture can be without. An error of any kind is in `now` and `refused`."""
        try:
            done = do()
        except Exception as error:
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            self.now[what] = self.refused[what] = why
            return None
        self.now.pop(what, None)
        return done

    def show_writing(self, error: OSError | None) -> None:
        """Print once that writes fail, and once that they succeed again. error: of the last one."""
        text = "" if error is None else f"{self._output}: {error.strerror}"
        if text != self._writing:
            say(f"{text}; records are being lost, counted" if text else "writing goes on")
            self._writing = text
