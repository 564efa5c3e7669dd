# SPDX-License-Identifier: Apache-2.0
"""What the session hands its records to: one stream a file format, from the rings to the disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from collector.loader.capture_maps import Kernel
from collector.ring.batch import Batch
from collector.writer.ledger import Books
from collector.writer.psc_writer import Written
from formats.base.control import Clock, EndReason, Mark


class Order(Protocol):
    """What is known of the records before the file: counts by CPU, and by (cpu, point)."""

    @property
    def read(self) -> Mapping[int, int]: ...

    @property
    def late(self) -> Mapping[tuple[int, int], int]: ...

    @property
    def lost(self) -> int: ...


class Stream(Protocol):
    """Orders the records of a capture and writes them. One thread uses it.

    Nothing is under the output's name before begin(). close() tells whether the file is complete.
    """

    written: Written
    records: int
    """Records handed to the file so far, control entries not counted."""

    @property
    def order(self) -> Order: ...

    def begin(self, kernel: Kernel) -> None:
        """Put the beginning of the file on the disk: the programs are attached. FileError."""

    def start(self) -> None:
        """Start writing."""

    def push(self, batches: Iterable[Batch]) -> None:
        """Take in what a drain brought; its memory is looked at until settle()."""

    def release(self, watermark_ns: int) -> None:
        """Hand over all records up to this time."""

    def settle(self) -> None:
        """Copy what waits still: after this, the batches' memory may be overwritten."""

    def clock(self, entry: Clock) -> None:
        """The time of day was set."""

    def marks(self, marks: Sequence[Mark], pid: int = 0) -> bool:
        """Marks were set, by a process; False where there is no room for them."""

    def pause(self) -> None:
        """Recording was switched off; all that came before was released."""

    def resume(self, kernel: Kernel) -> None:
        """Recording was switched on again."""

    def switched(self, kernel: Kernel, names: Sequence[str]) -> None:
        """Single events were switched on or off."""

    def checkpoint(self, books: Books) -> None:
        """Write the books as they stand, and have them on the disk."""

    def finish(self, serials: Mapping[int, int], mono_ns: int) -> None:
        """The rest, at the end; serials: by CPU, how many the kernel has given out."""

    def end(self, books: Books, clock: Clock, reason: EndReason, mono_ns: int) -> None:
        """The last entries."""

    def close(self, timeout_s: float) -> bool:
        """Write what waits and close the file; False if that is not over in time."""

    def bytes_written(self) -> int:
        """Bytes in the file so far."""
