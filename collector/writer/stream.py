# SPDX-License-Identifier: Apache-2.0
"""Which stream writes a file format of formats/registry.py: a new format has a row here.

Importing this is cheap, for the command line: a stream is imported when one is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collector.writer.base_stream import Stream


def _open_psc(path: str, force: bool) -> Stream[Any]:
    from collector.writer.psc_stream import PscStream

    return PscStream(path, force)


def _open_klogger(path: str, force: bool) -> Stream[Any]:
    from collector.writer.log_stream import LogStream

    return LogStream(path, force)


STREAMS: dict[str, Callable[[str, bool], Stream[Any]]] = {
    "psc": _open_psc,
    "klogger": _open_klogger,
}
"""By the format's name: opens a stream into a place (its name, and whether to replace what is
there). Raises FileError or UsageError for a place that cannot be written to."""
