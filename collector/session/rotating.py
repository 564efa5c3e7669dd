# SPDX-License-Identifier: Apache-2.0
"""Decides when a capture begins its next file."""

from __future__ import annotations

import time
from collections.abc import Callable

from tcpkmon.collector.plan.rotation import Rotation
from tcpkmon.collector.sequencer.clock_pairs import Clocks
from tcpkmon.collector.session.summary import say
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.ledger import Books
from tcpkmon.collector.writer.segment_folder import FolderGone

RETRY_S = 1.0
"""After a rotation that failed, the next try comes so much later."""


class Rotating:
    """Rotates a stream when a condition of the rotation is met; without one never.

    fail: called where no file can ever be made again.
    """

    def __init__(
        self,
        rotation: Rotation | None,
        stream: Stream,
        books: Callable[[], Books],
        clocks: Clocks,
        now_s: Callable[[], float] = time.monotonic,
        fail: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._rotation = rotation
        self._stream = stream
        self._books = books
        self._clocks = clocks
        self._now_s = now_s
        self._fail = fail
        self._began_s = now_s()
        self._segment = stream.written.segment
        self._asked_s: float | None = None
        self._why = self._wanted = ""
        self._told = ""
        self.rotated: Callable[[], None] = lambda: None
        """Called after each rotation."""

    def ask(self, why: str) -> None:
        """Begin the next file soon, if this capture rotates. why: for the index."""
        self._wanted = why

    def step(self) -> None:
        """Rotate if it is time. Call it after what was drained is released."""
        if self._rotation is None:
            return
        now_s, written = self._now_s(), self._stream.written
        if self._asked_s is not None:
            if written.segment != self._segment:  # done
                self._segment, self._began_s, self._asked_s = written.segment, self._asked_s, None
                self.rotated()
            elif written.rotation_error is None or now_s < self._asked_s + RETRY_S:
                self._tell(written.rotation_error)
                return
        self._tell(written.rotation_error)
        if self._asked_s is None:
            self._why = self._wanted or self._due(now_s)
            self._wanted = ""
        if self._why:
            self._asked_s = now_s
            clock = self._clocks.check() or self._clocks.read()
            self._stream.rotate(self._books(), clock, self._why)

    def _due(self, now_s: float) -> str:
        """Which condition is met; empty: none."""
        assert self._rotation is not None
        size_bytes, every_s = self._rotation.size_bytes, self._rotation.every_s
        if size_bytes is not None and self._stream.segment_bytes >= size_bytes:
            return "size"
        if every_s is not None and now_s - self._began_s >= every_s:
            return "time"
        return ""

    def _tell(self, error: Exception | None) -> None:
        """Print once that a file cannot be begun or sealed, and once that it works again."""
        if isinstance(error, FolderGone):
            self._fail(error)
            return
        text = "" if error is None else str(error)
        if text != self._told:
            say(f"no next file: {text}; this one goes on" if text else "the next file has begun")
            self._told = text
