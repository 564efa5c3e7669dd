# SPDX-License-Identifier: Apache-2.0
"""The writer of the flight recorder, in the spool's thread: a file for each dump.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from collector.writer.segment_folder import Segments
from collector.writer.written import Place, Written
from formats.base.control import LossCause
from formats.base.errors import FileError


@dataclass(frozen=True)
class Beginning:
    """The beginning of a dump's file. written: what is counted as in earlier files."""

    header: bytes
    entries: Sequence[Any]
    mono_ns: int
    realtime_ns: int
    written: Written


class DumpWriter:
    """See Writing of collector/writer/spool.py. What comes between two dumps is not written.

    make: the writer of a new file, with its beginning. written: of the dump that is written now, or
    was last.
    """

    def __init__(self, segments: Segments, make: Callable[[int, Beginning], Any]) -> None:
        self.written = Written()
        self.error: Exception | None = None
        """Why the last dump has no file."""
        self.names: list[str] = []
        """Of the dumps that are sealed and not told of yet: take them by pop()."""
        self._segments = segments
        self._make = make
        self._writer: Any = None
        segments.sealed = lambda name, _: self.names.append(name)

    def begin(self, first: Beginning) -> None:
        """Make the file of a dump."""
        self.written = first.written
        try:
            fd = self._segments.open(first.written.segment, first.realtime_ns)
        except (OSError, FileError) as error:
            self.error = error
            return
        self._segments.begin(first.written.in_file.total())
        self.error = None
        self._writer = self._make(fd, first)

    def seal(self, why: str) -> None:
        """Close the file and give it its name."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close(why)
            self.error = self.written.rotation_error

    def write(self, *batches: Any, cached: bool = False) -> None:
        if self._writer is not None:
            self._writer.write(*batches, cached=cached)

    def skip(self, cause: LossCause, numbers: int, counts: Counter[Place]) -> None:
        if self._writer is not None:
            self._writer.skip(cause, numbers, counts)

    def control(
        self, build: Callable[[Written], Sequence[Any]], mono_ns: int, *, reserved: bool
    ) -> bool:
        if self._writer is None:
            return True
        done: bool = self._writer.control(build, mono_ns, reserved=reserved)
        return done

    def sync(self) -> None:
        if self._writer is not None:
            self._writer.sync()

    def close(self) -> None:
        """Seal the dump that is under way."""
        self.seal("the end")
