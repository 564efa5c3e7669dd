# SPDX-License-Identifier: Apache-2.0
"""Where a capture goes: the file or folder that was named, and the stream that fills it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from collector.clocks import Clocks
from collector.logfolder import LogFolder
from collector.logstream import LogStream
from collector.output import Output
from collector.preparing import Prepared
from collector.printing import Printer
from collector.pscstream import PscStream
from collector.request import Request
from collector.streams import Stream


class Target(Protocol):
    """A place to write to that was found good; nothing is there yet."""

    def stream(
        self,
        prepared: Prepared,
        clocks: Clocks,
        namespaces: Sequence[int],
        fail: Callable[[OSError], None],
    ) -> Stream:
        """The stream into it; `fail` ends the capture."""

    def discard(self) -> None:
        """Leave nothing behind, where no stream began."""


def open_target(request: Request) -> Target:
    """Raises FileError or UsageError for a place that cannot be written to."""
    return _Log(request) if request.is_klogger else _Psc(request)


class _Psc:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._output = Output(request.output, request.force)

    def stream(
        self,
        prepared: Prepared,
        clocks: Clocks,
        namespaces: Sequence[int],
        fail: Callable[[OSError], None],
    ) -> Stream:
        printer = Printer(prepared.layout, sys.stdout) if self._request.show else None
        return PscStream(self._request, prepared, self._output, clocks, printer, fail)

    def discard(self) -> None:
        self._output.discard()


class _Log:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._folder = LogFolder(request.output, request.force)

    def stream(
        self,
        prepared: Prepared,
        clocks: Clocks,
        namespaces: Sequence[int],
        fail: Callable[[OSError], None],
    ) -> Stream:
        return LogStream(self._request, prepared, self._folder, clocks, namespaces)

    def discard(self) -> None:
        self._folder.discard()
