# SPDX-License-Identifier: Apache-2.0
"""One CPU's file of a log while it is written, and dumps of base events alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from collector.writer.base_events import Note
from collector.writer.file_sink import FileSink
from formats.klogger.encode import finish_dump, pack_event, pack_events
from formats.klogger.table import LogFormat


@dataclass
class LogFile:
    """One CPU's file: its last serial, the number of base events in it, and of dumps.

    owed: events that could not be written, and are tried again with the next ones. before: the last
    of the kernel's serials in earlier segments. head: the file's beginning, until it is written.
    """

    sink: FileSink
    last: int = 0
    inserted: int = 0
    dumps: int = 0
    owed: list[Note] = field(default_factory=list)
    before: int = 0
    head: bytes = b""
    head_bytes: int = 0


def make_dump(
    log: LogFormat, last: int, index: int, notes: Sequence[Note], mono_ns: int
) -> tuple[bytes, int]:
    """A dump of base events after the serial `last`, and its own last serial."""
    serial = last + 1
    parts = [pack_event(log, "DUMP_BEGIN", {"index": index}, serial, mono_ns)]
    for name, same in groupby(notes, lambda note: note.name):
        group = list(same)
        times_ns = [note.mono_ns or mono_ns for note in group]
        parts.append(pack_events(log, name, [n.values for n in group], serial + 1, times_ns))
        serial += len(group)
    return finish_dump(log, index, parts, serial + 1, mono_ns), serial + 1
