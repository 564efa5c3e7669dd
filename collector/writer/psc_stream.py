# SPDX-License-Identifier: Apache-2.0
"""The stream into a PSC file: all CPUs' records in one order, control entries between them."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collector.ring.journal import Journal
from collector.sequencer.clock_pairs import ClockPair, Clocks
from collector.sequencer.cpu_queue import FOREVER_NS
from collector.sequencer.ordered_batch import Ordered, stamp, stamp_control
from collector.sequencer.sequencer import Sequencer
from collector.writer.base_stream import Show
from collector.writer.capture_info import CaptureInfo, Current
from collector.writer.file_sink import FileSink
from collector.writer.ledger import Books, reserve_bytes
from collector.writer.one_file import OneFileStream
from collector.writer.psc_writer import Writer
from collector.writer.states import MOST, States
from collector.writer.tail import Tail, open_last_segment, open_tail
from collector.writer.turn import Turn, alters, keep_off, switched_off
from collector.writer.written import Written
from formats.base.control import (
    EXISTING,
    Change,
    Clock,
    Control,
    End,
    EndReason,
    Mark,
    Start,
    encode_many,
)
from formats.psc.columns import MODS_AUTO, MODS_FACK, MODS_RENO, MODS_SACK
from formats.psc.header import encode_header, writer_header

STATES_PART = 4
"""A segment that is full of records is followed by one that repeats last records of at most this
part of its size."""
SACK = Path("/proc/sys/net/ipv4/tcp_sack")


class PscStream(OneFileStream[Ordered]):
    """See collector/writer/base_stream.py. A PSC file has no entries for pauses and switches.

    rotates: the path is that of a folder of segments.
    """

    largest_mark = (1 << 32) - 1
    order: Sequencer

    def __init__(self, path: str | Path, force: bool = False, rotates: bool = False) -> None:
        super().__init__(path, force, rotates, ".pm")
        self._show: Show | None = None
        self._off: dict[int, Change] = {}
        self._states: States | None = None

    def begin(
        self, info: CaptureInfo, current: Current, clocks: Clocks, show: Show | None = None
    ) -> None:
        # The entries that sock_diag lists come from no CPU: they have the number after the last.
        # So have last records that a later segment repeats.
        cpus = info.cpus + 1 + (self.segments is not None)
        mono_ns = clocks.start.mono_ns
        start = Start(mono_ns, clocks.start.realtime_ns, cpus, info.recorded)
        first = encode_many([start], info.dtype)
        stamp_control(first, np.array([1], np.int64), mono_ns, clocks.to_epoch)
        self._info, self._cpus, self._show = info, cpus, show
        header = make_header(info, clocks.start, self._describe(1))
        fd = self._begin(header + first.tobytes(), start.realtime_ns)
        self._write_to(fd, Written(entries=1, last_seq=1), clocks)

    def _write_to(self, fd: int, written: Written, clocks: Clocks) -> None:
        """Write behind what is in this file."""
        info = self._info
        self._entry_size = info.entry_size
        self._states_cpu = info.cpus + 1
        if self.segments is not None:
            self._states = States(info.dtype)
        sink = FileSink(
            fd,
            info.entry_size,
            reserve_bytes=reserve_bytes(self._cpus, info.programs + 4, info.entry_size),
            direct=self._may_be_direct,
        )
        epoch = clocks.to_epoch
        self._writer = Writer(sink, info.dtype, epoch, written, segments=self.segments)
        self._write_by(self._writer, clocks)
        self.order = Sequencer(info.dtype, epoch, first_seq=written.last_seq + 1)
        self.order.warm()

    def open_tail(self, path: str, capture: str, dtype: np.dtype[Any], journal: Journal) -> Tail:
        if self._folder is None:
            return open_tail(path, dtype, journal)
        return open_last_segment(self._folder.fd, capture, dtype, journal)

    def go_on(
        self,
        info: CaptureInfo,
        current: Current,
        clocks: Clocks,
        tail: Tail,
        show: Show | None = None,
    ) -> None:
        self._info, self._show = info, show
        self._cpus = info.cpus + 1 + (self.segments is not None)
        os.ftruncate(tail.fd, tail.end_bytes)
        os.lseek(tail.fd, 0, os.SEEK_END)
        clocks.resume(tail.offset_ns)
        if self.segments is not None:
            self.segments.resume(tail.capture, tail.name, tail.before, tail.older, tail.fd)
        self._write_to(tail.fd, tail.written, clocks)
        tail.released.pop(self._states_cpu, None)
        self.order.resume(tail.released, tail.late)
        self.order.killed = tail.killed
        place = self._states_cpu, EXISTING
        tail.written.states = tail.killed[self._states_cpu] + sum(
            counts[place] for counts in (tail.written.in_file, *tail.written.drops.values())
        )
        self._off = switched_off(current.states(), clocks.now_ns())

    def kill(self, counts: Mapping[int, int]) -> None:
        """So many records by CPU had been read, after those in the file, by who was killed."""
        if counts:
            self._hand_over(self.order.kill(counts, self._clocks.now_ns()))

    def release(self, watermark_ns: int) -> None:
        for ordered in self.order.pieces(watermark_ns):
            self._hand_over(ordered)

    def clock(self, entry: Clock) -> None:
        self._spool.put_control(lambda _: [entry], entry.mono_ns, always=True)

    def rotate(self, books: Books, clock: Clock, why: str) -> None:
        segments, info = self.segments, self._info
        if segments is None:
            return super().rotate(books, clock, why)
        released = self.order.released()
        off, note = list(self._off.values()), self._noting()
        states, known = self._repeat_states(clock, why)
        count = len(states) if states is not None else 0

        def last(w: Written) -> list[Control]:
            note(w)
            group = [clock, *books.checkpoint(_after(w, 1))]
            w = _after(w, len(group))
            return [*group, End(EndReason.ROTATED, w.entries, w.lost, w.checkpoints + 1)]

        def first(w: Written) -> tuple[bytes, list[Control]]:
            note(w)
            again = {self._states_cpu: (w.states, 0)} if w.states else {}
            previous = segments.previous(w, {**released, **again})
            start = Start(clock.mono_ns, clock.realtime_ns, self._cpus, info.recorded)
            entries = [start, *books.checkpoint(_after(w, 1)), *off]
            settings = self._describe(w.segment + 1, previous)
            if count:
                place = {"row": len(entries), "count": count, "known": known}
                settings["segment"]["states"] = place
            return make_header(info, clock, settings), entries

        self._segment_bytes = 0
        turn = Turn(last, first, clock.mono_ns, clock.realtime_ns, why, states=states)
        self._spool.put_call(partial(self._writer.rotate, turn))

    def _repeat_states(self, clock: Clock, why: str) -> tuple[Ordered | None, int]:
        """The last records with which the next segment begins, and how many are known."""
        most = MOST
        if why == "size":
            most = self._segment_bytes // STATES_PART // self._entry_size
        assert self._states is not None
        states, known = self._states.repeat(self._states_cpu, clock.mono_ns, most)
        if states is not None and "time_ns" in (states.entries.dtype.names or ()):
            # In this segment's time of day.
            mono_ns = states.entries["time_ns"].astype(np.int64)
            stamp(states.entries, states.seqs, mono_ns, self._clocks.to_epoch)
        return states, known

    def describe(self, settings: Mapping[str, Any]) -> None:
        self._info = replace(self._info, settings={**self._info.settings, **settings})

    def changed(self, changes: Sequence[Change]) -> None:
        keep_off(self._off, changes)
        self.altered |= alters(changes)
        self._spool.put_control(lambda _: changes, changes[-1].after_ns, always=True)

    def reconciled(self, entries: Sequence[Control]) -> None:
        self._spool.put_control(lambda _: entries, self._clocks.now_ns(), always=True)

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
        self._segment_bytes += ordered.nbytes
        if self._states is not None:
            self._states.add(ordered)
        if self._show is not None:
            self._show(ordered.entries)
        self._spool.put(ordered)

    def _describe(self, number: int, previous: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The header's settings."""
        if self.segments is None:
            return dict(self._info.settings)
        return self.segments.describe(self._info.settings, number, previous)


def _after(written: Written, entries: int) -> Written:
    """What is in the file when so many control entries more are there."""
    count, last = written.entries + entries, written.last_seq + entries
    return replace(written, entries=count, last_seq=last)


def make_header(info: CaptureInfo, pair: ClockPair | Clock, settings: Mapping[str, Any]) -> bytes:
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
            settings=settings,
        )
    )


def _features() -> int:
    """psc_mods of the running system. Linux does FACK where it does SACK, and always AUTO."""
    try:
        sack = SACK.read_text().strip() != "0"
    except OSError:
        sack = True
    return (MODS_SACK | MODS_FACK if sack else MODS_RENO) | MODS_AUTO
