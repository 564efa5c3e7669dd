# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of MAGNeT files: see recorder.py and dump.py."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collector.sequencer.clock_pairs import Clocks
from collector.writer.base_stream import Show
from collector.writer.capture_info import CaptureInfo, Current
from collector.writer.dump import Dump, Keeping, previous_of
from collector.writer.dump_writer import Beginning, DumpWriter
from collector.writer.file_sink import FileSink
from collector.writer.keeper import Block, Keeper, Noted
from collector.writer.ledger import Books
from collector.writer.magnet_records import MagnetBatch
from collector.writer.magnet_stream import MagnetStream
from collector.writer.magnet_writer import Item, MagnetWriter
from collector.writer.recorder import Recorder
from collector.writer.spool import LIMIT_BYTES, Spool
from collector.writer.written import Written
from formats.base.control import Change, Clock, EndReason, Mark, Trigger
from formats.magnet.control import END, TRIGGER

_VALUE = re.compile(r"(?<![A-Za-z_0-9])[0-9][0-9A-Za-z.]*|\"[^\"]*\"|'[^']*'")


class MagnetDump(Dump):
    """The dump that is written now, with a MAGNeT file's items in place of PSC's entries."""

    def __init__(self, stream: MagnetStream, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._stream = stream

    def put_trigger(self, trigger: Trigger) -> None:
        if self._count(trigger):
            item = trigger_item(trigger)
            self._spool.put_control(lambda _: [item], trigger.told_ns, always=True)

    def put_books(self, books: Books, mono_ns: int) -> None:
        ledger = partial(self._stream.ledger, books, time_ns=mono_ns, final=False)
        self._spool.put_control(ledger, mono_ns)

    def put_noted(self, noted: Noted) -> None:
        items = [self._item(entry) for entry in noted.entries]
        self._spool.put_control(lambda _: items, noted.mono_ns, always=True)

    def end(
        self,
        books: Books | None,
        clock: Clock,
        reason: EndReason,
        mono_ns: int,
        final: bool = False,
    ) -> None:
        untold = [trigger_item(self._more(mono_ns))] if self._untold else []
        pair = self._stream.clock_item(clock)

        def items(written: Written) -> list[Item]:
            ledger = (
                self._stream.ledger(books, written, mono_ns, final) if books is not None else []
            )
            end = {"kind": END, "time_ns": mono_ns, "reason": int(reason)}
            return [*untold, pair, *ledger, end]

        self._spool.put_control(items, mono_ns, reserved=True)

    def _item(self, entry: Any) -> Item:
        if isinstance(entry, Clock):
            return self._stream.clock_item(entry)
        if isinstance(entry, Change):
            return self._stream.change_item(entry)
        found: Item = entry
        return found


class MagnetRecorderStream(Recorder, MagnetStream):
    """See collector/writer/base_stream.py. The path is that of a folder of dumps."""

    _dumps: DumpWriter

    def __init__(self, path: str | Path, keeping: Keeping, force: bool = False) -> None:
        super().__init__(path, force, rotates=True, keeping=keeping)
        self._bytes_before = 0

    def begin(
        self, info: CaptureInfo, current: Current, clocks: Clocks, show: Show | None = None
    ) -> None:
        assert self.segments is not None
        self._reserve_bytes = self._prepare(info)
        self._clocks = clocks
        self._made: MagnetWriter | None = None
        self._dumps = DumpWriter(self.segments, self._make_writer)
        self._spool = Spool(self._dumps, 2 * self._keeping.last_bytes + LIMIT_BYTES)
        self.written = self._dumps.written
        memory = np.dtype((np.void, self._packing.layout.size))
        self._keeper = Keeper(memory, self._keeping.last_s, self._keeping.last_bytes)
        self._watermark_ns = clocks.start.mono_ns
        self._begin_block(self.read_books())

    def marks(self, marks: Sequence[Mark], pid: int = 0) -> bool:
        self._keep_note(self._mark_entries(marks, pid), self._clocks.now_ns())
        return True

    def finish(self, serials: Mapping[int, int], mono_ns: int) -> None:
        super().finish(serials, mono_ns)
        self._watermark_ns = max(self._watermark_ns, mono_ns)

    def bytes_written(self) -> int:
        return self._bytes_before + (self._made.file_bytes() if self._made is not None else 0)

    @property
    def _folder_path(self) -> str:
        assert self._folder is not None
        return self._folder.path

    def _take(self, watermark_ns: int) -> None:
        parts = list(self.order.take(watermark_ns))
        hits = []
        for part in parts if self.watch is not None else ():
            hits += self.watch.feed(part.rows, part.times_ns)
        for batch in self._packing.pack(parts):
            self._put(batch)
        self._fire(hits)

    def _put(self, batch: MagnetBatch) -> None:
        if not len(batch):
            return
        self.records += batch.records
        self._keeper.add(batch)
        if self._dump is not None:
            self._spool.put(batch)

    def _open_dump(self, first: Block, trigger: Trigger, why: str) -> MagnetDump:
        offset_ns = first.realtime_ns - first.mono_ns
        dump = MagnetDump(self, self._spool, self._number, trigger.mono_ns, 0, offset_ns)
        begin = self._first(first, dump, why)
        self.written = begin.written
        self._spool.put_call(partial(self._dumps.begin, begin))
        return dump

    def _first(self, block: Block, dump: MagnetDump, why: str) -> Beginning:
        entries = block.passed.total()
        last_seq = entries + sum(lost for _, lost in block.released.values())
        written = Written(entries, last_seq, in_file=block.passed.copy(), segment=dump.number)
        told = {
            **vars(self._keeping),
            "triggers": [self._tellable(text) for text in self._keeping.triggers],
            "why": self._tellable(why),
            "held_back": self._held,
            "number": dump.number,
            "at_ns": dump.at_ns,
            "from_ns": block.from_ns,
        }
        uncertainty_ns = self._clocks.latest.uncertainty_ns
        pair = Clock(block.mono_ns, block.realtime_ns, uncertainty_ns, 0)
        head = self._head(pair, dump.number, previous_of(block), recorder=told)
        off = [self.change_item(change) for change in block.off]
        items = [*self.ledger(block.books, written, block.mono_ns, False), *off]
        return Beginning(head, items, block.mono_ns, block.realtime_ns, written)

    def _tellable(self, text: str) -> str:
        """A trigger's text, without values that may be ports and addresses unless the file has
        these too."""
        return text if self._packing.layout.data else _VALUE.sub("?", text)

    def _make_writer(self, fd: int, first: Beginning) -> MagnetWriter:
        """The writer of a dump, in the writing thread."""
        if self._made is not None:
            self._bytes_before += self._made.file_bytes()
        sink = FileSink(fd, self._packing.layout.size, reserve_bytes=self._reserve_bytes)
        self._made = MagnetWriter(sink, self._packing, segments=self.segments)
        self._made.begin(first.written, first.header, first.entries)
        return self._made


def trigger_item(trigger: Trigger) -> dict[str, Any]:
    """A trigger that fired, as a control entry."""
    return {"kind": TRIGGER, "time_ns": trigger.told_ns, "trigger": asdict(trigger)}
