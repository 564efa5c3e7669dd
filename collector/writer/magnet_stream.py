# SPDX-License-Identifier: Apache-2.0
"""The stream into a MAGNeT file: the schema magnet, all CPUs' records in one order."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collector.sequencer.clock_pairs import Clocks
from collector.sequencer.cpu_queue import FOREVER_NS, Queues
from collector.writer.base_stream import Show
from collector.writer.capture_info import CaptureInfo, Current
from collector.writer.file_sink import FileSink
from collector.writer.ledger import Books
from collector.writer.magnet_records import MagnetBatch, Packing
from collector.writer.magnet_writer import Item, MagnetWriter
from collector.writer.one_file import OneFileStream
from collector.writer.turn import Turn, keep_off
from collector.writer.written import Written
from formats.base.changes import ChangeKind
from formats.base.control import Change, Clock, EndReason, LossCause, Mark
from formats.magnet.control import (
    CHANGE,
    CPU_COUNTERS,
    END,
    LEDGER,
    POINT_COUNTERS,
    SHED,
    encode_header,
)
from formats.magnet.header import make_header
from formats.magnet.layout import CLOCK, MARK
from formats.schema import format_schema

_RESERVE_BYTES = 64 << 10
_NUMBER_BYTES = 24
"""Of a number of a ledger on the disk."""
_PRIVATE = ("command", "filters")
"""Settings with addresses and ports."""


class MagnetStream(OneFileStream[MagnetBatch]):
    """See collector/writer/base_stream.py. The file has no entries for pauses.

    rotates: the path is that of a folder of segments.
    """

    def __init__(self, path: str | Path, force: bool = False, rotates: bool = False) -> None:
        super().__init__(path, force, rotates, ".magnet")
        self._off: dict[int, Change] = {}

    def begin(
        self, info: CaptureInfo, current: Current, clocks: Clocks, show: Show | None = None
    ) -> None:
        reserve_bytes = self._prepare(info)
        packing, pair = self._packing, clocks.start
        first = Clock(pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns, 0)
        fd = self._begin(self._head(first, 1), pair.realtime_ns)
        direct = self._may_be_direct
        sink = FileSink(fd, packing.layout.size, reserve_bytes=reserve_bytes, direct=direct)
        self._writer = MagnetWriter(sink, packing, segments=self.segments)
        self._write_by(self._writer, clocks)

    def _prepare(self, info: CaptureInfo) -> int:
        """Know what the records are; how many bytes the end of a file needs at most."""
        assert info.schema is not None
        self._packing = Packing(info.schema, info.events)
        self.order = Queues(info.dtype)
        self._info = info
        rows = info.cpus * len(self._packing.kinds)
        numbers = rows * (len(POINT_COUNTERS) + 3) + info.cpus * len(CPU_COUNTERS)
        return _RESERVE_BYTES + _NUMBER_BYTES * (numbers + 8 * info.programs)

    def release(self, watermark_ns: int) -> None:
        for batch in self._packing.pack(self.order.take(watermark_ns)):
            self._put(batch)

    def clock(self, entry: Clock) -> None:
        self._spool.put_control(lambda _: [self.clock_item(entry)], entry.mono_ns, always=True)

    def describe(self, settings: Mapping[str, Any]) -> None:
        self._info = replace(self._info, settings={**self._info.settings, **settings})

    def rotate(self, books: Books, clock: Clock, why: str) -> None:
        segments = self.segments
        if segments is None:
            return super().rotate(books, clock, why)
        released, off = self.order.released(), list(self._off.values())

        def last(w: Written) -> list[Item]:
            ledger = self.ledger(books, w, clock.mono_ns, final=False)
            end = {"kind": END, "time_ns": clock.mono_ns, "reason": int(EndReason.ROTATED)}
            return [self.clock_item(clock), *ledger, end]

        def first(w: Written) -> tuple[bytes, list[Item]]:
            head = self._head(clock, w.segment + 1, segments.previous(w, released))
            ledger = self.ledger(books, w, clock.mono_ns, final=False)
            return head, [*ledger, *(self.change_item(change) for change in off)]

        self._segment_bytes = 0
        turn = Turn(last, first, clock.mono_ns, clock.realtime_ns, why)
        self._spool.put_call(partial(self._writer.rotate, turn))

    def changed(self, changes: Sequence[Change]) -> None:
        keep_off(self._off, changes)
        entries = [self.change_item(change) for change in changes]
        self._spool.put_control(lambda _: entries, changes[-1].after_ns, always=True)

    def finish(self, serials: Mapping[int, int], mono_ns: int) -> None:
        self.release(FOREVER_NS)
        counts = [count for _, _, count in self.order.tails(serials)]
        self._put(self._packing.missing(counts, LossCause.KERNEL, max(mono_ns, self.order.last_ns)))

    def end(self, books: Books | None, clock: Clock, reason: EndReason, mono_ns: int) -> None:
        def items(written: Written) -> list[Item]:
            ledger = self.ledger(books, written, mono_ns, final=True) if books else []
            end = {"kind": END, "time_ns": mono_ns, "reason": int(reason)}
            return [self.clock_item(clock), *ledger, end]

        self._spool.put_control(items, mono_ns, reserved=True)

    def bytes_written(self) -> int:
        return self._writer.bytes_written()

    def _put(self, batch: MagnetBatch) -> None:
        self.records += batch.records
        self._segment_bytes += batch.nbytes
        self._spool.put(batch)

    def _mark_entries(self, marks: Sequence[Mark], pid: int) -> Sequence[Item]:
        now_ns = self._clocks.now_ns()
        return [self._own(MARK, mark.number, now_ns, pid) for mark in marks]

    def _book_entries(self, books: Books, written: Written) -> Sequence[Item]:
        return self.ledger(books, written, self._clocks.now_ns(), final=False)

    def ledger(self, books: Books, written: Written, time_ns: int, final: bool) -> list[Item]:
        """A ledger, as a control entry."""
        names = POINT_COUNTERS if books.shed is None else (*POINT_COUNTERS, SHED)
        points = []
        for cpu, point in books.places(written):
            counts = books.kernel(cpu, point) | books.collector(cpu, point, written)
            code = self._packing.code_of[point]
            points.append([cpu, int(code), *(counts[name] for name in names)])
        cpus = [[one.cpu, *(getattr(one, name) for name in CPU_COUNTERS)] for one in books.cpus()]
        programs = {n: [one.missed, one.kprobe_missed] for n, one in books.programs.items()}
        return [
            {
                "kind": LEDGER, "time_ns": time_ns, "final": int(final),
                "checkpoint": written.checkpoints, "points": points, "cpus": cpus,
                "programs": programs,
            }
        ]  # fmt: skip

    def change_item(self, change: Change) -> Item:
        """A change, as a control entry."""
        values = asdict(change)
        if change.kind != ChangeKind.SHED:
            del values["why"]
        if change.kind in (ChangeKind.SWITCH, ChangeKind.LIMIT):
            values["which"] = int(self._packing.code_of[change.which & 0xFF])
        return {"time_ns": change.after_ns, "change": values, "kind": CHANGE}

    def clock_item(self, entry: Clock) -> MagnetBatch:
        """A pair of clocks, as a record."""
        return self._own(CLOCK, entry.realtime_ns, entry.mono_ns, entry.uncertainty_ns)

    def _own(self, code: int, sockid: int, time_ns: int, size: int) -> MagnetBatch:
        """A record of the collector's own."""
        entries = np.zeros(1, self._packing.layout.dtype)
        entries["sockid"], entries["timestamp"] = sockid, time_ns
        entries["event"], entries["size"] = code, size
        return MagnetBatch(entries, np.full(1, -1, np.int32), 0)

    def _head(
        self,
        pair: Clock,
        number: int,
        previous: Mapping[str, Any] | None = None,
        **more: Mapping[str, Any],
    ) -> bytes:
        """A file's header. more: settings."""
        info, packing = self._info, self._packing
        assert info.schema is not None
        settings = {**info.settings, **more}
        if not packing.layout.data:
            for name in _PRIVATE:
                settings.pop(name, None)
        if self.segments is not None:
            settings = self.segments.describe(settings, number, previous)
        header = make_header(
            packing.layout,
            packing.kinds,
            (pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns),
            host=platform.node(),
            kernel=info.kernel,
            tcpkmon=info.version,
            cpus=info.cpus,
            settings=settings,
            schema=format_schema(info.schema),
        )
        return encode_header(header, packing.layout)
