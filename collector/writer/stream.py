# SPDX-License-Identifier: Apache-2.0
"""Which stream writes a file format of formats/registry.py: a new format has a row here.

The command line imports this, so each stream is imported only when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collector.writer.base_stream import Stream


def _open_psc(path: str, force: bool, rotates: bool) -> Stream[Any]:
    from collector.writer.psc_stream import PscStream

    return PscStream(path, force, rotates)


def _open_klogger(path: str, force: bool, rotates: bool) -> Stream[Any]:
    from collector.writer.log_stream import LogStream

    return LogStream(path, force, rotates)


def _open_magnet(path: str, force: bool, rotates: bool) -> Stream[Any]:
    from collector.writer.magnet_stream import MagnetStream

    return MagnetStream(path, force, rotates)


STREAMS: dict[str, Callable[[str, bool, bool], Stream[Any]]] = {
    "psc": _open_psc,
    "klogger": _open_klogger,
    "magnet": _open_magnet,
}
"""By the format's name: opens a stream to an output. force: replace what is there. rotates: the
output is a folder of segments.

FileError or UsageError when the output cannot be written.
"""
