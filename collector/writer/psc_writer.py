# SPDX-License-Identifier: Apache-2.0
"""The writer of PSC files, in the spool's thread: final sequence numbers, LOSS entries, ledger.

Only the writer knows what reached the file. Dropped entries keep their sequence numbers; a LOSS
entry reports them before the next entries are written.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.sequencer.ordered_batch import (
    MonoToEpoch,
    Numbering,
    Ordered,
    count_places,
    stamp_control,
)
from collector.writer.file_sink import FileSink, cause_of
from collector.writer.segment_folder import Segments
from collector.writer.turn import Turn
from collector.writer.written import END_TRIES, RETRY_NS, Place, Written
from formats.base.changes import merge
from formats.base.control import (
    ANY_CPU,
    Change,
    Checkpoint,
    Clock,
    Control,
    Loss,
    LossCause,
    encode_many,
)
from formats.base.errors import FileError

TALLY_ENTRIES = 1 << 16


class Tally:
    """Counts written records, many batches at a time: to count each batch alone costs more than
    to number its entries. The counter is complete after settle()."""

    def __init__(self, counter: Counter[Place]) -> None:
        self._counter = counter
        self._by_cpu: defaultdict[int, list[NDArray[np.uint32]]] = defaultdict(list)
        self._waiting = 0

    def add(self, cpu: int, locations: NDArray[np.uint32]) -> None:
        """Count a CPU's records."""
        self._by_cpu[cpu].append(locations)
        self._waiting += len(locations)
        if self._waiting > TALLY_ENTRIES:
            self.settle()

    def settle(self) -> None:
        """Bring the counter up to date."""
        for cpu, found in self._by_cpu.items():
            self._counter.update(count_places(cpu, np.concatenate(found)))
        self._by_cpu.clear()
        self._waiting = 0


Build = Callable[[Written], Sequence[Control]]
"""Makes control entries when they are written, from what is in the file just before."""


class Writer:
    """Numbers entries and writes them to the sink, without a queue or a thread.

    written: what is in the file already (START). now_ns: a monotonic clock. segments: without them
    it cannot rotate.
    """

    def __init__(
        self,
        sink: FileSink,
        dtype: np.dtype[Any],
        mono_to_epoch: MonoToEpoch,
        written: Written,
        now_ns: Callable[[], int] = time.monotonic_ns,
        segments: Segments | None = None,
    ) -> None:
        self.written = written
        self._sink = sink
        self._dtype = dtype
        self._mono_to_epoch = mono_to_epoch
        self._now_ns = now_ns
        self.tally = Tally(written.in_file)
        self._gaps: list[tuple[LossCause, int]] = []
        self._changes: dict[tuple[int, int], Change] = {}
        self._clock: Clock | None = None
        self._failed: OSError | None = None
        self._retry_ns = 0
        self._numbering: Numbering | None = None
        self._given_bytes = 0
        self._segments = segments
        self._head: tuple[bytes, int] | None = None

    def write(self, *batches: Ordered, cached: bool = False) -> None:
        """Write the batches' entries up to the first that fails; the rest counts as dropped.

        cached: see collector/writer/file_sink.py.
        """
        batches = tuple(batch for batch in batches if len(batch))
        if not batches:
            return
        if self._failed is not None and self._now_ns() < self._retry_ns:
            self._drop_all(batches, cause_of(self._failed))
            return
        if not self._write_losses(batches[0].first_ns, reserved=False):
            self._fail(batches)
            return
        first = self.written.last_seq + 1
        for batch in batches:
            batch.renumber(first)
            first += batch.span
        outcome = self._sink.write(
            *(batch.entries.view(np.uint8).data for batch in batches), cached=cached
        )
        kept = outcome.kept_bytes // self._dtype.itemsize
        self.written.error = self._failed = outcome.error
        self.written.entries += kept
        for number, batch in enumerate(batches):
            if kept < len(batch):
                if kept:
                    self.written.last_seq = int(batch.seqs[kept - 1])
                    self.written.in_file.update(batch.counts(0, kept))
                self._fail(batches[number:], kept)
                break
            self.written.last_seq = batch.first_seq + batch.span - 1
            for origin in batch.origins:
                self.tally.add(origin.cpu, origin.locations)
            kept -= len(batch)
        self._numbering = batches[-1].numbering
        self._given_bytes = batches[-1].start_bytes + batches[-1].nbytes
        self._update_numbering()

    def drop(self, ordered: Ordered, cause: LossCause, start: int = 0) -> None:
        """Count the entries of a batch from index `start` as lost; they keep their numbers."""
        before = int(ordered.seqs[start - 1]) if start else ordered.first_seq - 1
        last = ordered.first_seq + ordered.span - 1
        self.skip(cause, last - before, ordered.counts(start))

    def skip(self, cause: LossCause, numbers: int, counts: Counter[Place]) -> None:
        """Skip so many sequence numbers; counts: the records among them."""
        self.written.dropped(cause).update(counts)
        if not numbers:
            return
        if self._gaps and self._gaps[-1][0] == cause:
            numbers += self._gaps.pop()[1]
        self._gaps.append((cause, numbers))

    def control(self, build: Build, mono_ns: int, *, reserved: bool = False) -> bool:
        """Write all control entries or none, also while records are dropped; False for none.

        reserved: the last entries of a file. They may use the sink's reserve, and are tried again
        at once when a write fails.
        """
        self.tally.settle()
        for _ in range(END_TRIES if reserved else 1):
            if self._write_losses(mono_ns, reserved) and self._append(
                build(self.written), mono_ns, reserved
            ):
                self._update_numbering()
                return True
        self._owe(build(self.written))
        return False

    def _owe(self, entries: Sequence[Control]) -> None:
        """Keep the entries without which others are misread, until they can be written."""
        for entry in entries:
            if isinstance(entry, Change):
                key = entry.kind, entry.which
                self._changes[key] = merge(self._changes.get(key), entry)
            elif isinstance(entry, Clock):
                steps_ns = self._clock.step_ns if self._clock is not None else 0
                self._clock = replace(entry, step_ns=steps_ns + entry.step_ns)

    def sync(self) -> None:
        """Sync the file."""
        self.written.sync_error = self._sink.sync() or self.written.sync_error

    def rotate(self, turn: Turn) -> None:
        """End the file and begin the next one, or go on with this one: see turn.py."""
        assert self._segments is not None
        try:
            fd = self._segments.open(self.written.segment + 1, turn.realtime_ns)
        except (OSError, FileError) as error:
            self.written.rotation_error = error
            return
        sink = self._sink.another(fd)
        failed = sink.prepare()
        if failed is not None or not self.control(turn.last, turn.mono_ns, reserved=True):
            self.written.rotation_error = failed or self.written.error
            sink.close()
            self._segments.drop()
            return
        ended, self._sink = self._sink, sink
        self._head = self._encode_head(turn.first(self.written), turn.mono_ns)
        # A sealed file is always followed by one with a beginning, though this process be killed.
        self._write_head()
        self._close(ended, turn.why)
        self.written.segment += 1
        self._segments.begin()
        if turn.states is not None:
            self._write_states(turn.states)

    def _write_states(self, states: Ordered) -> None:
        """Last records of earlier files, as records of a CPU of their own: its serials go on."""
        if "serial" in (self._dtype.names or ()):
            serials = states.entries["serial"]
            serials += np.array(self.written.states, serials.dtype)
        self.written.states += len(states)
        numbering, given_bytes = self._numbering, self._given_bytes
        self.write(states)
        self._numbering, self._given_bytes = numbering, given_bytes
        self._update_numbering()

    def begin(self, header: bytes, entries: Sequence[Control], mono_ns: int) -> None:
        """Write the beginning of a file: START, a checkpoint, others. It is tried again later."""
        self._head = self._encode_head((header, entries), mono_ns)
        self._write_head()

    def close(self, why: str = "the end") -> None:
        """Sync and close the sink; a segment gets its name. why: for the index."""
        self._close(self._sink, why)

    def _close(self, sink: FileSink, why: str) -> None:
        self.tally.settle()
        size_bytes = sink.end_bytes
        self.written.sync_error = sink.close() or self.written.sync_error
        if self._segments is not None:
            self._segments.seal(self.written, size_bytes, why)

    def _encode_head(
        self, first: tuple[bytes, Sequence[Control]], mono_ns: int
    ) -> tuple[bytes, int]:
        """The first bytes of the next file, and the number of its first entries."""
        header, entries = first
        rows = encode_many(entries, self._dtype)
        start = self.written.last_seq + 1
        seqs = np.arange(start, start + len(rows), dtype=np.int64)
        stamp_control(rows, seqs, mono_ns, self._mono_to_epoch)
        return header + rows.tobytes(), len(rows)

    def _write_head(self) -> bool:
        """Write the beginning of the file, if it is not there yet; False when that fails."""
        if self._head is None:
            return True
        data, entries = self._head
        outcome = self._sink.write(data, whole=True, reserved=True)
        self.written.error = self._failed = outcome.error
        if outcome.error is not None:
            self._retry_ns = self._now_ns() + RETRY_NS
            return False
        self._head = None
        self.written.entries += entries
        self.written.last_seq += entries
        self.written.checkpoints += 1
        self._update_numbering()
        return True

    def _update_numbering(self) -> None:
        """Give the sequencer the place in the file of its next entries."""
        if self._numbering is not None:
            self._numbering.ahead_bytes = self._sink.end_bytes - self._given_bytes

    def _write_losses(self, mono_ns: int, reserved: bool) -> bool:
        """Write the LOSS entries and others that are due; False when a write fails."""
        if not self._write_head():
            return False
        while self._gaps:
            cause, count = self._gaps[0]
            loss = Loss(ANY_CPU, 0, count, cause)
            if not self._append([loss], mono_ns, reserved, skipped=count):
                return False
            self._gaps.pop(0)
        owed = [*([self._clock] if self._clock is not None else ()), *self._changes.values()]
        if owed and not self._append(owed, mono_ns, reserved):
            return False
        self._clock, self._changes = None, {}
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
        outcome = self._sink.write(rows.view(np.uint8).data, whole=True, reserved=reserved)
        self.written.error = outcome.error
        if outcome.error is not None:
            self.written.refused += len(rows)
            return False
        self._failed = None
        self.written.entries += len(rows)
        self.written.last_seq = int(seqs[-1])
        self.written.skipped += skipped
        self.written.checkpoints += sum(isinstance(entry, Checkpoint) for entry in entries)
        return True

    def _fail(self, batches: Sequence[Ordered], start: int = 0) -> None:
        """A write just failed: drop the rest of the batches, and all others until the next try."""
        self._failed = self.written.error
        self._retry_ns = self._now_ns() + RETRY_NS
        if self._failed is not None:
            self._drop_all(batches, cause_of(self._failed), start)

    def _drop_all(self, batches: Sequence[Ordered], cause: LossCause, start: int = 0) -> None:
        for batch in batches:
            self.drop(batch, cause, start)
            start = 0
