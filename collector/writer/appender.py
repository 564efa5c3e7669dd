# SPDX-License-Identifier: Apache-2.0
"""What reaches files that are written, and what does not; collector/writer/writer.py begins them.

Only this knows what is in a file. What it could not write is counted, and told of before the next
records.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tcpkmon.collector.ring.journal import Journal
from tcpkmon.collector.writer.codec import Batch, Codec, File, Frame
from tcpkmon.collector.writer.file_sink import cause_of
from tcpkmon.collector.writer.noting import Noting
from tcpkmon.collector.writer.tape import Account, Item, owe
from tcpkmon.collector.writer.written import END_TRIES, RETRY_NS, Place, Written
from tcpkmon.formats.base.control import ANY_CPU, Loss, LossCause
from tcpkmon.formats.base.errors import TcpkmonError


class Appender:
    """Appends batches and items to `files`: by CPU, those that are written. Without any, between
    two dumps of the flight recorder, nothing is written and nothing is lost.

    journal: gets notes of the files, for who goes on with them. written: what is in them already.
    """

    def __init__(
        self,
        codec: Codec,
        written: Written | None = None,
        journal: Journal | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.written = Written() if written is None else written
        self.files: dict[int, File] = {}
        self.disk_lost = 0
        """Records that a full disk, or a write that failed, took; of all files."""
        self._codec = codec
        noted = journal if codec.is_noted else None
        self._noting = Noting(noted.files if noted is not None else None, codec)
        self._now_ns = now_ns
        self._gaps: list[tuple[LossCause, int]] = []
        self._failed: OSError | None = None
        self._retry_ns = 0

    def write(self, *batches: Batch, cached: bool = False) -> None:
        """Write the batches' entries up to the first that fails; the rest counts as dropped.

        cached: see collector/writer/file_sink.py.
        """
        for cpu, some in self._codec.by_file(batches) if self.files else ():
            file = None
            if self._failed is not None and self._now_ns() < self._retry_ns:
                self._drop(some, self._failed)
            elif isinstance(file := self._file(cpu), OSError):
                self.written.error = file
                self._drop(some, file)
            elif self._settle(file, some[0].first_ns):
                self._records(file, some, cached)
            else:
                self._fail(some)
            self._noting.reached(some)
            if (there := self.files.get(cpu)) is not None and not self._gaps:
                self._noting.commit((there,), self.written)

    def skip(
        self, cause: LossCause, numbers: int, counts: Counter[Place],
        last: Mapping[int, int] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Skip so many sequence numbers; counts: the records among them; last: see Batch."""
        if not self.files:
            return
        self.written.dropped(cause).update(counts)
        if cause in (LossCause.DISK_FULL, LossCause.WRITE_ERROR):
            self.disk_lost += counts.total()
        self._noting.dropped(cause.name.lower(), counts, last)
        if numbers and self._gaps and self._gaps[-1][0] == cause:
            numbers += self._gaps.pop()[1]
        if numbers:
            self._gaps.append((cause, numbers))

    def control(self, items: Sequence[Item], mono_ns: int, *, reserved: bool = False) -> bool:
        """Write the items into each file that gets some, all of them or none, also while records
        are dropped; False where that failed.

        reserved: the last items of a file. They may use the sink's reserve, and are tried again
        at once when a write fails.
        """
        return not self._control(items, mono_ns, reserved)

    def sync(self) -> None:
        """Sync the files."""
        for file in self.files.values():
            self.written.sync_error = file.sink.sync() or self.written.sync_error

    def _add(self, cpu: int) -> File:
        """Make a CPU's file, with its beginning on the disk. OSError, TcpkmonError."""
        raise NotImplementedError

    def _file(self, cpu: int) -> File | OSError:
        """A CPU's file; it is made where there is none yet."""
        if cpu not in self.files:
            try:
                return self._add(cpu)
            except OSError as error:
                return error
            except TcpkmonError as error:
                cause = error.__cause__
                return cause if isinstance(cause, OSError) else OSError(5, error.message)
        return self.files[cpu]

    def _forget(self, written: Written) -> None:
        """Nothing of the last dump belongs to the next one."""
        self.written = written
        self._gaps, self._failed = [], None

    def _control(self, items: Sequence[Item], mono_ns: int, reserved: bool) -> list[File]:
        """Write items; the files in which that failed."""
        for item in items:
            if isinstance(item, Account):
                self._noting.account(item)
        notes = self._codec.notes(items, self.written, self.files.keys())
        for cpu in sorted(self._codec.named(notes) - self.files.keys()) if self.files else ():
            self._file(cpu)
        left = [self.files[cpu] for cpu in sorted(self.files)]
        for _ in range(END_TRIES if reserved else 1):
            left = [file for file in left if not self._tell(file, notes, mono_ns, reserved)]
        for file in left:
            file.owed = owe(file.owed, items)
        return left

    def _tell(self, file: File, notes: Sequence[Any], mono_ns: int, reserved: bool) -> bool:
        """Write what a file gets of some notes; False when that fails."""
        if not self._settle(file, mono_ns, reserved):
            self.written.refused += len(notes)
            return False
        frame = self._codec.control(notes, file, self.files.keys(), self.written, mono_ns)
        if frame is not None and not self._put(file, frame, reserved):
            self.written.refused += frame.size
            return False
        if not reserved:  # who goes on leaves out an end
            self._noting.commit((file,), self.written)
        return True

    def _settle(self, file: File, mono_ns: int, reserved: bool = False) -> bool:
        """Write what is due before anything else; False when that fails."""
        if not self._put_head(file):
            return False
        if not self._gaps and not file.owed:
            return True
        due = [*(Loss(ANY_CPU, 0, count, cause) for cause, count in self._gaps), *file.owed]
        notes = self._codec.notes(due, self.written, self.files.keys())
        frame = self._codec.control(notes, file, self.files.keys(), self.written, mono_ns)
        if frame is not None and not self._put(file, frame, reserved):
            return False
        self._gaps, file.owed = [], []
        return True

    def _put_head(self, file: File) -> bool:
        """Write the beginning of a file, if it is not there yet; False when that fails."""
        if file.head is None:
            return True
        if not self._put(file, file.head, reserved=True):
            return False
        file.head = None
        return True

    def _put(self, file: File, frame: Frame, reserved: bool) -> bool:
        outcome = file.sink.write(*frame.pieces, whole=True, reserved=reserved)
        self.written.error = outcome.error
        if outcome.error is not None:
            return False
        self._failed = None
        self._took(file, frame)
        return True

    def _took(self, file: File, frame: Frame) -> None:
        """A frame is in the file."""
        file.state = frame.state
        written = self.written
        written.entries += frame.entries
        written.last_seq += frame.numbers
        written.skipped += frame.skipped
        written.checkpoints += frame.checkpoints
        self._codec.moved(file)

    def _records(self, file: File, batches: Sequence[Batch], cached: bool) -> None:
        first = self.written.last_seq + 1
        frame = self._codec.records(file, batches, first)
        outcome = file.sink.write(*frame.pieces, whole=frame.whole, cached=cached)
        self.written.error = self._failed = outcome.error
        kept = outcome.kept_bytes // self._codec.unit
        if outcome.error is None:
            kept = sum(map(len, batches))
            file.state = frame.state if frame.state is not None else file.state
        for number, batch in enumerate(batches):
            here = min(kept, len(batch))
            self._count(file, batch, here)
            if here < len(batch):
                self._fail(batches[number:], here)
                break
            kept -= here
        self._codec.moved(file)

    def _count(self, file: File, batch: Batch, stop: int) -> None:
        """Count the first entries of a batch as in the file."""
        counts = batch.counts(0, stop)
        self.written.in_file.update(counts)
        file.records += counts.total()
        self.written.entries += stop
        self.written.last_seq += batch.numbers(stop)
        self._noting.wrote(batch, stop)

    def _fail(self, batches: Sequence[Batch], start: int = 0) -> None:
        """A write just failed: drop the rest of the batches, and all others until the next try."""
        self._failed = self.written.error
        self._retry_ns = self._now_ns() + RETRY_NS
        if self._failed is not None:
            self._drop(batches, self._failed, start)

    def _drop(self, batches: Sequence[Batch], error: OSError, start: int = 0) -> None:
        for batch in batches:
            self.skip(cause_of(error), batch.span - batch.numbers(start), batch.counts(start))
            start = 0
