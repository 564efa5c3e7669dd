# SPDX-License-Identifier: Apache-2.0
"""PSC files: all CPUs' records in one numbered order, control entries between them.

Only the writer knows what reached the file. Dropped entries keep their sequence numbers; a LOSS
entry reports them before the next entries are written. Pauses have no entry.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.collector.ring.journal import Note
from tcpkmon.collector.sequencer.clock_pairs import Clocks
from tcpkmon.collector.sequencer.ordered import Ordered, stamp, stamp_control
from tcpkmon.collector.sequencer.sequencer import Sequencer
from tcpkmon.collector.writer.capture_info import CaptureInfo, Current
from tcpkmon.collector.writer.codec import Codec, File, Frame, Look, Segment, Show
from tcpkmon.collector.writer.ledger import reserve_bytes
from tcpkmon.collector.writer.states import MOST, States
from tcpkmon.collector.writer.tape import Account, Finish, Item, Marks
from tcpkmon.collector.writer.written import Written
from tcpkmon.formats.base.control import (
    ANY_CPU,
    Checkpoint,
    Clock,
    Control,
    End,
    Loss,
    LossCause,
    Start,
    encode_many,
)
from tcpkmon.formats.psc.columns import MODS_AUTO, MODS_FACK, MODS_RENO, MODS_SACK
from tcpkmon.formats.psc.header import encode_header, writer_header

SACK = Path("/proc/sys/net/ipv4/tcp_sack")


class PscCodec(Codec):
    """See collector/writer/codec.py."""

    suffix = ".pm"
    largest_mark = (1 << 32) - 1
    order: Sequencer

    def prepare(
        self, info: CaptureInfo, current: Current, clocks: Clocks, rotates: bool, last_seq: int
    ) -> None:
        # Last records that a later segment repeats come from no CPU: they have the number after
        # the last.
        self._cpus = info.cpus + rotates
        self.states_cpu = info.cpus
        self.reserve_bytes = reserve_bytes(self._cpus, info.programs + 4, info.entry_size)
        self.states = States(info.dtype, info.remembered or MOST) if rotates else None
        self.unit, self._dtype = info.dtype.itemsize, info.dtype
        self._offset_ns: Callable[[], int] = lambda: clocks.offset_ns
        self._given_bytes: int | None = None
        self.order = Sequencer(info.dtype, self._offset_ns, first_seq=last_seq + 1)
        self.order.pool.warm()

    def take(
        self, watermark_ns: int, show: Show | None
    ) -> Iterator[tuple[Ordered, Sequence[Any]]]:
        for ordered in self.order.pieces(watermark_ns):
            if show is not None:
                show(ordered.entries)
            yield ordered, ()

    def missing(self, serials: Mapping[int, int], mono_ns: int) -> Iterable[Ordered]:
        return (self.order.missing(self.order.tails(serials), mono_ns, LossCause.KERNEL),)

    def kill(self, counts: Mapping[int, int], mono_ns: int) -> Iterable[Ordered]:
        tails = self.order.kill(counts)
        return (self.order.missing(tails, mono_ns, LossCause.KILLED),) if counts else ()

    def look(
        self, feed: Look, batch: Ordered, parts: Sequence[Any], counts: Counter[Any]
    ) -> list[Any]:
        present = {location for _, location in counts}
        return [*feed(batch.entries, batch.first_ns, present)]

    def repeat(
        self, mono_ns: int, offset_ns: int, most_bytes: int | None = None
    ) -> tuple[Ordered | None, int]:
        if self.states is None:
            return None, 0
        most = None if most_bytes is None else most_bytes // self._dtype.itemsize
        states, known = self.states.repeat(self.states_cpu, mono_ns, most)
        if states is not None and "time_ns" in (states.entries.dtype.names or ()):
            times_ns = states.entries["time_ns"].astype(np.int64)
            stamp(states.entries, np.arange(1, len(states) + 1), times_ns, offset_ns)
        return states, known

    def head(self, segment: Segment, cpu: int, written: Written) -> Frame:
        beginning, settings = segment.beginning, dict(segment.settings)
        pair, info = beginning.clock, beginning.info
        start = Start(pair.mono_ns, pair.realtime_ns, self._cpus, info.recorded)
        entries = self._entries([start, *segment.notes], written)
        if beginning.states is not None and beginning.recorder is None:
            place = {"row": len(entries), "count": len(beginning.states), "known": beginning.known}
            settings["segment"]["states"] = place
        header = make_header(info, pair, settings)
        return self._frame(entries, written, pair.mono_ns, header)

    def control(
        self, notes: Sequence[Item], file: File, cpus: Collection[int], written: Written,
        mono_ns: int,
    ) -> Frame | None:  # fmt: skip
        entries = self._entries(notes, written)
        return self._frame(entries, written, mono_ns) if entries else None

    def by_file(self, batches: Sequence[Ordered]) -> Iterable[tuple[int, Sequence[Ordered]]]:
        return super().by_file([batch for batch in batches if len(batch)])

    def records(self, file: File, batches: Sequence[Ordered], first: int) -> Frame:
        for batch in batches:
            batch.renumber(first)
            first += batch.span
        last = batches[-1]
        if last.ahead is not None:
            self.order.ahead = last.ahead
            self._given_bytes = last.start_bytes + last.nbytes
        return Frame([batch.entries.view(np.uint8).data for batch in batches], whole=False)

    def moved(self, file: File) -> None:
        """Give the sequencer the place in the file of its next entries."""
        if self._given_bytes is not None:
            self.order.ahead_bytes = file.sink.end_bytes - self._given_bytes

    def _entries(self, items: Sequence[Item], written: Written) -> list[Control]:
        """The entries of these items, of which the first follows what is written."""
        entries: list[Control] = []
        for item in items:
            here = _after(written, entries)
            if isinstance(item, Account):
                if self.journal is not None:
                    self.journal.note(here.checkpoints, Note(item.released, item.offset_ns))
                entries += item.books.checkpoint(here, final=item.final)
            elif isinstance(item, Finish):
                entries.append(End(int(item.reason), here.entries, here.lost, here.checkpoints))
            elif isinstance(item, Marks):
                entries += item.marks
            elif isinstance(item, Control):
                entries.append(item)
        return entries

    def _frame(
        self, entries: Sequence[Control], written: Written, mono_ns: int, header: bytes = b""
    ) -> Frame:
        rows = encode_many(entries, self._dtype)
        skipped = [_skipped(entry) for entry in entries]
        seqs = written.last_seq + np.cumsum(np.array(skipped, np.int64) + 1)
        stamp_control(rows, seqs, mono_ns, self._offset_ns())
        return Frame(
            [header + rows.tobytes()], None, len(rows), len(rows), len(rows) + sum(skipped),
            sum(skipped), _checkpoints(entries),
        )  # fmt: skip


def _skipped(entry: Control) -> int:
    """How many numbers before it nothing in the file has."""
    return entry.count if isinstance(entry, Loss) and entry.cpu == ANY_CPU else 0


def _checkpoints(entries: Sequence[Control]) -> int:
    return sum(isinstance(entry, Checkpoint) for entry in entries)


def _after(written: Written, entries: Sequence[Control]) -> Written:
    """What is in the file when these entries are there too."""
    numbers = len(entries) + sum(map(_skipped, entries))
    return replace(
        written, entries=written.entries + len(entries), last_seq=written.last_seq + numbers,
        checkpoints=written.checkpoints + _checkpoints(entries),
    )  # fmt: skip


def make_header(info: CaptureInfo, pair: Clock, settings: Mapping[str, Any]) -> bytes:
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
