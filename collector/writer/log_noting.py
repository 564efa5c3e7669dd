# SPDX-License-Identifier: Apache-2.0
"""The writer of a log notes in the journal where its files end: see collector/ring/log_notes.py."""

from __future__ import annotations

import os
from collections import Counter

from collector.ring.journal import Journal
from collector.ring.log_notes import Count, FileNote, SegmentNote
from collector.writer.file_sink import HEADER_BYTES, FileSink
from collector.writer.log_file import LogFile
from collector.writer.written import Place, Written


def cut(fd: int, note: FileNote) -> int:
    """The descriptor of a file, of which what is noted is left."""
    os.ftruncate(fd, note.end_bytes)
    os.lseek(fd, 0, os.SEEK_END)
    return fd


def file_at(sink: FileSink, note: FileNote) -> LogFile:
    """A CPU's file that goes on where it was noted."""
    return LogFile(
        sink, note.last, note.inserted, note.dumps, before=note.before, serial=note.serial,
        head_bytes=HEADER_BYTES,
    )  # fmt: skip


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

    def file(self, cpu: int, file: LogFile, segment: int, records: bool = False) -> None:
        """A CPU's file ends where it does now, if it has its beginning.

        records: its serial is after all records that were counted. Before, those that were dropped
        may still be in the ring, and be written by who goes on.
        """
        if self._journal is None or file.head:
            return
        note = FileNote(
            file.sink.end_bytes, file.last, file.inserted, file.dumps, file.before, file.serial
        )
        counts = self._unnoted.pop(cpu, ()) if records else ()
        self._journal.logs.file(cpu, segment, note, counts)

    def segment(self, number: int, name: str, before: Written) -> None:
        """The files of this segment have their beginnings. before: what is in those before it."""
        if self._journal is not None:
            records = before.in_file.total()
            note = SegmentNote(number, name.encode(), records, before.lost, before.last_seq)
            self._journal.logs.segment(note)
