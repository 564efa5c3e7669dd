# SPDX-License-Identifier: Apache-2.0
"""The stream takes the records of a capture from the rings' views to files on the disk.

It puts records and what happens between them into the spool; a codec knows the format.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.collector.ring.batch import Batch as RingBatch
from tcpkmon.collector.ring.journal import Journal
from tcpkmon.collector.sequencer.clock_pairs import Clocks
from tcpkmon.collector.sequencer.ordered import Ordered
from tcpkmon.collector.sequencer.sequencer import FOREVER_NS, Queues
from tcpkmon.collector.writer.capture_info import CaptureInfo, Current
from tcpkmon.collector.writer.codec import Batch, Codec, File, Show, Tail
from tcpkmon.collector.writer.ledger import Books
from tcpkmon.collector.writer.noted_tail import open_noted
from tcpkmon.collector.writer.output_file import Output, find_owner
from tcpkmon.collector.writer.segment_folder import SegmentFolder, Segments
from tcpkmon.collector.writer.spool import LIMIT_BYTES, Spool
from tcpkmon.collector.writer.tail import open_tail
from tcpkmon.collector.writer.tape import (
    Account,
    Beginning,
    Ending,
    Finish,
    Item,
    Marks,
    Paused,
    alters,
    keep_off,
    switched_off,
)
from tcpkmon.collector.writer.writer import Writer
from tcpkmon.collector.writer.written import Written
from tcpkmon.formats.base.control import EXISTING, Change, Clock, Control, EndReason, Mark
from tcpkmon.formats.base.errors import UsageError

STATES_PART = 4
"""A segment that is full of records is followed by one that repeats last records of at most this
part of its size."""


class Stream:
    """Orders the records of a capture and writes them. One thread uses it.

    The constructor checks that the output can be written (FileError or UsageError if not).
    Nothing has the output's name before begin(). rotates: the path is that of a folder of segments.
    """

    limit_bytes = LIMIT_BYTES
    """What waits for the writing thread at most."""

    def __init__(
        self, codec: Codec, path: str | Path, force: bool = False, rotates: bool = False
    ) -> None:
        owner = find_owner()
        self.codec = codec
        self._place = SegmentFolder(path, owner) if rotates else codec.output(path, force, owner)
        self.segments: Segments | None = None
        """The output's files, where it rotates."""
        if rotates:
            self.segments = Segments(platform.node(), codec.suffix, self.open_file)
        self._open_file: Callable[[int, bytes], int] = self.open_file
        self.altered = False
        """Whether what is recorded was changed: switches, limits, filters, steps of a budget."""
        self.journal: Journal | None = None
        """For who goes on where this process is killed."""
        self.records = 0
        """Records that went to the spool so far, without control entries."""
        self._info: CaptureInfo
        self._segment_bytes = 0
        self._off: dict[int, Change] = {}
        self._paused = False

    @property
    def order(self) -> Queues:
        """Counts records before they reach the file: read, late and lost."""
        return self.codec.order

    @property
    def written(self) -> Written:
        """What is in the file."""
        return self._writer.written

    @property
    def gone(self) -> dict[str, int]:
        """See Writer.gone."""
        return self._writer.gone

    @property
    def disk_lost(self) -> int:
        """Records that a full disk, or a write that failed, took."""
        return self._writer.disk_lost

    @property
    def largest_mark(self) -> int:
        """The highest number of a mark that the format can hold."""
        return self.codec.largest_mark

    def begin(
        self, info: CaptureInfo, current: Current, clocks: Clocks, show: Show | None = None
    ) -> None:
        """Put the beginning of the file on the disk: the programs are attached. FileError."""
        self._prepare(info, current, clocks, show, Written())
        first = self._first(clocks, self.codec.existing(info.sockets))
        if self.segments is not None:
            assert isinstance(self._place, SegmentFolder)
            with self.segments.beginning(self._place, clocks.start.realtime_ns) as fd:
                self._writer.open(first, fd)
            return
        self._place.clear()
        later, self._open_file = self._open_file, self.open_file
        self._writer.open(first)
        self._open_file = later

    def discard(self) -> None:
        """Remove what an output without a successful begin() left; else do nothing."""
        self._place.discard()

    def start(self, begin: Callable[[], None] = lambda: None) -> None:
        """Start the writing thread. begin: what it calls first, to give up its privileges."""
        self._spool.start(begin)

    def folders(self) -> tuple[int, ...]:
        """Descriptors of the folders in which it still makes files."""
        return () if isinstance(self._place, Output) else (self._place.fd,)

    def open_file(self, cpu: int, first: bytes) -> int:
        """Answer a request for a file: of a folder of segments see SegmentFolder.answer(); else
        make the file of a CPU with its first bytes; its descriptor. FileError."""
        return self._place.answer(cpu, first)

    def open_files_by(self, open_file: Callable[[int, bytes], int]) -> None:
        """Call this instead of open_file(): the writing thread may make no files."""
        self._open_file = open_file
        if self.segments is not None:
            self.segments.ask = open_file

    def push(self, batches: Iterable[RingBatch]) -> None:
        """Add what a drain returned. The stream reads that memory until settle()."""
        for batch in batches:
            self.order.push(batch)

    def release(self, watermark_ns: int) -> None:
        """Write all records up to this time."""
        for batch, _ in self.codec.take(watermark_ns, self._show):
            self._hand_over(batch)

    def settle(self) -> None:
        """Copy the records that still wait: then the batches' memory may be overwritten."""
        self.order.settle()
        self._spool.flush()

    def clock(self, entry: Clock) -> None:
        """The time of day was set."""
        self._tell([entry], entry.mono_ns)

    def marks(self, marks: Sequence[Mark], pid: int = 0) -> bool:
        """A process set marks; False where the queue has no room for them."""
        return self._tell([Marks(marks, pid)], self._clocks.now_ns(), always=False)

    def pause(self) -> None:
        """Recording was switched off; all earlier records were released."""
        self._paused = self.altered = True
        self._tell([Paused()], self._clocks.now_ns())

    def resume(self) -> None:
        """Recording was switched on again."""
        self._paused = False
        self._tell(self.codec.logging(self._clocks.latest), self._clocks.now_ns())

    def switched(self, names: Sequence[str]) -> None:
        """Single events were switched on or off."""
        self._tell(self.codec.switched(names), self._clocks.now_ns())

    def tell(self, entries: Sequence[Control]) -> None:
        """What reconciling found, or whose groups are. Formats without such an entry leave it."""
        self._tell(entries, self._clocks.now_ns())

    def changed(self, changes: Sequence[Change]) -> None:
        """What is recorded changed."""
        keep_off(self._off, changes)
        self.altered |= alters(changes)
        self._tell(changes, changes[-1].after_ns)

    def describe(self, settings: Mapping[str, Any]) -> None:
        """These settings are others now: the header of the next file, if there is one, says so."""
        self._info = replace(self._info, settings={**self._info.settings, **settings})

    def checkpoint(self, books: Books) -> None:
        """Write the ledger, and sync the file."""
        now_ns = self._clocks.now_ns()
        self._spool.put_control([self._account(books)], now_ns, sync=True)

    def after(self, do: Callable[[], None]) -> None:
        """Call a function when all that was released is in the file; the writing thread may."""
        self._spool.after(do)

    def open_tail(self, path: str, capture: str, dtype: np.dtype[Any], journal: Journal) -> Tail:
        """The end of the file that go_on() shall go on with: this file, or of a capture that
        rotates its last segment. FileError where there is none, OSError."""
        folder = self._place if isinstance(self._place, SegmentFolder) else None
        if self.codec.is_noted:
            return open_noted(folder, path, capture, journal.files, self.codec)
        return open_tail(folder.fd if folder else None, path, capture, dtype, journal)

    def go_on(
        self,
        info: CaptureInfo,
        current: Current,
        clocks: Clocks,
        tail: Tail,
        show: Show | None = None,
    ) -> None:
        """Instead of begin(): go on with the file of a process that was killed. OSError."""
        clocks.resume(tail.offset_ns)
        self._prepare(info, current, clocks, show, tail.written)
        codec, written = self.codec, tail.written
        if self.segments is not None:
            fd = -1 if codec.per_cpu else tail.files[0].fd
            self.segments.resume(tail.capture, tail.name, tail.before, tail.older, fd)
        elif codec.per_cpu:
            self._place.discard()
            self._place = codec.output(tail.path, True, find_owner())
        files = []
        for cpu, left in tail.files.items():
            os.ftruncate(left.fd, left.end_bytes)
            os.lseek(left.fd, 0, os.SEEK_END)
            sink = self._writer.sink(left.fd)
            files.append(File(cpu, sink, left.state))
        self._writer.go_on(files, self._first(clocks))
        tail.released.pop(codec.states_cpu, None)
        self.order.resume(tail.released, tail.late)
        self.order.killed = tail.killed
        place = codec.states_cpu, EXISTING
        written.states = tail.killed[codec.states_cpu] + sum(
            counts[place] for counts in (written.in_file, *written.drops.values())
        )
        self._off = switched_off(current.states(), clocks.now_ns())

    def kill(self, counts: Mapping[int, int]) -> None:
        """After go_on(): so many records of each CPU were read, and are not in the file."""
        batches = self.codec.kill(counts, self._clocks.now_ns())
        self._spool.put_call(partial(self._writer.kill, dict(self.order.killed)))
        for batch in batches:
            self._hand_over(batch)

    @property
    def segment_bytes(self) -> int:
        """About how large the file is, with what waits for the writing thread."""
        if self.codec.per_cpu:  # the rings' rows are larger than what is written of them
            return self._writer.segment_bytes() + self._spool.waiting_bytes
        # Control entries count too, which members of the control group can cause.
        return max(self._segment_bytes, self._writer.segment_bytes() - self._writer.head_bytes)

    def rotate(self, books: Books, clock: Clock, why: str) -> None:
        """End the file after all that was released, and begin the next one: see writer.py.

        why: for the index. Outputs that cannot rotate refuse it: UsageError.
        """
        if self.segments is None:
            raise UsageError("this output does not rotate", "name a folder: -o FOLDER")
        part = self.segment_bytes // STATES_PART if why == "size" else None
        states, known = self.codec.repeat(clock.mono_ns, self._clocks.offset_ns, part)
        self._segment_bytes = 0
        account = self._account(books)
        paused = [Paused()] if self._paused else []
        first = Beginning(
            clock, self._info, self.codec.logging(clock), account, [*self._off.values(), *paused],
            states=states, known=known,
        )  # fmt: skip
        last = self._ending([clock, account, Finish(EndReason.ROTATED)], clock.mono_ns)
        self._spool.put_call(partial(self._writer.begin, first, last, why))

    def ask(self, pid: int = 0) -> int:
        """Write a dump of the flight recorder; its number. pid: who asks; 0: a signal."""
        raise UsageError("this capture is no flight recorder", "collect --record-last 30s")

    def window(self) -> dict[str, Any] | None:
        """What the flight recorder keeps, for the status; None for other captures."""
        return None

    def describe_end(self) -> str:
        """What was written, at the end, where that is not one file."""
        return ""

    def finish(self, serials: Mapping[int, int], mono_ns: int) -> None:
        """Write the rest, at the end; serials: by CPU, the number that the kernel gave out."""
        self.release(FOREVER_NS)
        for batch in self.codec.missing(serials, mono_ns):
            self._hand_over(batch)

    def end(self, books: Books | None, clock: Clock, reason: EndReason, mono_ns: int) -> None:
        """Write the last entries; books: None where the last counts could not be read."""
        account = [self._account(books, final=True)] if books is not None else []
        last = self._ending([clock, *account, Finish(reason)], mono_ns)
        self._spool.put_call(partial(self._writer.end, last))

    def close(self, timeout_s: float) -> bool:
        """Write what waits and close the file; False when that takes longer."""
        return self._spool.close(timeout_s)

    def bytes_written(self) -> int:
        """Bytes in the file so far."""
        return self._writer.bytes_written()

    def _prepare(
        self, info: CaptureInfo, current: Current, clocks: Clocks, show: Show | None,
        written: Written,
    ) -> None:  # fmt: skip
        self._info, self._clocks, self._show = info, clocks, show
        codec, rotates = self.codec, self.segments is not None
        codec.journal = self.journal
        if self.journal is not None:
            self.journal.files.stream(clocks.offset_ns, {})
        codec.prepare(info, current, clocks, rotates, max(1, written.last_seq))
        direct = not isinstance(self._place, Output) or not self._place.is_stdout
        self._writer = Writer(codec, written, self._make_file, self.segments, self.journal, direct)
        self._spool = Spool(self._writer, self.limit_bytes)

    def _make_file(self, cpu: int, first: bytes) -> int:
        return self._open_file(cpu, first)

    def _first(self, clocks: Clocks, more: Sequence[Item] = ()) -> Beginning:
        """The beginning of the first file."""
        clock = clocks.start
        return Beginning(
            clock, self._info, self.codec.logging(clock), off=more, cpus=self.codec.cpus()
        )

    def _hand_over(self, batch: Batch) -> None:
        if not len(batch):
            return
        self.records += batch.records
        self._segment_bytes += batch.nbytes
        if self.codec.states is not None:
            assert isinstance(batch, Ordered)
            self.codec.states.add(batch)
        self._spool.put(batch)

    def _tell(self, items: Sequence[Item], mono_ns: int, always: bool = True) -> bool:
        """Put items behind all that was released. A full queue must not drop most of them: others
        are misread without."""
        return not items or self._spool.put_control(items, mono_ns, always=always)

    def _account(self, books: Books, final: bool = False) -> Account:
        return Account(books, self.order.released(), self._clocks.offset_ns, final)

    def _ending(self, items: Sequence[Item], mono_ns: int) -> Ending:
        return Ending(items, mono_ns, sum(last for last, _ in self.order.released().values()))
