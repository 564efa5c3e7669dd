# SPDX-License-Identifier: Apache-2.0
"""MAGNeT files: the schema magnet, all CPUs' records in one order, control entries with CRCs.

LOST counts what the writer dropped before the next records. Pauses have no entry.
"""

from __future__ import annotations

import copy
import os
import platform
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tcpkmon.collector.sequencer.clock_pairs import Clocks
from tcpkmon.collector.sequencer.cpu_queue import Queues
from tcpkmon.collector.writer.capture_info import CaptureInfo, Current
from tcpkmon.collector.writer.codec import Codec, File, Frame, Segment, Show
from tcpkmon.collector.writer.magnet_records import MagnetBatch, Packing
from tcpkmon.collector.writer.tape import Account, Check, Finish, Item, Marks
from tcpkmon.collector.writer.written import Written
from tcpkmon.formats.base.changes import ChangeKind
from tcpkmon.formats.base.control import Change, Clock, Loss, LossCause, Trigger
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.unseen import Unseen
from tcpkmon.formats.magnet.control import (
    CHANGE,
    CHECK,
    CPU_COUNTERS,
    END,
    LEDGER,
    POINT_COUNTERS,
    SHED,
    TRIGGER,
    UNSEEN,
    Block,
    encode,
    encode_header,
)
from tcpkmon.formats.magnet.header import make_header
from tcpkmon.formats.magnet.layout import CLOCK, MARK
from tcpkmon.formats.schema import format_schema

CHECK_RECORDS = 1 << 14
"""So many records get a control entry, if no other comes."""
_RESERVE_BYTES = 64 << 10
_NUMBER_BYTES = 24
"""Of a number of a ledger on the disk."""
_PRIVATE = ("command", "filters")
"""Settings with addresses and ports."""
_VALUE = re.compile(r"(?<![A-Za-z_0-9])[0-9][0-9A-Za-z.]*|\"[^\"]*\"|'[^']*'")
Entry = MagnetBatch | dict[str, Any]
"""Records, or the values of a control entry."""


@dataclass
class MagnetState:
    """Where the file is: the records since the last control entry, and how many of these there
    are. before: entries in earlier files."""

    block: Block
    controls: int
    before: int


class MagnetCodec(Codec):
    """See collector/writer/codec.py."""

    suffix = ".magnet"
    is_noted = True

    def prepare(
        self, info: CaptureInfo, current: Current, clocks: Clocks, rotates: bool, last_seq: int
    ) -> None:
        assert info.schema is not None
        self._packing = packing = Packing(info.schema, info.events)
        self.unit = packing.layout.size
        self.order = Queues(info.dtype)
        rows = info.cpus * len(packing.kinds)
        numbers = rows * (len(POINT_COUNTERS) + 3) + info.cpus * len(CPU_COUNTERS)
        self.reserve_bytes = _RESERVE_BYTES + _NUMBER_BYTES * (numbers + 8 * info.programs)

    def take(
        self, watermark_ns: int, show: Show | None
    ) -> Iterator[tuple[MagnetBatch, Sequence[Any]]]:
        parts = self.order.take(watermark_ns)
        last = None
        for batch in self._packing.pack(parts):
            if last is not None:
                yield last, ()
            last = batch
        if last is not None:
            yield last, parts

    def missing(self, serials: Mapping[int, int], mono_ns: int) -> Iterable[MagnetBatch]:
        counts = [count for _, _, count in self.order.tails(serials)]
        time_ns = max(mono_ns, self.order.last_ns)
        return (self._packing.missing(counts, LossCause.KERNEL, time_ns),)

    def kill(self, counts: Mapping[int, int], mono_ns: int) -> Iterable[MagnetBatch]:
        tails = self.order.kill(counts)
        missing = [count for _, _, count in tails]
        last = {cpu: first + count - 1 for cpu, first, count in tails}
        return (self._packing.missing(missing, LossCause.KILLED, mono_ns, last),) if tails else ()

    def numbers_of(self, state: MagnetState) -> tuple[int, ...]:
        return state.controls, state.before, state.block.count, self.unit

    def open_state(self, numbers: Sequence[int], fd: int, end_bytes: int) -> MagnetState:
        """The CRCs of its last records are made again."""
        controls, before, count, unit = numbers
        block = Block(unit)
        data = os.pread(fd, count * unit, end_bytes - count * unit)
        if len(data) != count * unit:
            raise FileError("its last records are not there")
        block.add(data)
        return MagnetState(block, controls, before)

    def tellable(self, text: str) -> str:
        """Without values that may be ports and addresses, unless the file has these too."""
        return text if self._packing.layout.data else _VALUE.sub("?", text)

    def settings(self, settings: Mapping[str, Any], cpus: Collection[int]) -> dict[str, Any]:
        private = () if self._packing.layout.data else _PRIVATE
        return {name: value for name, value in settings.items() if name not in private}

    def head(self, segment: Segment, cpu: int, written: Written) -> Frame:
        pair, info, packing = segment.beginning.clock, segment.beginning.info, self._packing
        assert info.schema is not None
        header = make_header(
            packing.layout,
            packing.kinds,
            (pair.mono_ns, pair.realtime_ns, pair.uncertainty_ns),
            host=platform.node(),
            kernel=info.kernel,
            tcpkmon=info.version,
            cpus=info.cpus,
            settings=segment.settings,
            schema=format_schema(info.schema),
        )
        begin = MagnetState(Block(self.unit), 0, written.entries)
        first = encode_header(header, packing.layout)
        entries = self._entries(segment.notes, written, pair.mono_ns)
        return self._frame(entries, begin, written, first)

    def control(
        self, notes: Sequence[Item], file: File, cpus: Collection[int], written: Written,
        mono_ns: int,
    ) -> Frame | None:  # fmt: skip
        entries = self._entries(notes, written, mono_ns)
        return self._frame(entries, file.state, written) if entries else None

    def records(self, file: File, batches: Sequence[MagnetBatch], first: int) -> Frame:
        return Frame([batch.bytes() for batch in batches], whole=False)

    def wrote(self, file: File, batch: MagnetBatch, count: int) -> None:
        file.state.block.add(batch.bytes(count))

    def due(self, file: File) -> Sequence[Item]:
        return [Check()] if file.state.block.count >= CHECK_RECORDS else ()

    def _frame(
        self, entries: Sequence[Entry], at: MagnetState, written: Written, first: bytes = b""
    ) -> Frame:
        after, pieces = copy.deepcopy(at), [first]
        records = written.entries - at.before
        batches = [entry for entry in entries if isinstance(entry, MagnetBatch)]
        for entry in entries:
            if isinstance(entry, MagnetBatch):
                pieces.append(entry.entries.tobytes())
                after.block.add(pieces[-1])
                records += len(entry)
                continue
            told = {"number": after.controls, "records": records, **after.block.values()}
            pieces.append(encode(entry | told, self._packing.layout))
            after = MagnetState(Block(self.unit), after.controls + 1, after.before)
        ledgers = sum(isinstance(entry, dict) and entry["kind"] == LEDGER for entry in entries)
        count = sum(map(len, batches))
        return Frame(
            [b"".join(pieces)], after, len(entries), count, count + sum(b.lost for b in batches),
            0, ledgers,
        )  # fmt: skip

    def _entries(self, items: Sequence[Item], written: Written, mono_ns: int) -> list[Entry]:
        return [entry for item in items for entry in self._entries_of(item, written, mono_ns)]

    def _entries_of(self, item: Item, written: Written, mono_ns: int) -> Sequence[Entry]:
        match item:
            case Account():
                unseen = item.books.unseen
                told = self._entries_of(unseen, written, mono_ns) if unseen is not None else ()
                return [*told, self._ledger(item, written, mono_ns)]
            case Clock():
                return [self._own(CLOCK, item.realtime_ns, item.mono_ns, item.uncertainty_ns)]
            case Marks():
                return [self._own(MARK, one.number, mono_ns, item.pid) for one in item.marks]
            case Loss():
                return [self._packing.missing([item.count], item.cause, mono_ns)]
            case Change():
                return [self._change(item)]
            case Trigger():
                return [{"kind": TRIGGER, "time_ns": item.told_ns, "trigger": asdict(item)}]
            case Unseen():
                return [{"kind": UNSEEN, "time_ns": item.mono_ns, "unseen": asdict(item)}]
            case Finish():
                return [{"kind": END, "time_ns": mono_ns, "reason": int(item.reason)}]
            case Check():
                return [{"kind": CHECK, "time_ns": mono_ns}]
        return ()

    def _ledger(self, account: Account, written: Written, time_ns: int) -> dict[str, Any]:
        books = account.books
        names = POINT_COUNTERS if books.shed is None else (*POINT_COUNTERS, SHED)
        points = []
        for cpu, point in books.places(written):
            counts = books.kernel(cpu, point) | books.collector(cpu, point, written)
            code = self._packing.code_of[point]
            points.append([cpu, int(code), *(counts[name] for name in names)])
        cpus = [[one.cpu, *(getattr(one, name) for name in CPU_COUNTERS)] for one in books.cpus()]
        programs = {n: [one.missed, one.kprobe_missed] for n, one in books.programs.items()}
        return {
            "kind": LEDGER, "time_ns": time_ns, "final": int(account.final),
            "checkpoint": written.checkpoints, "points": points, "cpus": cpus,
            "programs": programs,
        }  # fmt: skip

    def _change(self, change: Change) -> dict[str, Any]:
        values = asdict(change)
        if change.kind != ChangeKind.SHED:
            del values["why"]
        if change.kind in (ChangeKind.SWITCH, ChangeKind.LIMIT):
            values["which"] = int(self._packing.code_of[change.which & 0xFF])
        return {"time_ns": change.after_ns, "change": values, "kind": CHANGE}

    def _own(self, code: int, sockid: int, time_ns: int, size: int) -> MagnetBatch:
        """A record of the collector's own."""
        entries = np.zeros(1, self._packing.layout.dtype)
        entries["sockid"], entries["timestamp"] = sockid, time_ns
        entries["event"], entries["size"] = code, size
        return MagnetBatch(entries, np.full(1, -1, np.int32), 0)
