# SPDX-License-Identifier: Apache-2.0
"""Merges the logs of several CPUs in time order, in bounded memory.

Times in a log can step back: programs nest, and a program gets its serial before its time. But a
record is at most HOLD records behind a later one. The example has HOLD = 2, and times as numbers:

            read          | not read yet
    log 0   1  3  2  4  6 | 5  7 ...      safe until 4, the earliest of its last HOLD records
    log 1   2  3  5  8  9 | ...           safe until 8
    limit   4, the lowest: 1, 2, 2, 3, 3 are returned, the others wait
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.klogger.batch import LogBatch, join_batches
from tcpkmon.formats.klogger.reader import BATCH_RECORDS
from tcpkmon.formats.klogger.source import Source

HOLD = 4096
"""A record is at most so many records behind a later one of its log."""


Note = Callable[[LogBatch], None]


class _Source:
    """One log; `pending`: the records that were read but not returned yet."""

    def __init__(self, reader: Source, records: int, note: Note) -> None:
        self._batches = reader.batches(records)
        self._note = note
        self._most = 4 * max(records, HOLD)
        self.pending: LogBatch | None = None
        self.is_done = False
        self.refill()

    def refill(self) -> None:
        """Read the next batch."""
        batch = next(self._batches, None)
        if batch is None:
            self.is_done = True
        else:
            self._note(batch)
            self.pending = batch if self.pending is None else join_batches([self.pending, batch])

    def safe_until(self) -> int | None:
        """No later record is earlier than this time [ns]; None: there are no later records."""
        if self.is_done or self.pending is None:
            return None
        times = self.pending.times_ns
        safe = int(times[-HOLD:].min())
        if len(times) > self._most:  # times that do not rise: bound the memory
            safe = max(safe, int(np.partition(times, -self._most)[-self._most]))
        return safe

    def take(self, limit: int | None) -> LogBatch | None:
        """Remove and return the records before `limit` (None: all), in file order."""
        batch = self.pending
        if batch is None:
            return None
        if limit is None:
            self.pending = None
            return batch
        early = batch.times_ns < limit
        if not early.any():
            return None
        late = np.flatnonzero(~early)
        self.pending = batch.take(late) if len(late) else None
        return batch.take(np.flatnonzero(early))


def merge_logs(
    readers: Sequence[Source], records: int = BATCH_RECORDS, note: Note = lambda batch: None
) -> Iterator[LogBatch]:
    """The records of all logs in time order; at the same time, in the order of `readers`.

    note: called with each batch of a log, in file order, before its records are returned. A record
    more than HOLD records behind a later one of its log is returned late. Raises UsageError
    for logs of different captures.
    """
    for reader in readers[1:]:
        check_alike(readers[0], reader)
    sources = [_Source(reader, records, note) for reader in readers]
    while any(source.pending is not None for source in sources):
        safe = {source: source.safe_until() for source in sources}
        limit = min((time for time in safe.values() if time is not None), default=None)
        parts = [part for source in sources if (part := source.take(limit)) is not None]
        if parts:
            joined = join_batches(parts)
            yield joined.take(np.argsort(joined.times_ns, kind="stable"))
        for source in sources:
            if not source.is_done and (source.pending is None or safe[source] == limit):
                source.refill()


def check_alike(one: Source, other: Source) -> None:
    """Raise UsageError unless both logs are of one capture."""
    same = one.format.events == other.format.events and all(
        one.header.get(key) == other.header.get(key) for key in ("schema", "host", "kernel")
    )
    if not same:
        raise UsageError(
            f"{one.path} and {other.path} are not of one capture", "merge the logs of one capture"
        )
