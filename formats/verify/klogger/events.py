# SPDX-License-Identifier: Apache-2.0
"""What a log's header says of its events: which the collector makes, and what points are called."""

from __future__ import annotations

import numpy as np

from tcpkmon.formats.base.errors import DamagedError
from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.overlap import BASE, base_numbers
from tcpkmon.formats.klogger.table import NUMBERS, SNAPSHOT, LogFormat
from tcpkmon.formats.verify.klogger.books import integers
from tcpkmon.formats.verify.report import I64, Mask

BEGIN, DUMP_FINISH = "DUMP_BEGIN", "DUMP_FINISH"
TEXTS = frozenset({
    "kernel", "comm", "cmdline", "name", "saddr", "daddr", "program", "text", "function",
})  # fmt: skip
"""Fields of these that are text."""
LOCATION = "location"
WORDS = {
    "entries": "records",
    "entry": "record",
    "checkpoint": "ledger",
    "location": "event",
    "snapshot": "record",
    "numbers": "serials",
}
"""What a person knows as something else in a log: the words of a report."""


def check_table(log: LogFormat) -> None:
    """Raise DamagedError where the header has what verify counts with as something else."""
    for event in log.events:
        if event.name not in BASE:
            continue
        for field in event.fields:
            if field.kind not in ("int", "enum") and field.name not in TEXTS:
                raise DamagedError(f"the header has {event.name}.{field.name} as {field.kind}")


def find_unreadable(log: LogFormat) -> list[str]:
    """The parts of the header that cannot be read, although the collector writes them."""
    found = [] if log.clock else ["the header has no good clock pair"]
    try:
        log.schema  # noqa: B018 - it is parsed
    except DamagedError as error:
        found.append(error.message)
    return found


class Events:
    """What the header says of the events. is_base: (NUMBERS,) which the collector makes; snapshot:
    the number of SNAPSHOT, whose points are its locations, or -1."""

    def __init__(self, log: LogFormat) -> None:
        snapshot = log.find_event(SNAPSHOT)
        self.snapshot = -1 if snapshot is None else snapshot.number
        self.has_location = snapshot is not None and snapshot.find_field(LOCATION) is not None
        self.is_base = base_numbers(log)
        self._names = {event.number: event.name for event in log.events}
        self._locations = log.enums.get(LOCATION, {}) if snapshot is not None else {}

    def text(self, point: int) -> str:
        """Its name, or its number."""
        return self.name(point) or str(point)

    def name(self, point: int) -> str | None:
        """Of an event, or of a location of SNAPSHOT."""
        if point != self.snapshot and point in self._names:
            return self._names[point]
        if self.snapshot < 0 or self._locations:
            return self._locations.get(point)
        return f"location {point}"  # the schema cannot be read

    def points(self, batch: LogBatch, kernel: I64) -> tuple[I64, Mask]:
        """The points of the kernel's records, and which of these cannot be."""
        points = batch.numbers[kernel].astype(np.int64)
        snapshots = np.flatnonzero(points == self.snapshot) if self.has_location else kernel[:0]
        if not len(snapshots):
            return points, np.zeros(len(points), np.bool_)
        points[snapshots] = integers(batch, SNAPSHOT, (LOCATION,))[:, 0]
        return points, (points < 0) | (points >= NUMBERS)
