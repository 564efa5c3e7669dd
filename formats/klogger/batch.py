# SPDX-License-Identifier: Apache-2.0
"""Records read from Klogger logs, many at once: what the reader yields and all decoding takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.klogger.table import LogEvent, LogFormat


@dataclass(frozen=True)
class LogBatch:
    """n records in the order in which they shall be seen.

    numbers: (n,) uint16 event numbers; serials, times_ns: (n,) uint64, of CLOCK_MONOTONIC;
    cpus: (n,) uint16. starts: (n,) int64, where each payload begins in `words`, the bytes as read,
    in units of 8. dump: index of the dump that they stand in, -1 where they are of several.
    """

    format: LogFormat
    numbers: NDArray[np.uint16]
    serials: NDArray[np.uint64]
    times_ns: NDArray[np.uint64]
    cpus: NDArray[np.uint16]
    starts: NDArray[np.int64]
    words: NDArray[np.uint64]
    dump: int = -1

    def __len__(self) -> int:
        return len(self.numbers)

    def events(self) -> list[LogEvent]:
        """The events that occur, by number."""
        return [self.format.event(int(n)) for n in np.flatnonzero(np.bincount(self.numbers))]

    def where(self, event: LogEvent | str) -> NDArray[np.int64]:
        """The places of an event's records in this batch, rising."""
        found = self.format.event(event) if isinstance(event, str) else event
        return np.flatnonzero(self.numbers == found.number)

    def rows(self, event: LogEvent | str, at: NDArray[Any] | None = None) -> NDArray[Any]:
        """The payloads of an event's records (of those at the places `at`) as event.dtype.

        A copy, in the byte order of the log; strings as S (bytes after a NUL are still there).
        """
        found = self.format.event(event) if isinstance(event, str) else event
        places = self.where(found) if at is None else at
        width = found.size // 8
        if not width:
            return np.empty(len(places), found.dtype)
        starts = self.starts[places]
        table = self.words[starts[:, None] + np.arange(width)]
        rows: NDArray[Any] = table.view(found.dtype).reshape(len(places))
        return rows

    def take(self, at: NDArray[Any] | slice) -> LogBatch:
        """The records at these places, in this order."""
        return replace(
            self,
            numbers=self.numbers[at],
            serials=self.serials[at],
            times_ns=self.times_ns[at],
            cpus=self.cpus[at],
            starts=self.starts[at],
        )


def join_batches(batches: Sequence[LogBatch]) -> LogBatch:
    """The records of several batches (one at least) of one format, one batch after the other."""
    if len(batches) == 1:
        return batches[0]
    parts = [_compact(batch) for batch in batches]
    ends = np.cumsum([len(part.words) for part in parts])
    shifted = [part.starts + (end - len(part.words)) for part, end in zip(parts, ends, strict=True)]
    return LogBatch(
        parts[0].format,
        np.concatenate([part.numbers for part in parts]),
        np.concatenate([part.serials for part in parts]),
        np.concatenate([part.times_ns for part in parts]),
        np.concatenate([part.cpus for part in parts]),
        np.concatenate(shifted),
        np.concatenate([part.words for part in parts]),
    )


def _compact(batch: LogBatch) -> LogBatch:
    """The batch with few bytes besides its records' payloads."""
    widths = batch.format.payload_sizes[batch.numbers] // 8
    total = int(widths.sum())
    if not total:
        return replace(batch, starts=np.zeros_like(batch.starts), words=batch.words[:0])
    low, high = int(batch.starts.min()), int((batch.starts + widths).max())
    if high - low <= 2 * total + 3 * len(batch):
        return replace(batch, starts=batch.starts - low, words=batch.words[low:high])
    # A few records far apart: only they are kept, else what is joined again and again would grow.
    starts = np.cumsum(widths) - widths
    places = np.repeat(batch.starts - starts, widths) + np.arange(total)
    return replace(batch, starts=starts, words=batch.words[places])
