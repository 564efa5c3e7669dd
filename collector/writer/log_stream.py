# SPDX-License-Identifier: Apache-2.0
"""The stream into a Klogger log: each CPU's records into its own file, base events around them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collector.linux.syscalls import online_cpus
from collector.ring.journal import Journal
from collector.sequencer.buffer_pool import Pool
from collector.sequencer.clock_pairs import Clocks
from collector.sequencer.cpu_queue import FOREVER_NS, Queues
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
    reconciled_note,
    start_note,
)
from collector.writer.base_stream import Show, Stream
from collector.writer.capture_info import CaptureInfo, Current
from collector.writer.file_sink import FileSink
from collector.writer.function_names import FunctionNames
from collector.writer.ledger import Books
from collector.writer.log_batch import LogBatch, copies
from collector.writer.log_file import Beginning, LogFile, describe_events, header_of, make_dump
from collector.writer.log_folder import LogFolder
from collector.writer.log_noting import cut, file_at
from collector.writer.log_tail import LogTail, open_log, open_log_segment
from collector.writer.log_writer import LogWriter
from collector.writer.output_file import find_owner
from collector.writer.segment_folder import LOG_SUFFIX, SegmentFolder, Segments, write_first
from collector.writer.tcp_order import tcp_in_order
from collector.writer.turn import Turn, alters, keep_off, switched_off
from collector.writer.written import Written
from formats.base.control import Change, Clock, Control, EndReason, Mark
from formats.klogger.encode import encode_preamble
from formats.klogger.table import RECORD_HEAD_BYTES, LogFormat

NOTE_BYTES = 256
"""No base event at the end of a file is larger."""


class LogStream(Stream[LogBatch]):
    """See collector/writer/base_stream.py. It prints nothing: a log has no order of all CPUs.

    rotates: the path is that of a folder of segments, each a log.
    """

    def __init__(self, path: str | Path, force: bool = False, rotates: bool = False) -> None:
        super().__init__()
        owner = find_owner()
        self._folder = SegmentFolder(path, owner) if rotates else LogFolder(path, force, owner)
        self.segments = (
            Segments(platform.node(), LOG_SUFFIX, self.open_file) if rotates else None
        )
        self._open_file: Callable[[int, bytes], int] = self.open_file
        self._pool = Pool()
        self._off: dict[int, Change] = {}
        self._paused = False
        self._show: Show | None = None
        self._behind = 0
        """Records that are missing behind the last one that was shown."""
        self._beginning = Beginning()

    def begin(
        self, info: CaptureInfo, current: Current, clocks: Clocks, show: Show | None = None
    ) -> None:
        self._prepare(info, current, clocks)
        self._show = show
        self._writer = self._new_writer()
        self._write_by(self._writer, clocks)
        if isinstance(self._folder, SegmentFolder):
            assert self.segments is not None
            with self.segments.beginning(self._folder, clocks.start.realtime_ns) as fd:
                os.close(fd)
                self._begin_files()
            self._writer.begun()
            return
        self._folder.clear()
        later, self._open_file = self._open_file, self.open_file
        self._begin_files()
        self._open_file = later
        self._writer.begun()

    def open_tail(
        self, path: str, capture: str, dtype: np.dtype[Any], journal: Journal
    ) -> LogTail:
        if isinstance(self._folder, SegmentFolder):
            return open_log_segment(self._folder, capture, journal.logs)
        return open_log(path, journal.logs)

    def go_on(
        self,
        info: CaptureInfo,
        current: Current,
        clocks: Clocks,
        tail: Any,
        show: Show | None = None,
    ) -> None:
        assert isinstance(tail, LogTail)
        self._prepare(info, current, clocks)
        self._show = show
        clocks.resume(tail.offset_ns)
        if self.segments is not None:
            self.segments.resume(tail.capture, tail.name, tail.before, tail.older)
        else:
            self._folder.discard()
            self._folder = LogFolder(tail.path, force=True, owner=find_owner())
        self._writer = self._new_writer(tail.written)
        self._write_by(self._writer, clocks)
        for cpu, (fd, note) in tail.files.items():
            self._writer.begin(cpu, file_at(self._sink(cut(fd, note)), note))
        self.order.resume(tail.released, tail.late)
        self.order.killed = tail.killed
        self._off = switched_off(current.states(), clocks.now_ns())

    def kill(self, counts: Mapping[int, int]) -> None:
        self.order.killed.update(counts)
        self._noting()

    def _prepare(self, info: CaptureInfo, current: Current, clocks: Clocks) -> None:
        assert info.schema is not None
        self._info = info
        self._table = describe_events(info)
        self._current = current
        self._clocks = clocks
        self.order = Queues(info.dtype)
        pair = clocks.start
        first = Clock(pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns, 0)
        self._beginning = Beginning(first, self._settings(1, online_cpus()))
        self._log = LogFormat.of(header_of(self._info, self._table, self._beginning, 0))
        asked = current.states()
        self._names = FunctionNames(
            info.schema, [(number, event) for number, event in info.events if event.name in asked]
        )

    def _new_writer(self, written: Written | None = None) -> LogWriter:
        return LogWriter(
            self._log, self._open, self._info.mixed, names=self._names, segments=self.segments,
            journal=self.journal, written=written,
        )  # fmt: skip

    def _noting(self) -> Callable[[Written], None]:
        if self.journal is not None:
            order = self.order
            self.journal.logs.stream(self._clocks.offset_ns, order.late, order.killed)
        return lambda written: None

    def _begin_files(self) -> None:
        first, *others = sorted(online_cpus())
        self._writer.begin(first, self._open(first, [*process_notes(), *self._info.sockets()]))
        for cpu in others:
            self._writer.begin(cpu, self._open(cpu))

    def folders(self) -> tuple[int, ...]:
        return (self._folder.fd,)

    def open_file(self, cpu: int, first: bytes) -> int:
        if isinstance(self._folder, SegmentFolder):
            return self._folder.answer(cpu, first)
        output = self._folder.output(cpu)
        output.begin(first)
        return output.fd

    def open_files_by(self, open_file: Callable[[int, bytes], int]) -> None:
        self._open_file = open_file
        if self.segments is not None:
            self.segments.ask = open_file

    def discard(self) -> None:
        self._folder.discard()

    def release(self, watermark_ns: int) -> None:
        parts = list(self.order.take(watermark_ns))
        if self._show is not None:
            rows, lost = tcp_in_order(parts)
            lost[0] += self._behind
            self._behind = int(lost[-1])
            if rows is not None:
                self._show(rows, lost[:-1])
        for batch in copies(parts, self._pool):
            self.records += len(batch)
            self._spool.put(batch)

    def clock(self, entry: Clock) -> None:
        self._note([clock_note(entry)])

    def pause(self) -> None:
        self._paused = self.altered = True
        self._note([finish_note(DISABLED)])

    def resume(self) -> None:
        self._paused = False
        pair = self._clocks.latest
        clock = Clock(pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns, 0)
        self._note(self._first_notes(clock))

    def switched(self, names: Sequence[str]) -> None:
        states = self._current.states()
        self._note(event_notes({name: states[name] for name in names}))

    def changed(self, changes: Sequence[Change]) -> None:
        keep_off(self._off, changes)
        self.altered |= alters(changes)
        self._note([change_note(change) for change in changes])

    def reconciled(self, entries: Sequence[Control]) -> None:
        self._note([reconciled_note(entry) for entry in entries])

    def describe(self, settings: Mapping[str, Any]) -> None:
        self._info = replace(self._info, settings={**self._info.settings, **settings})

    @property
    def segment_bytes(self) -> int:
        written = self.written
        waiting = self.records - written.entries - sum(n.total() for n in written.drops.values())
        most = self._info.dtype.itemsize + RECORD_HEAD_BYTES
        return self._writer.segment_bytes() + max(0, waiting) * most

    def rotate(self, books: Books, clock: Clock, why: str) -> None:
        segments = self.segments
        if segments is None:
            return super().rotate(books, clock, why)
        self._noting()
        released = self.order.released()
        notes = self._first_notes(clock)
        off = [change_note(change) for change in self._off.values()]
        if self._paused:
            off.append(finish_note(DISABLED))

        def last(w: Written) -> list[Note]:
            ledger = ledger_notes(books, w, False, self._writer.cpus)
            return [*ledger, clock_note(clock), finish_note(EndReason.ROTATED)]

        def first(w: Written) -> Callable[[int, FileSink], LogFile]:
            previous = segments.previous(w, released)
            settings = self._settings(w.segment + 1, self._writer.cpus, previous)
            ledger = ledger_notes(books, w, False, self._writer.cpus)
            before = {cpu: serial for cpu, (serial, _) in released.items()}
            self._beginning = Beginning(clock, settings, before, [*notes, *ledger, *off])
            return self._next_file

        last_seq = sum(serial for serial, _ in released.values())
        turn = Turn(last, first, clock.mono_ns, clock.realtime_ns, why, last_seq)
        self._spool.put_call(partial(self._writer.rotate, turn))

    def finish(self, serials: Mapping[int, int], mono_ns: int) -> None:
        self.release(FOREVER_NS)
        self.order.tails(serials)
        if self.segments is not None:
            self._spool.put_call(partial(setattr, self.written, "last_seq", sum(serials.values())))

    def end(self, books: Books | None, clock: Clock, reason: EndReason, mono_ns: int) -> None:
        def notes(written: Written) -> list[Note]:
            cpus = self._writer.cpus
            ledger = ledger_notes(books, written, True, cpus) if books is not None else ()
            return [*ledger, clock_note(clock), finish_note(reason)]

        self._spool.put_control(notes, mono_ns, reserved=True)

    def bytes_written(self) -> int:
        return self._writer.bytes_written()

    def _mark_entries(self, marks: Sequence[Mark], pid: int) -> Sequence[Note]:
        return [mark_note(mark.number, pid) for mark in marks]

    def _book_entries(self, books: Books, written: Written) -> Sequence[Note]:
        return ledger_notes(books, written, False, self._writer.cpus)

    def _note(self, notes: Sequence[Note]) -> None:
        # A full queue must not drop an event that says when logging was on.
        self._spool.put_control(lambda _: notes, self._clocks.now_ns(), always=True)

    def _first_notes(self, clock: Clock) -> list[Note]:
        return [
            start_note(self._current.buffer_bytes, self._current.low_water_percent),
            clock_note(clock),
            *event_notes(self._current.states()),
        ]

    def _settings(
        self, number: int, cpus: Iterable[int], previous: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        settings = {**self._info.settings, "logs": sorted(cpus)}
        if self.segments is None:
            return settings
        return self.segments.describe(settings, number, previous)

    def _head(self, cpu: int, notes: Sequence[Note]) -> tuple[bytes, int]:
        """A CPU's header and first dump, and the last serial of that."""
        header = header_of(self._info, self._table, self._beginning, cpu)
        data, last = make_dump(self._log, 0, 0, notes, self._clocks.now_ns())
        return encode_preamble(header) + data, last

    def _own(self, cpu: int) -> list[Note]:
        """What a CPU's file of this segment begins with."""
        return [note for note in self._beginning.notes if self._writer.is_for(note, cpu)]

    def _open(self, cpu: int, more: Sequence[Note] = ()) -> LogFile:
        """A CPU's file with its first dump. The writing thread opens those of later CPUs."""
        own = self._own(cpu)
        if not own:
            pair = self._clocks.latest
            own = self._first_notes(Clock(pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns, 0))
        notes = [*own, *more]
        data, last = self._head(cpu, notes)
        if self.segments is None:
            fd = self._open_file(cpu, data)
        else:
            fd = self.segments.open_file(cpu)
            write_first(fd, data)
        before = self._beginning.serials.get(cpu, 0)
        return LogFile(
            self._sink(fd), last, len(notes) + 2, 1, before=before, serial=before,
            head_bytes=len(data),
        )  # fmt: skip

    def _sink(self, fd: int) -> FileSink:
        reserve = (self._info.requested + self._info.programs + 8) * NOTE_BYTES
        return FileSink(fd, 1, reserve_bytes=reserve)

    def _next_file(self, cpu: int, sink: FileSink) -> LogFile:
        """A CPU's file of the segment that begins now; its first dump is not written yet."""
        notes = self._own(cpu)
        head, last = self._head(cpu, notes)
        before = self._beginning.serials.get(cpu, 0)
        return LogFile(
            sink, last, len(notes) + 2, 1, before=before, head=head, head_bytes=len(head)
        )
