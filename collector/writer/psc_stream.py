# SPDX-License-Identifier: Apache-2.0
"""The stream into a PSC file: all CPUs' records in one order, control entries between them."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from collector.sequencer.clock_pairs import Clocks
from collector.sequencer.cpu_queue import FOREVER_NS
from collector.sequencer.ordered_batch import Ordered, stamp_control
from collector.sequencer.sequencer import Sequencer
from collector.writer.base_stream import Show, Stream
from collector.writer.capture_info import CaptureInfo, Current
from collector.writer.file_sink import FileSink
from collector.writer.ledger import Books, reserve_bytes
from collector.writer.output_file import Output, find_owner
from collector.writer.psc_writer import Writer
from collector.writer.written import Written
from formats.base.control import Change, Clock, Control, End, EndReason, Mark, Start, encode_many
from formats.psc.columns import MODS_AUTO, MODS_FACK, MODS_RENO, MODS_SACK
from formats.psc.header import encode_header, writer_header

SACK = Path("/proc/sys/net/ipv4/tcp_sack")


class PscStream(Stream[Ordered]):
    """See collector/writer/base_stream.py. A PSC file has no entries for pauses and switches."""

    largest_mark = (1 << 32) - 1
    order: Sequencer

    def __init__(self, path: str | Path, force: bool = False) -> None:
        super().__init__()
        self._output = Output(path, force, owner=find_owner())
        self._show: Show | None = None

    def begin(
        self, info: CaptureInfo, current: Current, clocks: Clocks, show: Show | None = None
    ) -> None:
        self._show = show
        self._entry_size = info.entry_size
        # The entries that sock_diag lists come from no CPU: they have the number after the last.
        cpus = info.cpus + 1
        mono_ns = clocks.start.mono_ns
        start = Start(mono_ns, clocks.start.realtime_ns, cpus, info.recorded)
        first = encode_many([start], info.dtype)
        stamp_control(first, np.array([1], np.int64), mono_ns, clocks.to_epoch)
        self._output.begin(_header(info, clocks) + first.tobytes())
        sink = FileSink(
            self._output.fd,
            info.entry_size,
            reserve_bytes=reserve_bytes(cpus, info.programs + 4, info.entry_size),
            # Another process may write to standard output by the same descriptor.
            direct=not self._output.is_stdout,
        )
        written = Written(entries=1, last_seq=1)
        self._write_by(Writer(sink, info.dtype, clocks.to_epoch, written), clocks)
        self.order = Sequencer(info.dtype, clocks.to_epoch, first_seq=2)
        self.order.warm()

    def discard(self) -> None:
        self._output.discard()

    def release(self, watermark_ns: int) -> None:
        for ordered in self.order.pieces(watermark_ns):
            self._hand_over(ordered)

    def clock(self, entry: Clock) -> None:
        self._spool.put_control(lambda _: [entry], entry.mono_ns, always=True)

    def changed(self, changes: Sequence[Change]) -> None:
        self._spool.put_control(lambda _: changes, changes[-1].after_ns, always=True)

    def finish(self, serials: Mapping[int, int], mono_ns: int) -> None:
        self.release(FOREVER_NS)
        self._hand_over(self.order.missing(serials, mono_ns))

    def end(self, books: Books | None, clock: Clock, reason: EndReason, mono_ns: int) -> None:
        put = self._spool.put_control
        put(lambda _: [clock], mono_ns, reserved=True)
        if books is not None:
            put(lambda w: books.checkpoint(w, final=True), mono_ns, reserved=True)
        put(lambda w: [End(int(reason), w.entries, w.lost, w.checkpoints)], mono_ns, reserved=True)

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


def _header(info: CaptureInfo, clocks: Clocks) -> bytes:
    pair = clocks.start
    return encode_header(
        writer_header(
            info.columns,
            info.entry_size,
            mods=_features(),
            version=f"tk{info.version}"[:8],
            mclsize=info.page_bytes,
            host=platform.node(),
            kernel=info.kernel,
            clock=(pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns),
            schema=info.schema_text,
            settings=info.settings,
        )
    )


def _features() -> int:
    """psc_mods of the running system. Linux does FACK where it does SACK, and always AUTO."""
    try:
        sack = SACK.read_text().strip() != "0"
    except OSError:
        sack = True
    return (MODS_SACK | MODS_FACK if sack else MODS_RENO) | MODS_AUTO
