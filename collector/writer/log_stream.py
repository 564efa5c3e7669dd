# SPDX-License-Identifier: Apache-2.0
"""The stream into a Klogger log: each CPU's records into its own file, base events around them."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from collector.linux.privileges import begin_writing
from collector.linux.syscalls import online_cpus
from collector.loader.capture_maps import Kernel
from collector.loader.prepare import Prepared, describe_kernel
from collector.plan.request import Request
from collector.ring.batch import Batch
from collector.sequencer.buffer_pool import Pool
from collector.sequencer.clock_pairs import Clocks
from collector.sequencer.cpu_queue import COPY_BYTES, FOREVER_NS, Part, Queues
from collector.writer.base_events import (
    DISABLED,
    Note,
    clock_note,
    event_notes,
    finish_note,
    kernel_release,
    ledger_notes,
    mark_note,
    process_notes,
    socket_notes,
    start_note,
)
from collector.writer.file_sink import FileSink
from collector.writer.ledger import Books
from collector.writer.log_folder import LogFolder
from collector.writer.log_writer import LogBatch, LogFile, LogWriter, make_dump
from collector.writer.psc_header import settings_of
from collector.writer.psc_heading import package_version
from collector.writer.spool import Spool
from formats.base.control import Clock, EndReason, Mark
from formats.klogger import (
    LogFormat,
    describe_event,
    describe_snapshot,
    encode_preamble,
    make_header,
)

NOTE_BYTES = 256
"""More than a base event of the end takes in a file."""


def copies(parts: Iterable[Part], pool: Pool) -> Iterator[LogBatch]:
    """Batches of about COPY_BYTES that outlive the memory of the rings."""
    pieces: list[Part] = []
    size = 0
    for part in parts:
        for piece in part.copies(pool):
            pieces.append(piece)
            size += piece.rows.nbytes
            if size >= COPY_BYTES // 2:
                yield LogBatch(pieces)
                pieces, size = [], 0
    if pieces:
        yield LogBatch(pieces)


class LogStream:
    """See collector/writer/stream.py. namespaces: those whose sockets the log's beginning tells."""

    def __init__(
        self,
        request: Request,
        prepared: Prepared,
        folder: LogFolder,
        clocks: Clocks,
        namespaces: Sequence[int],
    ) -> None:
        assert prepared.events is not None
        self._request = request
        self._prepared = prepared
        self._events = prepared.events
        self._folder = folder
        self._clocks = clocks
        self._namespaces = namespaces
        self.records = 0
        self.order = Queues(prepared.dtype)
        self._pool = Pool()
        self._table = [
            describe_snapshot(
                prepared.layout.schema, prepared.layout.columns, prepared.layout.entry_size
            )
            if slot.name == "SNAPSHOT" and prepared.tcp is not None
            else describe_event(self._events.schema, slot.event, slot.number)
            for slot in self._events.slots
        ]

    def begin(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._settings = settings_of(self._request, self._prepared, kernel)
        self._cpus = len(kernel.heads())
        self._log = LogFormat.of(self._header(0))
        mixed = self._prepared.tcp is not None and bool(self._events.logged)
        self._writer = LogWriter(self._log, self._open_later, mixed)
        self.written = self._writer.written
        self._spool: Spool[LogBatch] = Spool(self._writer, begin=begin_writing)
        self._folder.clear()
        first = min(online_cpus())
        for cpu in sorted(online_cpus()):
            notes = self._first_notes(kernel)
            if cpu == first:
                notes += process_notes()
                notes += socket_notes(self._namespaces)
            self._writer.begin(cpu, self._open(cpu, notes))

    def start(self) -> None:
        self._spool.start()

    def push(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self.order.push(batch)

    def release(self, watermark_ns: int) -> None:
        for batch in copies(self.order.take(watermark_ns), self._pool):
            self.records += len(batch)
            self._spool.put(batch)

    def settle(self) -> None:
        self.order.settle()
        self._spool.flush()

    def clock(self, entry: Clock) -> None:
        self._note([clock_note(entry)])

    def marks(self, marks: Sequence[Mark], pid: int = 0) -> bool:
        notes = [mark_note(mark.number, pid) for mark in marks]
        return self._spool.put_control(lambda _: notes, self._clocks.now_ns())

    def pause(self) -> None:
        self._note([finish_note(DISABLED)])

    def resume(self, kernel: Kernel) -> None:
        self._note(self._first_notes(kernel))

    def switched(self, kernel: Kernel, names: Sequence[str]) -> None:
        states = kernel.states()
        self._note(event_notes({name: states[name] for name in names}))

    def checkpoint(self, books: Books) -> None:
        missed = self._kernel.missed(self._kernel.heads())
        build = partial(ledger_notes, books, missed=missed, final=False)
        self._spool.put_control(build, self._clocks.now_ns(), sync=True)

    def finish(self, serials: Mapping[int, int], mono_ns: int) -> None:
        self.release(FOREVER_NS)
        self.order.tails(serials)

    def end(self, books: Books, clock: Clock, reason: EndReason, mono_ns: int) -> None:
        missed = self._kernel.missed(self._kernel.heads())
        last = [clock_note(clock), finish_note(reason)]
        self._spool.put_control(
            lambda written: [*ledger_notes(books, written, missed, True), *last],
            mono_ns,
            reserved=True,
        )

    def close(self, timeout_s: float) -> bool:
        return self._spool.close(timeout_s)

    def bytes_written(self) -> int:
        return self._writer.bytes_written()

    def _note(self, notes: Sequence[Note]) -> None:
        # What tells when logging was on must not be dropped where the queue is full.
        self._spool.put_control(lambda _: notes, self._clocks.now_ns(), reserved=True)

    def _first_notes(self, kernel: Kernel) -> list[Note]:
        pair = self._clocks.latest
        clock = Clock(pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns, 0)
        return [
            start_note(kernel_release(), kernel.buffer_bytes, kernel.low_water_percent),
            clock_note(clock),
            *event_notes(kernel.states()),
        ]

    def _header(self, cpu: int) -> dict[str, object]:
        pair = self._clocks.start
        return make_header(
            self._events.schema,
            self._table,
            cpu=cpu,
            cpus=self._cpus,
            host=platform.node(),
            kernel=describe_kernel(),
            version=package_version(),
            buffer_bytes=self._request.buffer_bytes,
            low_water_percent=self._request.low_water_percent,
            clock=(pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns),
            settings=self._settings,
        )

    def _open_later(self, cpu: int) -> LogFile:
        """The file of a CPU that came on, in the writer's thread."""
        return self._open(cpu, self._first_notes(self._kernel))

    def _open(self, cpu: int, notes: Sequence[Note]) -> LogFile:
        output = self._folder.output(cpu)
        data, last = make_dump(self._log, 0, 0, notes, self._clocks.now_ns())
        output.begin(encode_preamble(self._header(cpu)) + data)
        reserve = (len(self._prepared.numbers) + len(self._prepared.plan.probes) + 8) * NOTE_BYTES
        sink = FileSink(output.fd, 1, reserve_bytes=reserve)
        return LogFile(sink, last, len(notes) + 2, 1)
