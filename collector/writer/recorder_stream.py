# SPDX-License-Identifier: Apache-2.0
"""The flight recorder's stream: it keeps the last records, and writes them when a trigger fires.

    records  ---- window ----|         a trigger fires, with its record
    file     |base ---- window ---- trigger ---- after ---- END|

A dump is a segment whose earlier segments were never written: its header says what they would hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from collector.sequencer.clock_pairs import Clocks
from collector.sequencer.ordered_batch import Ordered
from collector.sequencer.sequencer import Sequencer
from collector.writer.base_stream import Show
from collector.writer.capture_info import CaptureInfo, Current
from collector.writer.dump import Dump, Keeping, previous_of
from collector.writer.dump_writer import Beginning, DumpWriter
from collector.writer.file_sink import FileSink
from collector.writer.keeper import Block, Keeper
from collector.writer.ledger import reserve_bytes
from collector.writer.psc_stream import PscStream
from collector.writer.psc_writer import Writer
from collector.writer.recorder import Fired, Recorder
from collector.writer.spool import LIMIT_BYTES, Spool
from formats.base.control import Trigger


class RecorderStream(Recorder, PscStream):
    """See collector/writer/base_stream.py. The path is that of a folder of dumps."""

    order: Sequencer
    _dumps: DumpWriter

    def __init__(self, path: str | Path, keeping: Keeping, force: bool = False) -> None:
        super().__init__(path, force, rotates=True, keeping=keeping)
        self._files = 0
        self._entries_before = 0

    def begin(
        self, info: CaptureInfo, current: Current, clocks: Clocks, show: Show | None = None
    ) -> None:
        assert self.segments is not None
        self._show, self._info, self._clocks = show, info, clocks
        self._entry_size = info.entry_size
        self._states_cpu = info.cpus + 1
        self._cpus = info.cpus + 2
        self.order = Sequencer(info.dtype, clocks.to_epoch, first_seq=2)
        self.order.warm()
        self._dumps = DumpWriter(self.segments, self._make_writer)
        self._spool = Spool(self._dumps, 2 * self._keeping.last_bytes + LIMIT_BYTES)
        self.written = self._dumps.written
        self._keeper = Keeper(info.dtype, self._keeping.last_s, self._keeping.last_bytes)
        self._watermark_ns = clocks.start.mono_ns
        self._begin_block(self.read_books())

    def _make_writer(self, fd: int, first: Beginning) -> Writer:
        """The writer of a dump, in the writing thread."""
        info, epoch = self._info, self._clocks.to_epoch
        reserve = reserve_bytes(self._cpus, info.programs + 4, info.entry_size)
        sink = FileSink(fd, info.entry_size, reserve_bytes=reserve)
        writer = Writer(sink, info.dtype, epoch, first.written, segments=self.segments)
        writer.begin(first.header, first.entries, first.mono_ns)
        return writer

    def _take(self, watermark_ns: int) -> None:
        for ordered in self.order.pieces(watermark_ns):
            self._hand_over(ordered)

    def finish(self, serials: Mapping[int, int], mono_ns: int) -> None:
        super().finish(serials, mono_ns)
        self._watermark_ns = max(self._watermark_ns, mono_ns)

    def bytes_written(self) -> int:
        entries = max(0, self.written.entries - self._entries_before)
        return (self._files + entries) * self._entry_size

    @property
    def _folder_path(self) -> str:
        assert self._folder is not None
        return self._folder.path

    def _hand_over(self, ordered: Ordered) -> None:
        if not len(ordered):
            return
        self.records += ordered.records
        if self._show is not None:
            self._show(ordered.entries)
        counts = self._keeper.add(ordered)
        hits: Sequence[Fired] = ()
        if self.watch is not None:
            present = {location for _, location in counts}
            hits = self.watch.feed(ordered.entries, ordered.first_ns, present)
        if self._dump is not None:
            self._spool.put(ordered)
        self._fire(hits)

    def _open_dump(self, first: Block, trigger: Trigger, why: str) -> Dump:
        self._files += max(0, self.written.entries - self._entries_before)
        states = self._keeper.states(self._states_cpu, first.mono_ns)
        count = len(states) if states is not None else 0
        offset_ns = first.realtime_ns - first.mono_ns
        dump = Dump(self._spool, self._number, trigger.mono_ns, count, offset_ns)
        segment = self._describe(self._number, previous_of(first))
        recorder = {**vars(self._keeping), "why": why, "held_back": self._held}
        uncertainty_ns = self._clocks.latest.uncertainty_ns
        begin = dump.begin(first, self._info, self._cpus, uncertainty_ns, segment, recorder)
        self.written, self._entries_before = begin.written, first.passed.total()
        self._spool.put_call(partial(self._dumps.begin, begin))
        if states is not None:
            self._spool.put(states)
        return dump
