# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of Klogger logs: a dump is a folder of logs, see recorder.py and dump.py."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collector.linux.syscalls import online_cpus
from collector.sequencer.clock_pairs import Clocks
from collector.sequencer.cpu_queue import FOREVER_NS
from collector.writer.base_events import (
    DISABLED,
    FIRST_CPU,
    Note,
    change_note,
    clock_note,
    finish_note,
    ledger_notes,
    mark_note,
)
from collector.writer.base_stream import Show
from collector.writer.capture_info import CaptureInfo, Current
from collector.writer.dump import Dump, Keeping, previous_of
from collector.writer.keeper import Block, Keeper, Noted
from collector.writer.ledger import Books
from collector.writer.log_batch import LogBatch, copies
from collector.writer.log_file import Beginning
from collector.writer.log_stream import LogStream
from collector.writer.log_writer import LogWriter
from collector.writer.recorder import Recorder
from collector.writer.segment_folder import Segments
from collector.writer.spool import LIMIT_BYTES, Spool
from collector.writer.written import Place, Written
from formats.base.control import Change, Clock, EndReason, LossCause, Mark, Trigger
from formats.base.errors import TcpkmonError


@dataclass(frozen=True)
class First:
    """The beginning of a dump. written: what is counted as in earlier files."""

    beginning: Beginning
    written: Written
    realtime_ns: int
    cpus: Sequence[int]


class LogDumps:
    """See Writing of collector/writer/spool.py. What comes between two dumps is not written.

    make: the writer of a dump whose folder is there. written: of the dump that is written now, or
    was last.
    """

    def __init__(self, segments: Segments, make: Callable[[First], LogWriter]) -> None:
        self.written = Written()
        self.error: Exception | None = None
        """Why the last dump has no file."""
        self.names: list[str] = []
        """Of the dumps that are sealed and not told of yet: take them by pop()."""
        self._segments = segments
        self._make = make
        self._writer: LogWriter | None = None
        self._closed_bytes = 0
        segments.sealed = lambda name, _: self.names.append(name)

    def begin(self, first: First) -> None:
        """Make the folder of a dump, with a file for each CPU."""
        self.written = first.written
        with ExitStack() as undo:
            try:
                os.close(self._segments.open(first.written.segment, first.realtime_ns))
                undo.callback(self._segments.drop)
                self._segments.begin(first.written.in_file.total())
                self._writer = self._make(first)
            except (OSError, TcpkmonError) as error:
                self.error = error
                return
            undo.pop_all()
        self.error = None

    def seal(self, why: str) -> None:
        """Close the files, and give their folder its name."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._closed_bytes += writer.segment_bytes()
            writer.seal(why)
            self.error = self.written.rotation_error

    def bytes_written(self) -> int:
        writer = self._writer
        return self._closed_bytes + (writer.segment_bytes() if writer is not None else 0)

    def write(self, *batches: LogBatch, cached: bool = False) -> None:
        if self._writer is not None:
            self._writer.write(*batches, cached=cached)

    def skip(self, cause: LossCause, numbers: int, counts: Counter[Place]) -> None:
        if self._writer is not None:
            self._writer.skip(cause, numbers, counts)

    def control(
        self, build: Callable[[Written], Iterable[Note]], mono_ns: int, *, reserved: bool
    ) -> bool:
        if self._writer is None:
            return True
        return self._writer.control(build, mono_ns, reserved=reserved)

    def sync(self) -> None:
        if self._writer is not None:
            self._writer.sync()

    def close(self) -> None:
        """Seal the dump that is under way."""
        self.seal("the end")


class LogDump(Dump):
    """The dump that is written now, with base events in place of control entries."""

    written: Written
    cpus: Sequence[int] = ()
    """Those that have a file from its beginning on."""

    def put_trigger(self, trigger: Trigger) -> None:
        if self._count(trigger):
            note = trigger_note(trigger)
            self._spool.put_control(lambda _: [note], trigger.told_ns, always=True)

    def put_books(self, books: Books, mono_ns: int) -> None:
        self._spool.put_control(lambda w: ledger_notes(books, w, False, self.cpus), mono_ns)

    def put_noted(self, noted: Noted) -> None:
        notes = [self._note(entry) for entry in noted.entries]
        self._spool.put_control(lambda _: notes, noted.mono_ns, always=True)

    def end(
        self,
        books: Books | None,
        clock: Clock,
        reason: EndReason,
        mono_ns: int,
        final: bool = False,
    ) -> None:
        untold = [trigger_note(self._more(mono_ns))] if self._untold else []
        pair = clock_note(self._follow(clock))

        def notes(written: Written) -> list[Note]:
            ledger = ledger_notes(books, written, final, self.cpus) if books is not None else ()
            return [*untold, *ledger, pair, finish_note(reason)]

        self._spool.put_control(notes, mono_ns, reserved=True)

    def _note(self, entry: Any) -> Note:
        if isinstance(entry, Clock):
            return clock_note(self._follow(entry))
        return change_note(entry) if isinstance(entry, Change) else entry


class LogRecorderStream(Recorder, LogStream):
    """See collector/writer/base_stream.py. The path is that of a folder of dumps."""

    _dumps: LogDumps

    def __init__(self, path: str | Path, keeping: Keeping, force: bool = False) -> None:
        super().__init__(path, force, rotates=True, keeping=keeping)

    def begin(
        self, info: CaptureInfo, current: Current, clocks: Clocks, show: Show | None = None
    ) -> None:
        assert self.segments is not None
        self._prepare(info, current, clocks)
        self._dumps = LogDumps(self.segments, self._make_writer)
        self._spool = Spool(self._dumps, 2 * self._keeping.last_bytes + LIMIT_BYTES)
        self.written = self._dumps.written
        memory = np.dtype((np.void, info.dtype.itemsize))
        self._keeper = Keeper(memory, self._keeping.last_s, self._keeping.last_bytes)
        self._watermark_ns = clocks.start.mono_ns
        self._begin_block(self.read_books())

    def marks(self, marks: Sequence[Mark], pid: int = 0) -> bool:
        self._note([mark_note(mark.number, pid) for mark in marks])
        return True

    def finish(self, serials: Mapping[int, int], mono_ns: int) -> None:
        self.release(FOREVER_NS)
        self.order.tails(serials)
        self._watermark_ns = max(self._watermark_ns, mono_ns)

    def bytes_written(self) -> int:
        return self._dumps.bytes_written()

    @property
    def _folder_path(self) -> str:
        return self._folder.path

    def _note(self, notes: Sequence[Note]) -> None:
        self._keep_note(notes, self._clocks.now_ns())

    def _take(self, watermark_ns: int) -> None:
        for batch in copies(self.order.take(watermark_ns), self._pool):
            self.records += len(batch)
            self._keeper.add(batch)
            if self._dump is not None:
                self._spool.put(batch)
            if self.watch is not None:
                for part in batch.parts:
                    self._fire(self.watch.feed(part.rows, part.times_ns))

    def _begin_block(self, books: Books) -> None:
        super()._begin_block(books)
        block = self._keeper.blocks[-1]
        clock = Clock(block.mono_ns, block.realtime_ns, self._clocks.latest.uncertainty_ns, 0)
        paused = [finish_note(DISABLED)] if self._paused else []
        block.logging = (self._first_notes(clock), paused)

    def _open_dump(self, first: Block, trigger: Trigger, why: str) -> LogDump:
        dump = LogDump(
            self._spool, self._number, trigger.mono_ns, 0, first.realtime_ns - first.mono_ns
        )
        begin = self._first(first, dump, why)
        self.written = dump.written = begin.written
        self._spool.put_call(partial(self._dumps.begin, begin))
        return dump

    def _first(self, block: Block, dump: LogDump, why: str) -> First:
        entries = block.passed.total()
        serials = {cpu: serial for cpu, (serial, _) in block.released.items()}
        written = Written(
            entries, sum(serials.values()), in_file=block.passed.copy(), segment=dump.number
        )
        told = {
            **vars(self._keeping),
            "why": why,
            "held_back": self._held,
            "number": dump.number,
            "at_ns": dump.at_ns,
            "from_ns": block.from_ns,
        }
        dump.cpus = cpus = sorted({*online_cpus(), *block.released})
        settings = {**self._settings(dump.number, cpus, previous_of(block)), "recorder": told}
        pair = Clock(block.mono_ns, block.realtime_ns, self._clocks.latest.uncertainty_ns, 0)
        begin, paused = block.logging
        off = [change_note(change) for change in block.off]
        notes = [*begin, *ledger_notes(block.books, written, False, cpus), *off, *paused]
        beginning = Beginning(pair, settings, serials, notes)
        return First(beginning, written, block.realtime_ns, cpus)

    def _make_writer(self, first: First) -> LogWriter:
        """The writer of a dump, in the writing thread."""
        self._beginning = first.beginning
        self._writer = writer = self._new_writer()
        writer.written = first.written
        with ExitStack() as undo:
            undo.callback(writer.discard)
            for cpu in first.cpus:
                writer.begin(cpu, self._open(cpu))
            undo.pop_all()
        return writer

    def _close_dump(self) -> None:
        last_seq = sum(serial for serial, _ in self.order.released().values())
        self._spool.put_call(partial(setattr, self.written, "last_seq", last_seq))
        super()._close_dump()


def trigger_note(trigger: Trigger) -> Note:
    """A trigger that fired, in the lowest CPU's log."""
    values: dict[str, int | str | bytes] = {
        "mono_ns": trigger.mono_ns,
        "conn_id": trigger.conn_id,
        "told_ns": trigger.told_ns,
        "number": trigger.number,
        "count": trigger.count,
        "pid": trigger.pid,
    }
    return Note("TRIGGER", values, FIRST_CPU, trigger.told_ns)
