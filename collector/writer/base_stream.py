# SPDX-License-Identifier: Apache-2.0
"""What the session hands its records to: from the rings' views to a file on the disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic

from numpy.typing import NDArray

from collector.linux.privileges import begin_writing
from collector.ring.batch import Batch
from collector.sequencer.clock_pairs import Clocks
from collector.sequencer.cpu_queue import Queues
from collector.writer.capture_info import CaptureInfo, Current
from collector.writer.ledger import Books
from collector.writer.spool import BatchT, Spool, Writing
from collector.writer.written import Written
from formats.base.control import Clock, EndReason, Mark

Show = Callable[[NDArray[Any]], None]
"""Takes entries that are handed to the file, to print them."""


class Stream(ABC, Generic[BatchT]):
    """Orders the records of a capture and writes them. One thread uses it.

    A new one has found out that its place can be written to (FileError or UsageError if not);
    nothing is under the output's name before begin().
    """

    written: Written
    order: Queues
    """What is known of the records before the file: read, late and lost."""
    _clocks: Clocks
    _spool: Spool[BatchT]

    def __init__(self) -> None:
        self.records = 0
        """Records handed to the file so far, control entries not counted."""

    @abstractmethod
    def begin(
        self, info: CaptureInfo, current: Current, clocks: Clocks, show: Show | None = None
    ) -> None:
        """Put the beginning of the file on the disk: the programs are attached. FileError."""

    @abstractmethod
    def discard(self) -> None:
        """Leave nothing behind where begin() was not called, or failed; else nothing."""

    def start(self) -> None:
        """Start writing."""
        self._spool.start()

    def push(self, batches: Iterable[Batch]) -> None:
        """Take in what a drain brought; its memory is read until settle()."""
        for batch in batches:
            self.order.push(batch)

    @abstractmethod
    def release(self, watermark_ns: int) -> None:
        """Hand over all records up to this time."""

    def settle(self) -> None:
        """Copy what still waits: after this, the batches' memory may be overwritten."""
        self.order.settle()
        self._spool.flush()

    @abstractmethod
    def clock(self, entry: Clock) -> None:
        """The time of day was set."""

    def marks(self, marks: Sequence[Mark], pid: int = 0) -> bool:
        """Marks were set, by a process; False where there is no room for them."""
        entries = self._mark_entries(marks, pid)
        return self._spool.put_control(lambda _: entries, self._clocks.now_ns())

    def pause(self) -> None:
        """Recording was switched off; all that came before was released."""

    def resume(self) -> None:
        """Recording was switched on again."""

    def switched(self, names: Sequence[str]) -> None:
        """Single events were switched on or off."""

    def checkpoint(self, books: Books) -> None:
        """Write the books as they stand, and have them on the disk."""
        self._spool.put_control(
            lambda written: self._book_entries(books, written),
            self._clocks.now_ns(),
            sync=True,
        )

    @abstractmethod
    def finish(self, serials: Mapping[int, int], mono_ns: int) -> None:
        """The rest, at the end; serials: by CPU, how many the kernel has given out."""

    @abstractmethod
    def end(self, books: Books, clock: Clock, reason: EndReason, mono_ns: int) -> None:
        """The last entries."""

    def close(self, timeout_s: float) -> bool:
        """Write what waits and close the file; False if that is not over in time."""
        return self._spool.close(timeout_s)

    @abstractmethod
    def bytes_written(self) -> int:
        """Bytes in the file so far."""

    @abstractmethod
    def _mark_entries(self, marks: Sequence[Mark], pid: int) -> Sequence[Any]: ...

    @abstractmethod
    def _book_entries(self, books: Books, written: Written) -> Sequence[Any]: ...

    def _write_by(self, writer: Writing[BatchT], clocks: Clocks) -> None:
        """Have this writer in a thread of its own, from start() on."""
        self._clocks = clocks
        self.written = writer.written
        self._spool = Spool(writer, begin=begin_writing)
