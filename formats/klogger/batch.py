# SPDX-License-Identifier: Apache-2.0
"""A batch of records of Klogger logs: the reader returns batches, and all decoders take them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.control import Control
from tcpkmon.formats.base.facts import event_fields
from tcpkmon.formats.klogger.table import LogEvent, LogFormat

_Fact = TypeVar("_Fact", bound=Control)


@dataclass(frozen=True)
class LogBatch:
    """n records, in output order.

    numbers: (n,) uint16 event numbers. serials: (n,) uint64. times_ns: (n,) uint64 of
    CLOCK_MONOTONIC. cpus: (n,) uint16. words: the raw bytes, as uint64. starts: (n,) int64, the
    index in `words` where each payload begins. dump: index of their dump, -1 for several dumps.

        words   | head (3 words) | payload of record 0 | head | payload of record 1 | ...
                                 ^ starts[0]                  ^ starts[1]
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
        """The indices of an event's records in this batch, ascending."""
        return np.flatnonzero(self.numbers == self._event(event).number)

    def rows(self, event: LogEvent | str, at: NDArray[Any] | None = None) -> NDArray[Any]:
        """A copy of the payloads of an event's records, or of those at the indices `at`.

        Their dtype is event.dtype, in the byte order of the log; strings are S, with all bytes
        after a NUL.
        """
        found = self._event(event)
        places = self.where(found) if at is None else at
        width = found.size // 8
        if not width:
            return np.empty(len(places), found.dtype)
        starts = self.starts[places]
        table = self.words[starts[:, None] + np.arange(width)]
        rows: NDArray[Any] = table.view(found.dtype).reshape(len(places))
        return rows

    def _event(self, event: LogEvent | str) -> LogEvent:
        return self.format.event(event) if isinstance(event, str) else event

    def take(self, at: NDArray[Any] | slice) -> LogBatch:
        """The records at these indices, in this order."""
        return replace(
            self,
            numbers=self.numbers[at],
            serials=self.serials[at],
            times_ns=self.times_ns[at],
            cpus=self.cpus[at],
            starts=self.starts[at],
        )


def facts_of(batch: LogBatch, kind: type[_Fact]) -> Iterator[tuple[int, _Fact]]:
    """The place and the content of each event in a batch that tells a fact of this kind.

    A number that the log's event lacks is 0: those of earlier versions have fewer.
    """
    event = batch.format.find_event(kind.event)
    if event is None or not len(at := batch.where(event)):
        return
    rows = batch.rows(event, at)
    columns: list[list[Any]] = []
    for field, name in zip(fields(kind), event_fields(kind), strict=True):
        told = event.find_field(name)
        kinds, nothing = (("string",), b"") if field.type == "bytes" else (("int", "enum"), 0)
        if told is not None and told.kind not in kinds:
            return
        columns.append([nothing] * len(at) if told is None else rows[name].tolist())
    for place, values in zip(at.tolist(), zip(*columns, strict=True), strict=True):
        yield place, kind(*values)


def join_batches(batches: Sequence[LogBatch]) -> LogBatch:
    """Concatenate one or more batches of one format."""
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
    """The batch, with `words` that hold little more than the payloads."""
    widths = batch.format.payload_sizes[batch.numbers] // 8
    total = int(widths.sum())
    if not total:
        return replace(batch, starts=np.zeros_like(batch.starts), words=batch.words[:0])
    low, high = int(batch.starts.min()), int((batch.starts + widths).max())
    if high - low <= 2 * total + 3 * len(batch):
        return replace(batch, starts=batch.starts - low, words=batch.words[low:high])
    # A few records far apart: copy only their payloads, so that repeated joins do not grow.
    starts = np.cumsum(widths) - widths
    places = np.repeat(batch.starts - starts, widths) + np.arange(total)
    return replace(batch, starts=starts, words=batch.words[places])
