# SPDX-License-Identifier: Apache-2.0
"""The stream into a PSC file: sequencer, spool and, with --print, lines on stdout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from collector.linux.privileges import begin_writing
from collector.loader.capture_maps import Kernel
from collector.loader.prepare import Prepared
from collector.plan.request import Request
from collector.ring.batch import Batch
from collector.sequencer.clock_pairs import Clocks
from collector.sequencer.cpu_queue import FOREVER_NS
from collector.sequencer.ordered_batch import Ordered
from collector.sequencer.sequencer import Sequencer
from collector.writer.ledger import Books
from collector.writer.output_file import Output
from collector.writer.psc_header import open_writer
from collector.writer.psc_writer import Writer
from collector.writer.record_printer import Printer
from collector.writer.spool import Spool
from formats.base.control import Clock, Control, End, EndReason, Mark


class PscStream:
    """See collector/writer/stream.py. `fail` is told when standard output takes no more lines."""

    def __init__(
        self,
        request: Request,
        prepared: Prepared,
        output: Output,
        clocks: Clocks,
        printer: Printer | None,
        fail: Callable[[OSError], None],
    ) -> None:
        self._request = request
        self._prepared = prepared
        self._output = output
        self._clocks = clocks
        self._printer = printer
        self._fail = fail
        self.records = 0
        self.order = Sequencer(prepared.layout.dtype, clocks.to_epoch, first_seq=2)

    def begin(self, kernel: Kernel) -> None:
        writer: Writer = open_writer(
            self._request, self._prepared, kernel, self._output, self._clocks
        )
        self.written = writer.written
        self.order.warm()
        self._spool = Spool(writer, begin=begin_writing)

    def start(self) -> None:
        self._spool.start()

    def push(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self.order.push(batch)

    def release(self, watermark_ns: int) -> None:
        for ordered in self.order.pieces(watermark_ns):
            self._hand_over(ordered)

    def settle(self) -> None:
        self.order.settle()
        self._spool.flush()

    def clock(self, entry: Clock) -> None:
        self._spool.put_control(lambda _: [entry], entry.mono_ns, reserved=True)

    def marks(self, marks: Sequence[Mark], pid: int = 0) -> bool:
        entries: list[Control] = list(marks)
        return self._spool.put_control(lambda _: entries, self._clocks.now_ns())

    def pause(self) -> None:
        """A PSC file does not tell of pauses."""

    def resume(self, kernel: Kernel) -> None:
        """A PSC file does not tell of pauses."""

    def switched(self, kernel: Kernel, names: Sequence[str]) -> None:
        """A PSC file does not tell of switches."""

    def checkpoint(self, books: Books) -> None:
        self._spool.put_control(books.checkpoint, self._clocks.now_ns(), sync=True)

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

    def close(self, timeout_s: float) -> bool:
        return self._spool.close(timeout_s)

    def bytes_written(self) -> int:
        return self.written.entries * self._prepared.layout.entry_size

    def _hand_over(self, ordered: Ordered) -> None:
        if not len(ordered):
            return
        self.records += ordered.records
        if self._printer is not None:
            try:
                self._printer.write(ordered.entries)
            except OSError as error:
                self._printer = None
                self._fail(error)
        self._spool.put(ordered)
