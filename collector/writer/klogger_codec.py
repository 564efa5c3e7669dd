# SPDX-License-Identifier: Apache-2.0
"""Klogger logs: a file per CPU, written in whole dumps, with base events around the records.

Serials number the records and base events of a file. The serial of a record is the kernel's, plus
the number of base events before it in the file. So the serial of a lost record is missing:

                     dump 0  | dump 1    | dump 2
    kernel's serial          |    1  2   |     3     5       record 4 was lost
    serial in file   1 ... 5 | 6  7  8  9| 10 11    13 14    12 is missing
                             | ^        ^| ^           ^     base events: DUMP_BEGIN, DUMP_FINISH
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.linux.syscalls import online_cpus
from tcpkmon.collector.ring.points import EVENT_HEAD_BYTES, FIRST_EVENT
from tcpkmon.collector.sequencer.buffer_pool import Pool
from tcpkmon.collector.sequencer.clock_pairs import Clocks
from tcpkmon.collector.sequencer.sequencer import Queues
from tcpkmon.collector.writer.base_events import notes_of, process_notes
from tcpkmon.collector.writer.capture_info import CaptureInfo, Current
from tcpkmon.collector.writer.codec import Codec, File, Frame, Segment, Show
from tcpkmon.collector.writer.function_names import FunctionNames
from tcpkmon.collector.writer.log_batch import LogBatch
from tcpkmon.collector.writer.log_folder import LogFolder
from tcpkmon.collector.writer.note import EVERY_CPU, FIRST_CPU, Note
from tcpkmon.collector.writer.output_file import Owner
from tcpkmon.collector.writer.segment_folder import LOG_SUFFIX
from tcpkmon.collector.writer.tape import Item, Logging, Switched
from tcpkmon.collector.writer.tcp_order import tcp_in_order
from tcpkmon.collector.writer.written import Written
from tcpkmon.formats.base.control import EXISTING, Clock
from tcpkmon.formats.klogger.describe import (
    SNAPSHOT_NUMBER,
    describe_event,
    describe_snapshot,
    make_header,
)
from tcpkmon.formats.klogger.encode import (
    encode_preamble,
    finish_dump,
    pack_event,
    pack_events,
    pack_records,
)
from tcpkmon.formats.klogger.table import PLACED, LogFormat

DUMP_ROWS = 1 << 15
NOTE_BYTES = 256
"""No base event at the end of a file is larger."""
_U64 = np.uint64


@dataclass(frozen=True)
class LogState:
    """Where a CPU's file is: its last serial, the base events and dumps in it. before: the last of
    the kernel's serials in earlier segments."""

    last: int = 0
    inserted: int = 0
    dumps: int = 0
    before: int = 0


class KloggerCodec(Codec):
    """See collector/writer/codec.py. log, mixed: what prepare() knows of a capture."""

    suffix = LOG_SUFFIX
    per_cpu = True
    is_noted = True

    def __init__(
        self,
        log: LogFormat | None = None,
        mixed: bool = False,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._mixed, self._now_ns = mixed, now_ns
        self._names: FunctionNames | None = None
        self._pool = Pool()
        self._behind = 0
        """Records that are missing behind the last one that was shown."""
        if log is not None:
            self._log = log

    def prepare(
        self, info: CaptureInfo, current: Current, clocks: Clocks, rotates: bool, last_seq: int
    ) -> None:
        assert info.schema is not None
        self._current, self._clocks, self._mixed = current, clocks, info.mixed
        self._table = describe_events(info)
        self.order = Queues(info.dtype)
        self.reserve_bytes = (info.requested + info.programs + 8) * NOTE_BYTES
        self._log = LogFormat.of(_header(info, self._table, clocks.start, {}, 0))
        asked = current.states()
        self._names = FunctionNames(
            info.schema, [(number, event) for number, event in info.events if event.name in asked]
        )

    def take(
        self, watermark_ns: int, show: Show | None
    ) -> Iterator[tuple[LogBatch, Sequence[Any]]]:
        """Copies, which each CPU's file gets in the order of its serials: they print in no order
        of all CPUs but that of the schema tcp."""
        copies = self.order.copies(watermark_ns, self._pool)
        batches: Iterable[LogBatch] = (LogBatch(*copy) for copy in copies)
        if show is not None:
            batches = [*batches]
            rows, lost = tcp_in_order(batches)
            lost[0] += self._behind
            self._behind = int(lost[-1])
            if rows is not None:
                show(rows, lost[:-1])
        for batch in batches:
            yield batch, (batch,)

    def missing(self, serials: Mapping[int, int], mono_ns: int) -> Iterable[LogBatch]:
        self.order.tails(serials)
        return ()

    def logging(self, clock: Clock) -> Sequence[Item]:
        now = self._current
        return [Logging(now.buffer_bytes, now.low_water_percent, clock, now.states())]

    def switched(self, names: Sequence[str]) -> Sequence[Item]:
        states = self._current.states()
        return [Switched({name: states[name] for name in names})]

    def existing(self, sockets: Callable[[], Iterable[Item]]) -> Sequence[Item]:
        return (*process_notes(), *sockets())

    def cpus(self) -> Sequence[int]:
        return sorted(online_cpus())

    def output(self, path: str | Path, force: bool, owner: Owner | None) -> LogFolder:
        return LogFolder(path, force, owner)

    def numbers_of(self, state: LogState) -> tuple[int, ...]:
        return astuple(state)

    def open_state(self, numbers: Sequence[int], fd: int, end_bytes: int) -> LogState:
        return LogState(*numbers)

    def kill(self, counts: Mapping[int, int], mono_ns: int) -> Iterable[LogBatch]:
        """Their serials are missing."""
        self.order.killed.update(counts)
        return ()

    def by_file(self, batches: Sequence[LogBatch]) -> Iterable[tuple[int, Sequence[LogBatch]]]:
        for batch in batches:
            for some in batch.cut(DUMP_ROWS):
                yield some.cpu, (some,)

    def settings(self, settings: Mapping[str, Any], cpus: Collection[int]) -> dict[str, Any]:
        return {**settings, "logs": sorted(cpus), PLACED: True}

    def notes(
        self, items: Sequence[Item], written: Written, cpus: Collection[int]
    ) -> list[Note]:
        return notes_of(items, written, cpus)

    def named(self, notes: Sequence[Note]) -> set[int]:
        return {note.cpu for note in notes} - {EVERY_CPU, FIRST_CPU}

    def head(self, segment: Segment, cpu: int, written: Written) -> Frame:
        beginning, notes = segment.beginning, segment.notes
        before = 0
        if beginning.account is not None:
            before = beginning.account.released.get(cpu, (0, 0))[0]
        elif cpu not in segment.cpus:  # it came later: events were switched since
            notes = self.notes(self.logging(self._clocks.latest), written, ())
        own = [note for note in notes if _is_for(note, cpu, segment.cpus)]
        header = _header(beginning.info, self._table, beginning.clock, segment.settings, cpu)
        data, last = _dump(self._log, 0, 0, own, self._clocks.now_ns(), (0, 0))
        return Frame(
            [encode_preamble(header) + data], LogState(last, len(own) + 2, 1, before), len(own)
        )

    def control(
        self, notes: Sequence[Note], file: File, cpus: Collection[int], written: Written,
        mono_ns: int,
    ) -> Frame | None:  # fmt: skip
        own = [note for note in notes if _is_for(note, file.cpu, cpus)]
        if not own:
            return None
        at: LogState = file.state
        # What was lost after the last record is a gap before the final ledger.
        ends = [serial - at.before + at.inserted for serial in _given_out(own)]
        start = max([at.last, *ends])
        data, last = _dump(self._log, start, at.dumps, own, mono_ns, file.sink.wrote_ns)
        return Frame([data], _behind(at, last, len(own) + 2), len(own))

    def records(self, file: File, batches: Sequence[LogBatch], first: int) -> Frame:
        (batch,) = batches
        at: LogState = file.state
        numbers, rows, start = self._payloads(batch.points, batch.rows)
        if self._names is not None:
            self._names.fill(numbers, rows, start)
        now_ns = self._now_ns()
        begins = _begin(at.dumps, file.sink.wrote_ns)
        begin = pack_event(self._log, "DUMP_BEGIN", begins, at.last + 1, now_ns)
        serials = (batch.serials + (at.inserted + 1 - at.before)).astype(_U64)
        packed = pack_records(
            numbers, rows, serials, batch.times_ns.astype(_U64), self._log.payload_sizes, start
        )
        last = int(serials[-1]) + 1
        data = finish_dump(self._log, at.dumps, [begin, packed], last, now_ns)
        return Frame([data], _behind(at, last, 2))

    def _payloads(
        self, points: NDArray[Any], rows: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], int]:
        """Event numbers, rows, and the offset of the payload in a row."""
        snapshots = (points < FIRST_EVENT) | (points == EXISTING)
        if not snapshots.any():
            return points, rows, EVENT_HEAD_BYTES
        numbers = np.where(snapshots, SNAPSHOT_NUMBER, points)
        if not self._mixed:
            return numbers, rows, 0
        size = rows.dtype.itemsize
        moved = np.zeros((len(rows), EVENT_HEAD_BYTES + size), np.uint8)
        table = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), size)
        moved[snapshots, EVENT_HEAD_BYTES:] = table[snapshots]
        moved[~snapshots, :size] = table[~snapshots]
        return numbers, moved.view(f"V{EVENT_HEAD_BYTES + size}")[:, 0], EVENT_HEAD_BYTES


def _behind(at: LogState, last: int, inserted: int) -> LogState:
    """A dump further."""
    return LogState(last, at.inserted + inserted, at.dumps + 1, at.before)


def _given_out(notes: Sequence[Note]) -> Iterator[int]:
    """The last serial that the kernel gave a CPU, where the final ledger is among these."""
    for note in notes:
        if note.name == "CPU_LEDGER" and note.values["final"]:
            yield int(note.values["serials"])


def _is_for(note: Note, cpu: int, cpus: Collection[int]) -> bool:
    """Whether this CPU's file gets the base event. cpus: those that have a file."""
    if note.cpu == FIRST_CPU:
        return cpu == min(cpus, default=cpu)
    return note.cpu in {EVERY_CPU, cpu}


def _begin(index: int, wrote_ns: tuple[int, int]) -> dict[str, int | str | bytes]:
    """DUMP_BEGIN: a dump's own write comes after it, so the next one tells when that was."""
    return {"index": index, "wrote_from": wrote_ns[0], "wrote_until": wrote_ns[1]}


def _dump(
    log: LogFormat, last: int, index: int, notes: Sequence[Note], mono_ns: int,
    wrote_ns: tuple[int, int],
) -> tuple[bytes, int]:  # fmt: skip
    """A dump of base events after the serial `last`, and its own last serial."""
    serial = last + 1
    parts = [pack_event(log, "DUMP_BEGIN", _begin(index, wrote_ns), serial, mono_ns)]
    for name, same in groupby(notes, lambda note: note.name):
        group = list(same)
        times_ns = [note.mono_ns or mono_ns for note in group]
        parts.append(pack_events(log, name, [n.values for n in group], serial + 1, times_ns))
        serial += len(group)
    return finish_dump(log, index, parts, serial + 1, mono_ns), serial + 1


def describe_events(info: CaptureInfo) -> list[dict[str, Any]]:
    """The header's table of events."""
    assert info.schema is not None
    table = []
    for number, event in info.events:
        if event.name == "SNAPSHOT" and info.tcp is not None:
            table.append(describe_snapshot(info.tcp, info.columns, info.entry_size))
        else:
            table.append(describe_event(info.schema, event, number))
    return table


def _header(
    info: CaptureInfo, table: Sequence[Mapping[str, Any]], pair: Clock,
    settings: Mapping[str, Any], cpu: int,
) -> dict[str, object]:  # fmt: skip
    """The header of a CPU's file. table: of describe_events()."""
    assert info.schema is not None
    return make_header(
        info.schema,
        table,
        cpu=cpu,
        cpus=info.cpus,
        host=platform.node(),
        kernel=info.kernel,
        version=info.version,
        buffer_bytes=info.buffer_bytes,
        low_water_percent=info.low_water_percent,
        clock=(pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns),
        settings=settings,
    )
