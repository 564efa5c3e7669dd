# SPDX-License-Identifier: Apache-2.0
"""The stream into a PSC file: all CPUs' records in one order, control entries between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from collector.sequencer.clock_pairs import Clocks
from collector.sequencer.cpu_queue import FOREVER_NS
from collector.sequencer.ordered_batch import Ordered
from collector.sequencer.sequencer import Sequencer
from collector.writer.base_stream import Show, Stream
from collector.writer.capture_info import CaptureInfo, Current
from collector.writer.ledger import Books
from collector.writer.output_file import Output
from collector.writer.psc_header import open_writer
from collector.writer.written import Written
from formats.base.control import Clock, Control, End, EndReason, Mark


class PscStream(Stream[Ordered]):
    """See collector/writer/base_stream.py. A PSC file does not tell of pauses and switches."""

    order: Sequencer

    def __init__(self, path: str | Path, force: bool = False) -> None:
        super().__init__()
        self._output = Output(path, force)
        self._show: Show | None = None

    def begin(
        self, info: CaptureInfo, current: Current, clocks: Clocks, show: Show | None = None
    ) -> None:
        assert info.columns is not None
        self._show = show
        self._entry_size = info.columns.entry_size
        self._write_by(open_writer(info, info.columns, self._output, clocks), clocks)
        self.order = Sequencer(info.columns.dtype, clocks.to_epoch, first_seq=2)
        self.order.warm()

    def discard(self) -> None:
        self._output.discard()

    def release(self, watermark_ns: int) -> None:
        for ordered in self.order.pieces(watermark_ns):
            self._hand_over(ordered)

    def clock(self, entry: Clock) -> None:
        self._spool.put_control(lambda _: [entry], entry.mono_ns, reserved=True)

    def finish(self, serials: Mapping[int, int], mono_ns: int) -> None:
        self.release(FOREVER_NS)
        self._hand_over(self.order.missing(serials, mono_ns))

    def end(self, books: Books, clock: Clock, reason: EndReason, mono_ns: int) -> None:
        put = self._spool.put_control
        put(lambda _: [clock], mono_ns, reserved=True)
        put(lambda w: books.checkpoint(w, final=True), mono_ns, reserved=True)
        put(
            lambda w: [End(int(reason), w.entries, w.lost, w.checkpoints)], mono_ns, reserved=True
        )

    def bytes_written(self) -> int:
        return self.written.entries * self._entry_size

    def _mark_entries(self, marks: Sequence[Mark], pid: int) -> Sequence[Control]:
        return marks

    def _book_entries(self, books: Books, written: Written) -> Sequence[Control]:
        return books.checkpoint(written)

    def _hand_over(self, ordered: Ordered) -> None:
        if not len(ordered):
            return
        self.records += ordered.records
        if self._show is not None:
            self._show(ordered.entries)
        self._spool.put(ordered)
