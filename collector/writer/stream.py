# SPDX-License-Identifier: Apache-2.0
"""The file formats that a capture can be written in: a row in FORMATS and a stream each.

Importing this is cheap, for the command line: streams are imported when one is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collector.writer.base_stream import Stream


@dataclass(frozen=True)
class FileFormat:
    """A format: how to open a stream into a place (its name, whether to replace what is there)."""

    open: Callable[[str, bool], Stream[Any]]
    suffix: str
    """Of a name that nobody chose."""
    takes_events: bool
    """Events of all schemata go into it; else the snapshots of the schema tcp alone."""
    shows: bool
    """Its stream can show the entries that it writes (--print)."""


def _open_psc(path: str, force: bool) -> Stream[Any]:
    from collector.writer.psc_stream import PscStream

    return PscStream(path, force)


def _open_klogger(path: str, force: bool) -> Stream[Any]:
    from collector.writer.log_stream import LogStream

    return LogStream(path, force)


FORMATS = {
    "psc": FileFormat(_open_psc, suffix=".pm", takes_events=False, shows=True),
    "klogger": FileFormat(_open_klogger, suffix="", takes_events=True, shows=False),
}
"""By name, as collect --format takes it; the first is the default."""
