# SPDX-License-Identifier: Apache-2.0
"""The file side of tcpkmon: codecs, readers and viewers that need no root and no kernel.

``formats.open(path)`` reads a capture of any format; all else is imported by its own name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from formats.base.reader import Reader


def open(path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> Reader:
    """Open the capture at `path`, of any format. Raises FileError or DamagedError.

    It is a file or a folder; with `more`, several segments of one capture, in any order
    (UsageError for others).

    A PSC file returns a formats.psc.reader.Capture. A Klogger log, or a folder of them, returns
    formats.klogger.logs.Logs. Both have connections() and intervals(), tables of the schema tcp.
    """
    from formats.base.analysed import Analysed
    from formats.registry import open_files

    reader = open_files(path, *more)
    if isinstance(reader, Analysed):
        reader.frame = _frame
    return reader


def _frame(reader: Any, name: str) -> Any:
    from formats.analysis import why

    table = why.connections(reader) if name == "connections" else why.intervals(reader)
    return why.as_frame(table)
