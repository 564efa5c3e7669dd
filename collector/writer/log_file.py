# SPDX-License-Identifier: Apache-2.0
"""One CPU's file of a log while it is written, and dumps of base events alone."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from collector.writer.base_events import Note
from collector.writer.capture_info import CaptureInfo
from collector.writer.file_sink import FileSink
from formats.base.control import Clock
from formats.klogger.describe import describe_event, describe_snapshot, make_header
from formats.klogger.encode import finish_dump, pack_event, pack_events
from formats.klogger.table import LogFormat


@dataclass
class LogFile:
    """One CPU's file: its last serial, the number of base events in it, and of dumps.

    owed: events that could not be written, and are tried again with the next ones. before: the last
    of the kernel's serials in earlier segments; serial: the last that was written or dropped. head:
    the file's beginning, until it is written.
    """

    sink: FileSink
    last: int = 0
    inserted: int = 0
    dumps: int = 0
    owed: list[Note] = field(default_factory=list)
    before: int = 0
    serial: int = 0
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


@dataclass(frozen=True)
class Beginning:
    """What the files of a segment begin with; only the writing thread makes another.

    notes: of a segment that is not the first. serials: by CPU, the last in earlier segments.
    """

    clock: Clock | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    serials: Mapping[int, int] = field(default_factory=dict)
    notes: Sequence[Note] = ()


def describe_events(info: CaptureInfo) -> list[dict[str, Any]]:
    """The header's table of events."""
    assert info.schema is not None
    table = []
    for number, event in info.events:
        if event.name == "SNAPSHOT" and info.tcp is not None:
            table.append(describe_snapshot(info.tcp, info.columns, info.entry_size))
        else:
            table.append(describe_event(info.schema, event, number))
    return table


def header_of(
    info: CaptureInfo, table: Sequence[Mapping[str, Any]], beginning: Beginning, cpu: int
) -> dict[str, object]:
    """The header of a CPU's file. table: of describe_events()."""
    pair = beginning.clock
    assert info.schema is not None and pair is not None
    return make_header(
        info.schema,
        table,
        cpu=cpu,
        cpus=info.cpus,
        host=platform.node(),
        kernel=info.kernel,
        version=info.version,
        buffer_bytes=info.buffer_bytes,
        low_water_percent=info.low_water_percent,
        clock=(pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns),
        settings=beginning.settings,
    )
