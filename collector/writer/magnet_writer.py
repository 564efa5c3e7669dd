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

from collector.writer.file_sink import FileSink, cause_of
from collector.writer.magnet_records import MagnetBatch, Packing
from collector.writer.written import END_TRIES, RETRY_NS, Place, Written
from formats.base.control import LossCause
from formats.magnet.control import CHANGE, CHECK, LEDGER, Block, encode

CHECK_RECORDS = 1 << 14
"""So many records get a control entry, if no other comes."""
Item = MagnetBatch | dict[str, Any]
"""Records, or the values of a control entry."""
Build = Callable[[Written], Sequence[Item]]


class MagnetWriter:
    """Writes to the sink, without a queue or a thread. See collector/writer/spool.py: Writing."""

    def __init__(
        self, sink: FileSink, packing: Packing, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
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
            self.written.entries += here
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

    def close(self) -> None:
        """Sync and close the file."""
        self.written.sync_error = self._sink.close() or self.written.sync_error

    def bytes_written(self) -> int:
        """Bytes in the file."""
        return self._sink.end_bytes

    def _settle(self, mono_ns: int, reserved: bool = False) -> bool:
        """Write LOST and what else is due; False when that fails."""
        lost = [self._packing.missing([count], cause, mono_ns) for cause, count in self._gaps]
        if not self._append([*lost, *self._owed], reserved):
            return False
        self._gaps, self._owed = [], []
        return True

    def _append(self, items: Sequence[Item], reserved: bool = False) -> bool:
        """Write these items, or nothing; False when that fails."""
        if not items:
            return True
        block, entries = copy.deepcopy(self._block), self._entries
        records, ledgers, pieces = self.written.entries, 0, []
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
        self.written.entries = records
        self.written.checkpoints += ledgers
        return True

    def _drop(self, batches: Sequence[MagnetBatch], start: int = 0) -> None:
        """Count the rest of the batches as dropped, after a write that failed."""
        assert self._failed is not None
        for batch in batches:
            counts = batch.counts(start)
            self.skip(cause_of(self._failed), counts.total() + batch.lost_from(start), counts)
            start = 0
