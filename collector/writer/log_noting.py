# SPDX-License-Identifier: Apache-2.0
"""The writer of a log notes in the journal where its files end: see collector/ring/log_notes.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tcpkmon.collector.ring.journal import Journal
from tcpkmon.collector.ring.log_notes import Count, FileNote, SegmentNote
from tcpkmon.collector.writer.codec import Batch, File
from tcpkmon.collector.writer.written import Place, Written


class LogNoting:
    """The notes of one writer; without a journal it notes nothing."""

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._unnoted: dict[int, list[Count]] = {}

    def count(self, column: str, counts: Counter[Place]) -> None:
        """So many records are counted with the next note of records in their CPU's file."""
        if self._journal is not None:
            for (cpu, location), count in counts.items():
                self._unnoted.setdefault(cpu, []).append((column, location, count))

    def wrote(self, batch: Batch, stop: int) -> None:
        """The first records of a batch are in their file."""
        if self._journal is not None:
            self.count("in_file", batch.counts(0, stop))

    def records(self, file: File, batch: Any, segment: int) -> None:
        """A CPU's file is where it is after all records up to this batch.

        Before, those that were dropped may still be in the ring, and be written by who goes on.
        """
        if self._journal is not None:
            file.serial = int(batch.serials[-1])
            self.file(file, segment, self._unnoted.pop(file.cpu, ()))

    def file(self, file: File, segment: int, counts: Sequence[Count] = ()) -> None:
        """A CPU's file ends where it does now, if it has its beginning."""
        if self._journal is None or file.head is not None:
            return
        at = file.state
        note = FileNote(
            file.sink.end_bytes, at.last, at.inserted, at.dumps, at.before, file.serial
        )
        self._journal.logs.file(file.cpu, segment, note, counts)

    def segment(self, number: int, name: str, before: Written) -> None:
        """The files of this segment have their beginnings. before: what is in those before it."""
        if self._journal is not None:
            records = before.in_file.total()
            note = SegmentNote(number, name.encode(), records, before.lost, before.last_seq)
            self._journal.logs.segment(note)
