# SPDX-License-Identifier: Apache-2.0
"""A stream takes the records of a capture from the rings' views to a file on the disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic

import numpy as np

from collector.ring.batch import Batch
from collector.ring.journal import Journal, Note
from collector.sequencer.clock_pairs import Clocks
from collector.sequencer.cpu_queue import Queues
from collector.writer.capture_info import CaptureInfo, Current
from collector.writer.ledger import Books
from collector.writer.log_tail import LogTail
from collector.writer.segment_folder import Segments
from collector.writer.spool import BatchT, Spool, Writing
from collector.writer.tail import Tail
from collector.writer.written import Written
from formats.base.control import Change, Clock, Control, EndReason, Mark
from formats.base.errors import FileError, UsageError

Show = Callable[..., None]
"""Prints entries that go into the file."""


class Stream(ABC, Generic[BatchT]):
    """Orders the records of a capture and writes them. One thread uses it.

    The constructor checks that the output can be written (FileError or UsageError if not).
    Nothing has the output's name before begin().
    """

    largest_mark: ClassVar[int] = (1 << 64) - 1
    """The highest number of a mark that the format can hold."""
    segments: Segments | None = None
    """The output's files, where it rotates."""
    altered = False
    """Whether what is recorded was changed: switches, limits, filters, steps of a budget."""
    written: Written
    journal: Journal | None = None
    """For who goes on where this process is killed."""
    order: Queues
    """Counts records before they reach the file: read, late and lost."""
    _clocks: Clocks
    _spool: Spool[BatchT]

    def __init__(self) -> None:
        self.records = 0
        """Records that went to the spool so far, without control entries."""

    @abstractmethod
    def begin(
        self, info: CaptureInfo, current: Current, clocks: Clocks, show: Show | None = None
    ) -> None:
        """Put the beginning of the file on the disk: the programs are attached. FileError."""

    @abstractmethod
    def discard(self) -> None:
        """Remove what an output without a successful begin() left; else do nothing."""

    def start(self, begin: Callable[[], None] = lambda: None) -> None:
        """Start the writing thread. begin: what it calls first, to give up its privileges."""
        self._spool.start(begin)

    def folders(self) -> tuple[int, ...]:
        """Descriptors of the folders in which it still makes files; none by default."""
        return ()

    def open_file(self, cpu: int, first: bytes) -> int:
        """Make the file of a CPU that came later, with its first bytes; its descriptor. FileError.

        Formats with a file for each CPU replace it.
        """
        raise FileError("this format has one file for all CPUs")

    def open_files_by(self, open_file: Callable[[int, bytes], int]) -> None:
        """Call this instead of open_file(): the writing thread may make no files."""

    def push(self, batches: Iterable[Batch]) -> None:
        """Add what a drain returned. The stream reads that memory until settle()."""
        for batch in batches:
            self.order.push(batch)

    @abstractmethod
    def release(self, watermark_ns: int) -> None:
        """Write all records up to this time."""

    def settle(self) -> None:
        """Copy the records that still wait: then the batches' memory may be overwritten."""
        self.order.settle()
        self._spool.flush()

    @abstractmethod
    def clock(self, entry: Clock) -> None:
        """The time of day was set."""

    def marks(self, marks: Sequence[Mark], pid: int = 0) -> bool:
        """A process set marks; False where the queue has no room for them."""
        entries = self._mark_entries(marks, pid)
        return self._spool.put_control(lambda _: entries, self._clocks.now_ns())

    def pause(self) -> None:
        """Recording was switched off; all earlier records were released."""

    def resume(self) -> None:
        """Recording was switched on again."""

    def switched(self, names: Sequence[str]) -> None:
        """Single events were switched on or off."""

    def reconciled(self, entries: Sequence[Control]) -> None:
        """The kernel's sockets were compared with the last records. Formats without it say no."""

    @abstractmethod
    def changed(self, changes: Sequence[Change]) -> None:
        """What is recorded changed."""

    def describe(self, settings: Mapping[str, Any]) -> None:
        """These settings are others now: the header of the next file, if there is one, says so."""

    def checkpoint(self, books: Books) -> None:
        """Write the ledger, and sync the file."""
        note = self._noting()

        def build(written: Written) -> Sequence[Any]:
            note(written)
            return self._book_entries(books, written)

        self._spool.put_control(build, self._clocks.now_ns(), sync=True)

    def _noting(self) -> Callable[[Written], None]:
        """What notes the stream as it is here in the journal, before a checkpoint is written."""
        journal = self.journal
        if journal is None:
            return lambda written: None
        note = Note(self.order.released(), self._clocks.offset_ns)
        return lambda written: journal.note(written.checkpoints, note)

    def after(self, do: Callable[[], None]) -> None:
        """Call a function when all that was released is in the file; the writing thread may."""
        self._spool.after(do)

    def open_tail(
        self, path: str, capture: str, dtype: np.dtype[Any], journal: Journal
    ) -> Tail | LogTail:
        """The end of the file that go_on() shall go on with: this file, or of a capture that
        rotates its last segment. FileError where there is none, OSError."""
        raise FileError("this format cannot be gone on with")

    def kill(self, counts: Mapping[int, int]) -> None:
        """After go_on(): so many records of each CPU were read, and are not in the file."""

    def go_on(
        self,
        info: CaptureInfo,
        current: Current,
        clocks: Clocks,
        tail: Any,
        show: Show | None = None,
    ) -> None:
        """Instead of begin(): go on with the file of a process that was killed. OSError."""
        raise UsageError("this format cannot be gone on with")

    @property
    def segment_bytes(self) -> int:
        """About how large the file is, with what waits for the writing thread."""
        return self.bytes_written()

    def rotate(self, books: Books, clock: Clock, why: str) -> None:
        """End the file after all that was released, and begin the next one.

        The writing thread does it: see collector/writer/turn.py. why: for the index. Formats and
        outputs that cannot rotate refuse it: UsageError.
        """
        raise UsageError("this output does not rotate", "name a folder: -o FOLDER")

    def ask(self, pid: int = 0) -> int:
        """Write a dump of the flight recorder; its number. pid: who asks; 0: a signal."""
        raise UsageError("this capture is no flight recorder", "collect --record-last 30s")

    def window(self) -> dict[str, Any] | None:
        """What the flight recorder keeps, for the status; None for other captures."""
        return None

    def describe_end(self) -> str:
        """What was written, at the end, where that is not one file."""
        return ""

    @abstractmethod
    def finish(self, serials: Mapping[int, int], mono_ns: int) -> None:
        """Write the rest, at the end; serials: by CPU, the number that the kernel gave out."""

    @abstractmethod
    def end(self, books: Books | None, clock: Clock, reason: EndReason, mono_ns: int) -> None:
        """Write the last entries; books: None where the last counts could not be read."""

    def close(self, timeout_s: float) -> bool:
        """Write what waits and close the file; False when that takes longer."""
        return self._spool.close(timeout_s)

    @abstractmethod
    def bytes_written(self) -> int:
        """Bytes in the file so far."""

    @abstractmethod
    def _mark_entries(self, marks: Sequence[Mark], pid: int) -> Sequence[Any]: ...

    @abstractmethod
    def _book_entries(self, books: Books, written: Written) -> Sequence[Any]: ...

    def _write_by(self, writer: Writing[BatchT], clocks: Clocks) -> None:
        """Use this writer, in a thread of its own after start()."""
        self._clocks = clocks
        self.written = writer.written
        self._spool = Spool(writer)
