# SPDX-License-Identifier: Apache-2.0
"""The writer notes in the journal where its files end: see collector/ring/notes.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tcpkmon.collector.ring.notes import CountsNote, FileNote, Notes, SegmentNote
from tcpkmon.collector.writer.codec import Batch, Codec, File
from tcpkmon.collector.writer.tape import Account
from tcpkmon.collector.writer.written import Place, Written


class Noting:
    """The notes of one writer; without a place for them it notes nothing."""

    def __init__(self, notes: Notes | None, codec: Codec) -> None:
        self._notes, self._codec = notes, codec

    def wrote(self, batch: Batch, stop: int) -> None:
        """The first records of a batch are in their file."""
        if self._notes is not None:
            self._notes.count("in_file", batch.counts(0, stop))

    def dropped(self, column: str, counts: Counter[Place], last: Mapping[int, int]) -> None:
        """Records were dropped. last: see Batch."""
        if self._notes is not None:
            self._notes.count(column, counts)
            self._notes.serials(last)

    def reached(self, batches: Sequence[Batch]) -> None:
        """All records of these batches were written or dropped."""
        if self._notes is not None:
            for batch in batches:
                self._notes.serials(batch.last)

    def kill(self, counts: Mapping[int, int]) -> None:
        """By CPU, records that were killed so far. They hold with what is written next."""
        if self._notes is not None:
            self._notes.kill(counts)

    def account(self, account: Account) -> None:
        """What is counted before the files is so now."""
        if self._notes is not None:
            self._notes.stream(account.offset_ns, account.books.late)

    def commit(self, files: Iterable[File], written: Written) -> None:
        """The files end where they do now, if they have their beginnings."""
        if self._notes is None:
            return
        for file in files:
            if file.head is None:
                state = self._codec.numbers_of(file.state)
                self._notes.file(file.cpu, FileNote(file.sink.end_bytes, state))
        self._notes.written(
            CountsNote(written.entries, written.last_seq, written.skipped, written.checkpoints)
        )
        self._notes.commit()

    def segment(self, number: int, name: str, files: Iterable[File], written: Written) -> None:
        """This segment has its beginning. written: what is in those before it."""
        if self._notes is not None:
            before = SegmentNote(number, written.in_file.total(), written.lost)
            self._notes.segment(before, name.encode())
            self.commit(files, written)
