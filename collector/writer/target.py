# SPDX-License-Identifier: Apache-2.0
"""Where a capture goes: the file or folder that was named, and the stream that fills it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from collector.loader.prepare import Prepared
from collector.plan.request import Request
from collector.sequencer.clock_pairs import Clocks
from collector.writer.log_folder import LogFolder
from collector.writer.log_stream import LogStream
from collector.writer.output_file import Output
from collector.writer.psc_stream import PscStream
from collector.writer.record_printer import Printer
from collector.writer.stream import Stream


class Target:
    """A place to write to that was found good; nothing is there yet.

    Raises FileError or UsageError for one that cannot be written to.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._place: Output | LogFolder = (
            LogFolder(request.output, request.force)
            if request.is_klogger
            else Output(request.output, request.force)
        )

    def stream(
        self,
        prepared: Prepared,
        clocks: Clocks,
        namespaces: Sequence[int],
        fail: Callable[[OSError], None],
    ) -> Stream:
        """The stream into it; `fail` ends the capture."""
        if isinstance(self._place, LogFolder):
            return LogStream(self._request, prepared, self._place, clocks, namespaces)
        printer = Printer(prepared.layout, sys.stdout) if self._request.show else None
        return PscStream(self._request, prepared, self._place, clocks, printer, fail)

    def discard(self) -> None:
        """Leave nothing behind, where no stream began."""
        self._place.discard()
