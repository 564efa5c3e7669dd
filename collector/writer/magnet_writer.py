# SPDX-License-Identifier: Apache-2.0
"""The writer of MAGNeT files, in the spool's thread: records, LOST, and control entries with CRCs.

Only the writer knows what reached the file. LOST counts what it dropped before the next records.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from collector.writer.file_sink import HEADER_BYTES, FileSink, cause_of
from collector.writer.magnet_records import MagnetBatch, Packing
from collector.writer.segment_folder import Segments
from collector.writer.turn import Turn
from collector.writer.written import END_TRIES, RETRY_NS, Place, Written
from formats.base.control import LossCause
from formats.base.errors import FileError
from formats.magnet.control import CHANGE, CHECK, LEDGER, Block, encode

CHECK_RECORDS = 1 << 14
"""So many records get a control entry, if no other comes."""
Item = MagnetBatch | dict[str, Any]
"""Records, or the values of a control entry."""
Build = Callable[[Written], Sequence[Item]]


class MagnetWriter:
    """Writes to the sink, without a queue or a thread. See collector/writer/spool.py: Writing.

    segments: without them it cannot rotate.
    """

    def __init__(
        self,
        sink: FileSink,
        packing: Packing,
        now_ns: Callable[[], int] = time.monotonic_ns,
        segments: Segments | None = None,
    ) -> None:
        self._segments = segments
        self._before = 0
        """Records in earlier files."""
        self._closed_bytes = 0
        self._header_bytes = sink.end_bytes
        self._head: tuple[bytes, Sequence[Item]] | None = None
        self.written = Written()
        self._sink = sink
        self._packing = packing
        self._layout = packing.layout
        self._now_ns = now_ns
        self._block = Block(self._layout.size)
        self._entries = 0
        self._gaps: list[tuple[LossCause, int]] = []
        self._owed: list[dict[str, Any]] = []
        self._failed: OSError | None = None
        self._retry_ns = 0

    def begin(self, written: Written, head: bytes, items: Sequence[Item]) -> None:
        """Write the beginning of a file with others before it, of which `written` counts what they
        would hold. It is tried again later."""
        self.written, self._before = written, written.entries
        self._head = head, items
        self._write_head()

    def write(self, *batches: MagnetBatch, cached: bool = False) -> None:
        """Write the batches' records up to the first that fails; the rest counts as dropped."""
        waits = self._failed is not None and self._now_ns() < self._retry_ns
        if waits or not self._settle(self._now_ns()):
            self._drop(batches)
            return
        outcome = self._sink.write(*(batch.bytes() for batch in batches), cached=cached)
        self.written.error = self._failed = outcome.error
        self._retry_ns = self._now_ns() + RETRY_NS
        kept = outcome.kept_bytes // self._layout.size
        for number, batch in enumerate(batches):
            here = min(kept, len(batch))
            self._block.add(batch.bytes(here))
            self.written.in_file.update(batch.counts(0, here))
            self._count(batch, here)
            if here < len(batch):
                self._drop(batches[number:], here)
                break
            kept -= here
        if self._block.count >= CHECK_RECORDS and self._failed is None:
            self._append([{"kind": CHECK, "time_ns": self._now_ns()}])

    def skip(self, cause: LossCause, numbers: int, counts: Counter[Place]) -> None:
        """Count what was dropped: `numbers` events, and which of them were records."""
        self.written.dropped(cause).update(counts)
        if numbers and self._gaps and self._gaps[-1][0] == cause:
            numbers += self._gaps.pop()[1]
        if numbers:
            self._gaps.append((cause, numbers))

    def control(self, build: Build, mono_ns: int, *, reserved: bool = False) -> bool:
        """Write all items or none, also while records are dropped; False for none.

        reserved: the last ones of a file: they may use the sink's reserve, and are tried again.
        """
        for _ in range(END_TRIES if reserved else 1):
            if self._settle(mono_ns, reserved) and self._append(build(self.written), reserved):
                return True
        items = build(self.written)
        self.written.refused += len(items)
        self._owed += [one for one in items if isinstance(one, dict) and one["kind"] == CHANGE]
        return False

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
        failed = sink.prepare(self._header_bytes + HEADER_BYTES)
        if failed is not None or not self.control(turn.last, turn.mono_ns, reserved=True):
            self.written.rotation_error = failed or self.written.error
            sink.close()
            self._segments.drop()
            return
        self.close(turn.why)
        self._sink = sink
        self._head = turn.first(self.written)
        self._block, self._entries = Block(self._layout.size), 0
        self._before = self.written.entries
        self.written.segment += 1
        self._segments.begin()
        self._write_head()

    def close(self, why: str = "the end") -> None:
        """Sync and close the file; a segment gets its name. why: for the index."""
        size_bytes = self._sink.end_bytes
        self.written.sync_error = self._sink.close() or self.written.sync_error
        if self._segments is not None:
            self._closed_bytes += size_bytes
            self._segments.seal(self.written, size_bytes, why)

    def file_bytes(self) -> int:
        """Bytes in the file that is written now, or was last."""
        return self._sink.end_bytes

    def bytes_written(self) -> int:
        """Bytes in all files."""
        return self._closed_bytes + self._sink.end_bytes

    def _write_head(self) -> bool:
        """Write the beginning of the file, if it is not there yet; False when that fails."""
        if self._head is None:
            return True
        first, items = self._head
        if not self._put(items, reserved=True, first=first):
            return False
        self._head = None
        return True

    def _count(self, batch: MagnetBatch, stop: int) -> None:
        """Count the first records of a batch as in the file."""
        lost = batch.lost - batch.lost_from(stop) if batch.lost else 0
        self.written.entries += stop
        self.written.last_seq += stop + lost

    def _settle(self, mono_ns: int, reserved: bool = False) -> bool:
        """Write LOST and what else is due; False when that fails."""
        if not self._write_head():
            return False
        lost = [self._packing.missing([count], cause, mono_ns) for cause, count in self._gaps]
        if not self._append([*lost, *self._owed], reserved):
            return False
        self._gaps, self._owed = [], []
        return True

    def _append(self, items: Sequence[Item], reserved: bool = False) -> bool:
        """Write these items, or nothing; False when that fails."""
        return not items or self._put(items, reserved)

    def _put(self, items: Sequence[Item], reserved: bool, first: bytes = b"") -> bool:
        block, entries = copy.deepcopy(self._block), self._entries
        records, ledgers, pieces = self.written.entries - self._before, 0, [first]
        for item in items:
            if isinstance(item, MagnetBatch):
                pieces.append(item.entries.tobytes())
                block.add(pieces[-1])
                records += len(item)
                continue
            ledgers += item["kind"] == LEDGER
            values = item | {"number": entries, "records": records, **block.values()}
            pieces.append(encode(values, self._layout))
            block, entries = Block(self._layout.size), entries + 1
        outcome = self._sink.write(b"".join(pieces), whole=True, reserved=reserved)
        self.written.error = outcome.error
        if outcome.error is not None:
            self._failed, self._retry_ns = outcome.error, self._now_ns() + RETRY_NS
            return False
        self._failed = None
        self._block, self._entries = block, entries
        for item in items:
            if isinstance(item, MagnetBatch):
                self._count(item, len(item))
        self.written.checkpoints += ledgers
        return True

    def _drop(self, batches: Sequence[MagnetBatch], start: int = 0) -> None:
        """Count the rest of the batches as dropped, after a write that failed."""
        assert self._failed is not None
        for batch in batches:
            counts = batch.counts(start)
            self.skip(cause_of(self._failed), counts.total() + batch.lost_from(start), counts)
            start = 0
