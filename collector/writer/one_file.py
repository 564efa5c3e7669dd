# SPDX-License-Identifier: Apache-2.0
"""What streams share that write one file for all CPUs: its output, or a folder of segments."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

from collector.writer.base_stream import Stream
from collector.writer.output_file import Output, find_owner
from collector.writer.segment_folder import SegmentFolder, Segments, write_first
from collector.writer.spool import BatchT


class OneFileStream(Stream[BatchT]):
    """See collector/writer/base_stream.py. suffix: of a segment.

    rotates: the path is that of a folder of segments.
    """

    def __init__(self, path: str | Path, force: bool, rotates: bool, suffix: str) -> None:
        super().__init__()
        owner = find_owner()
        self._output = None if rotates else Output(path, force, owner=owner)
        self._folder = SegmentFolder(path, owner) if rotates else None
        self.segments = Segments(platform.node(), suffix, self.open_file) if rotates else None
        self._segment_bytes = 0

    def folders(self) -> tuple[int, ...]:
        return () if self._folder is None else (self._folder.fd,)

    def open_file(self, cpu: int, first: bytes) -> int:
        """Answers the requests of collector/writer/segment_folder.py."""
        if self._folder is None:
            return super().open_file(cpu, first)
        return self._folder.answer(cpu, first)

    def open_files_by(self, open_file: Callable[[int, bytes], int]) -> None:
        if self.segments is not None:
            self.segments.ask = open_file

    def discard(self) -> None:
        if self._output is not None:
            self._output.discard()
        if self._folder is not None:
            self._folder.discard()

    @property
    def segment_bytes(self) -> int:
        return self._segment_bytes

    @property
    def _may_be_direct(self) -> bool:
        """Whether writes may bypass the page cache: no other process has the descriptor."""
        return self._output is None or not self._output.is_stdout

    def _begin(self, first: bytes, realtime_ns: int) -> int:
        """Make the first file with its first bytes; its descriptor."""
        if self._output is not None:
            self._output.begin(first)
            return self._output.fd
        assert self.segments is not None and self._folder is not None
        with self.segments.beginning(self._folder, realtime_ns) as fd:
            write_first(fd, first)
        return fd
