# SPDX-License-Identifier: Apache-2.0
"""The spool: a thread between the sequencer and the sink, so that a slow disk holds up no ring.

The writer gives the final sequence numbers, because only it knows what reached the file: what was
dropped takes its numbers with it, and a LOSS entry says so before writing goes on.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collector.ordered import MonoToEpoch, Ordered, stamp_control
from collector.sinks import FileSink, cause_of
from formats.control import ANY_CPU, Checkpoint, Control, Loss, LossCause, encode_many

LIMIT_BYTES = 64 << 20
RETRY_NS = 100_000_000
CONTROL_COST_BYTES = 64 << 10
"""What a waiting control item counts for: about a copy of the kernel's ledger."""

Place = tuple[int, int]
"""(cpu, location)"""


@dataclass
class Written:
    """What stands in the file, and what was dropped on the way to it; the writer keeps it.

    Read it from another thread only after close(), or for a display. Counters are of records (no
    control entries) by (cpu, location).
    """

    entries: int = 0
    """Entries in the file, control entries too."""
    last_seq: int = 0
    checkpoints: int = 0
    in_file: Counter[Place] = field(default_factory=Counter)
    queue_full: Counter[Place] = field(default_factory=Counter)
    disk_full: Counter[Place] = field(default_factory=Counter)
    write_error: Counter[Place] = field(default_factory=Counter)
    refused: int = 0
    """Control entries that could not be written; they took no numbers."""
    error: OSError | None = None
    """The last error of a write; None again when writing went on."""
    sync_error: OSError | None = None

    @property
    def lost(self) -> int:
        """Sequence numbers up to last_seq that no entry of the file has."""
        return self.last_seq - self.entries

    def dropped(self, cause: LossCause) -> Counter[Place]:
        """The counter of one cause."""
        return {
            LossCause.QUEUE_FULL: self.queue_full,
            LossCause.DISK_FULL: self.disk_full,
            LossCause.WRITE_ERROR: self.write_error,
        }[cause]


Build = Callable[[Written], Sequence[Control]]
"""Makes control entries when their turn has come, from what stands in the file just before."""


class Writer:
    """Numbers entries and hands them to the sink, without a queue or a thread.

    `written` says what the file holds already (START). `now_ns` is a monotonic clock.
    """

    def __init__(
        self,
        sink: FileSink,
        dtype: np.dtype[Any],
        mono_to_epoch: MonoToEpoch,
        written: Written,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.written = written
        self._sink = sink
        self._dtype = dtype
        self._mono_to_epoch = mono_to_epoch
        self._now_ns = now_ns
        self._gaps: list[tuple[LossCause, int]] = []
        self._retry_ns: int | None = None

    def write(self, ordered: Ordered) -> None:
        """Write a batch, or as many of its entries as go; the rest is counted as dropped."""
        if not len(ordered):
            return
        error = self.written.error
        if self._retry_ns is not None and error and self._now_ns() < self._retry_ns:
            self.drop(ordered, cause_of(error))
            return
        mono_ns = self._now_ns()
        if not self._write_losses(mono_ns, reserved=False):
            if self.written.error is not None:
                self.drop(ordered, cause_of(self.written.error))
            return
        ordered.renumber(self.written.last_seq + 1)
        outcome = self._sink.write(ordered.entries.data.cast("B"))
        kept = outcome.kept_bytes // self._dtype.itemsize
        self._note(outcome.error)
        if kept:
            self.written.entries += kept
            self.written.last_seq = int(ordered.seqs[kept - 1])
            self.written.in_file.update(ordered.counts(0, kept))
        if outcome.error is not None:
            self.drop(ordered, cause_of(outcome.error), kept)

    def drop(self, ordered: Ordered, cause: LossCause, start: int = 0) -> None:
        """Count the entries of a batch from `start` on as lost; they keep their numbers."""
        before = int(ordered.seqs[start - 1]) if start else ordered.first_seq - 1
        last = ordered.first_seq + ordered.span - 1
        self.skip(cause, last - before, ordered.counts(start))

    def skip(self, cause: LossCause, numbers: int, counts: Counter[Place]) -> None:
        """Give up so many sequence numbers; counts: the records among them."""
        self.written.dropped(cause).update(counts)
        if not numbers:
            return
        if self._gaps and self._gaps[-1][0] == cause:
            numbers += self._gaps.pop()[1]
        self._gaps.append((cause, numbers))

    def control(self, build: Build, mono_ns: int, *, reserved: bool = False) -> bool:
        """Write control entries, all or none of them; also while records are being dropped."""
        if not self._write_losses(mono_ns, reserved):
            return False
        return self._append(build(self.written), mono_ns, reserved)

    def sync(self) -> None:
        """Have on the disk what was written."""
        self.written.sync_error = self._sink.sync() or self.written.sync_error

    def close(self) -> None:
        """Sync and close the sink."""
        self.written.sync_error = self._sink.close() or self.written.sync_error

    def _write_losses(self, mono_ns: int, reserved: bool) -> bool:
        """The LOSS entries that are due; False when they cannot be written yet."""
        while self._gaps:
            cause, count = self._gaps[0]
            loss = Loss(ANY_CPU, 0, count, cause)
            if not self._append([loss], mono_ns, reserved, skipped=count):
                return False
            self._gaps.pop(0)
        return True

    def _append(
        self, entries: Sequence[Control], mono_ns: int, reserved: bool, skipped: int = 0
    ) -> bool:
        if not entries:
            return True
        rows = encode_many(entries, self._dtype)
        first = self.written.last_seq + skipped + 1
        seqs = np.arange(first, first + len(rows), dtype=np.int64)
        stamp_control(rows, seqs, mono_ns, self._mono_to_epoch)
        outcome = self._sink.write(rows.data.cast("B"), whole=True, reserved=reserved)
        self._note(outcome.error)
        if outcome.error is not None:
            self.written.refused += len(rows)
            return False
        self.written.entries += len(rows)
        self.written.last_seq = int(seqs[-1])
        self.written.checkpoints += sum(isinstance(entry, Checkpoint) for entry in entries)
        return True

    def _note(self, error: OSError | None) -> None:
        self.written.error = error
        self._retry_ns = None if error is None else self._now_ns() + RETRY_NS


@dataclass
class _Gap:
    """Batches that did not fit in the queue, in the place where they would have stood."""

    numbers: int
    counts: Counter[Place]


@dataclass
class _Entries:
    build: Build
    mono_ns: int
    reserved: bool
    sync: bool


class Spool:
    """A Writer in a thread of its own behind a queue of at most about `limit_bytes`.

    put() and put_control() return at once, and raise what ended the thread (BrokenPipeError when
    nobody reads the output any more).
    """

    def __init__(self, writer: Writer, limit_bytes: int = LIMIT_BYTES) -> None:
        self.written = writer.written
        self._writer = writer
        self._limit_bytes = limit_bytes
        self._queue: deque[Ordered | _Gap | _Entries] = deque()
        self._bytes = 0
        self._closing = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="tcpkmon-spool", daemon=True)

    def start(self) -> None:
        """Start the thread: after capabilities were dropped, which are a thread's own."""
        self._thread.start()

    def put(self, ordered: Ordered) -> bool:
        """Hand over a batch, which belongs to the spool from now on; False: dropped, and counted.

        A batch larger than the whole queue is taken when the queue is empty.
        """
        with self._changed:
            self._raise_failure()
            if not len(ordered):
                return True
            if self._bytes and self._bytes + ordered.entries.nbytes > self._limit_bytes:
                gap = self._queue[-1] if self._queue else None
                if not isinstance(gap, _Gap):
                    gap = _Gap(0, Counter())
                    self._queue.append(gap)
                gap.numbers += ordered.span
                gap.counts.update(ordered.counts())
                return False
            self._add(ordered, ordered.entries.nbytes)
            return True

    def put_control(
        self, build: Build, mono_ns: int, *, reserved: bool = False, sync: bool = False
    ) -> bool:
        """Have control entries written in their turn; False when the queue is too full for them.

        build is called in the writer's thread. reserved: those of the end, which are always taken
        and may use the reserve on the disk. sync: fsync afterwards.
        """
        with self._changed:
            self._raise_failure()
            if not reserved and self._bytes + CONTROL_COST_BYTES > self._limit_bytes:
                return False
            self._add(_Entries(build, mono_ns, reserved, sync), CONTROL_COST_BYTES)
            return True

    def close(self, timeout_s: float | None = None) -> bool:
        """Write what waits, sync and close the file; False if that is not over in time.

        Raises what ended the thread. The result is in `written`: error and sync_error too.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._raise_failure()
        return True

    @property
    def waiting_bytes(self) -> int:
        """What stands in the queue."""
        return self._bytes

    def _add(self, item: Ordered | _Entries, cost: int) -> None:
        self._queue.append(item)
        self._bytes += cost
        self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                self._handle(item)
            self._writer.close()
        except BaseException as failure:
            with self._changed:
                self._failure = failure

    def _next(self) -> Ordered | _Gap | _Entries | None:
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return self._queue.popleft() if self._queue else None

    def _handle(self, item: Ordered | _Gap | _Entries) -> None:
        cost = CONTROL_COST_BYTES
        if isinstance(item, Ordered):
            cost = item.entries.nbytes
            self._writer.write(item)
        elif isinstance(item, _Gap):
            cost = 0
            self._writer.skip(LossCause.QUEUE_FULL, item.numbers, item.counts)
        else:
            self._writer.control(item.build, item.mono_ns, reserved=item.reserved)
            if item.sync:
                self._writer.sync()
        with self._changed:
            self._bytes -= cost
