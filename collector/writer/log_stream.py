# SPDX-License-Identifier: Apache-2.0
"""The stream into a Klogger log: each CPU's records into its own file, base events around them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from collector.linux.syscalls import online_cpus
from collector.sequencer.buffer_pool import Pool
from collector.sequencer.clock_pairs import Clocks
from collector.sequencer.cpu_queue import COPY_BYTES, FOREVER_NS, Part, Queues
from collector.writer.base_events import (
    DISABLED,
    Note,
    change_note,
    clock_note,
    event_notes,
    finish_note,
    ledger_notes,
    mark_note,
    process_notes,
    start_note,
)
from collector.writer.base_stream import Show, Stream
from collector.writer.capture_info import CaptureInfo, Current
from collector.writer.file_sink import FileSink
from collector.writer.function_names import FunctionNames
from collector.writer.ledger import Books
from collector.writer.log_folder import LogFolder
from collector.writer.log_writer import LogBatch, LogFile, LogWriter, make_dump
from collector.writer.output_file import find_owner
from collector.writer.written import Written
from formats.base.control import Change, Clock, EndReason, Mark
from formats.klogger.describe import describe_event, describe_snapshot, make_header
from formats.klogger.encode import encode_preamble
from formats.klogger.table import LogFormat

NOTE_BYTES = 256
"""No base event at the end of a file is larger."""


def copies(parts: Iterable[Part], pool: Pool) -> Iterator[LogBatch]:
    """Batches of about COPY_BYTES, copied out of the rings' memory."""
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


class LogStream(Stream[LogBatch]):
    """See collector/writer/base_stream.py. It prints nothing: a log has no order of all CPUs."""

    def __init__(self, path: str | Path, force: bool = False) -> None:
        super().__init__()
        self._folder = LogFolder(path, force, owner=find_owner())
        self._open_file: Callable[[int, bytes], int] = self.open_file
        self._pool = Pool()

    def begin(
        self, info: CaptureInfo, current: Current, clocks: Clocks, show: Show | None = None
    ) -> None:
        assert info.schema is not None
        self._info = info
        self._table = _describe(info)
        self._current = current
        self._clocks = clocks
        self.order = Queues(info.dtype)
        self._log = LogFormat.of(self._header(0))
        asked = current.states()
        names = FunctionNames(
            info.schema, [(number, event) for number, event in info.events if event.name in asked]
        )
        self._writer = LogWriter(self._log, self._open, info.mixed, names=names)
        self._write_by(self._writer, clocks)
        self._folder.clear()
        later, self._open_file = self._open_file, self.open_file
        first, *others = sorted(online_cpus())
        self._writer.begin(first, self._open(first, [*process_notes(), *info.sockets()]))
        for cpu in others:
            self._writer.begin(cpu, self._open(cpu))
        self._open_file = later

    def folders(self) -> tuple[int, ...]:
        return (self._folder.fd,)

    def open_file(self, cpu: int, first: bytes) -> int:
        output = self._folder.output(cpu)
        output.begin(first)
        return output.fd

    def open_files_by(self, open_file: Callable[[int, bytes], int]) -> None:
        self._open_file = open_file

    def discard(self) -> None:
        self._folder.discard()

    def release(self, watermark_ns: int) -> None:
        for batch in copies(self.order.take(watermark_ns), self._pool):
            self.records += len(batch)
            self._spool.put(batch)

    def clock(self, entry: Clock) -> None:
        self._note([clock_note(entry)])

    def pause(self) -> None:
        self._note([finish_note(DISABLED)])

    def resume(self) -> None:
        self._note(self._first_notes())

    def switched(self, names: Sequence[str]) -> None:
        states = self._current.states()
        self._note(event_notes({name: states[name] for name in names}))

    def changed(self, changes: Sequence[Change]) -> None:
        self._note([change_note(change) for change in changes])

    def finish(self, serials: Mapping[int, int], mono_ns: int) -> None:
        self.release(FOREVER_NS)
        self.order.tails(serials)

    def end(self, books: Books | None, clock: Clock, reason: EndReason, mono_ns: int) -> None:
        def notes(written: Written) -> list[Note]:
            ledger = ledger_notes(books, written, final=True) if books is not None else ()
            return [*ledger, clock_note(clock), finish_note(reason)]

        self._spool.put_control(notes, mono_ns, reserved=True)

    def bytes_written(self) -> int:
        return self._writer.bytes_written()

    def _mark_entries(self, marks: Sequence[Mark], pid: int) -> Sequence[Note]:
        return [mark_note(mark.number, pid) for mark in marks]

    def _book_entries(self, books: Books, written: Written) -> Sequence[Note]:
        return ledger_notes(books, written, final=False)

    def _note(self, notes: Sequence[Note]) -> None:
        # A full queue must not drop an event that says when logging was on.
        self._spool.put_control(lambda _: notes, self._clocks.now_ns(), always=True)

    def _first_notes(self) -> list[Note]:
        pair = self._clocks.latest
        clock = Clock(pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns, 0)
        return [
            start_note(self._current.buffer_bytes, self._current.low_water_percent),
            clock_note(clock),
            *event_notes(self._current.states()),
        ]

    def _header(self, cpu: int) -> dict[str, object]:
        pair = self._clocks.start
        assert self._info.schema is not None
        return make_header(
            self._info.schema,
            self._table,
            cpu=cpu,
            cpus=self._info.cpus,
            host=platform.node(),
            kernel=self._info.kernel,
            version=self._info.version,
            buffer_bytes=self._info.buffer_bytes,
            low_water_percent=self._info.low_water_percent,
            clock=(pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns),
            settings=self._info.settings,
        )

    def _open(self, cpu: int, more: Sequence[Note] = ()) -> LogFile:
        """A CPU's file with its first dump. The writing thread opens those of later CPUs."""
        notes = [*self._first_notes(), *more]
        data, last = make_dump(self._log, 0, 0, notes, self._clocks.now_ns())
        fd = self._open_file(cpu, encode_preamble(self._header(cpu)) + data)
        reserve = (self._info.requested + self._info.programs + 8) * NOTE_BYTES
        sink = FileSink(fd, 1, reserve_bytes=reserve)
        return LogFile(sink, last, len(notes) + 2, 1)


def _describe(info: CaptureInfo) -> list[dict[str, Any]]:
    """The header's table of events."""
    assert info.schema is not None
    table = []
    for number, event in info.events:
        if event.name == "SNAPSHOT" and info.tcp is not None:
            table.append(describe_snapshot(info.tcp, info.columns, info.entry_size))
        else:
            table.append(describe_event(info.schema, event, number))
    return table
