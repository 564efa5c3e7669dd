# SPDX-License-Identifier: Apache-2.0
"""A Klogger log that rotates, with records made up here: all that collect does behind the rings."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.plan.event_layout import lay_out, ring_dtype
from tcpkmon.collector.plan.schema_sources import find_sources
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.points import ACCOUNT, ROWS
from tcpkmon.collector.sequencer.clock_pairs import Clocks
from tcpkmon.collector.sequencer.cpu_queue import FOREVER_NS
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.capture_info import CaptureInfo
from tcpkmon.collector.writer.ledger import Books
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.base.changes import ChangeKind
from tcpkmon.formats.base.control import Change, EndReason, Mark, Program
from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.schema import Event
from tcpkmon.formats.schema.parser import load

WAIT_S = 60.0
CPUS = 2


class LogMaker:
    """Segments of a log of two CPUs with the event PING; close() ends it."""

    def __init__(
        self, folder: Path, rotates: bool = True, online: Sequence[int] = range(CPUS),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.online = set(online)
        conf = folder.with_suffix(".conf")
        conf.write_text("event PING { uint pid ulonglong n }")
        schema = load([*(source.conf for source in find_sources([])), conf])
        layout = lay_out(schema, [event.name for event in schema.events if event.name != "PING"])
        self.dtype = ring_dtype(layout.entry_size)
        self.number = layout.slot("PING").number
        events: list[tuple[int, Event]] = [(slot.number, slot.event) for slot in layout.slots]
        self.offset_ns = time.time_ns() - time.monotonic_ns()
        self.now_ns = time.monotonic_ns()
        self.clocks = Clocks(lambda: self.now_ns, lambda: self.now_ns + self.offset_ns)
        self.serials = np.zeros(CPUS, np.uint64)
        self.ledger = np.zeros((CPUS, max(ROWS, self.number + 1)), ACCOUNT)
        self.shed: NDArray[Any] | None = None
        self.sent = 0
        self.state = 1
        self.layout = layout
        self.rotates = rotates
        self.stream = self.open_stream()
        info = CaptureInfo(
            version="test", kernel="test", dtype=self.dtype,
            settings={"tcpkmon": "test", **(settings or {})}, cpus=CPUS, requested=1, recorded=1,
            programs=1, buffer_bytes=1 << 20, low_water_percent=75, schema=schema, events=events,
        )  # fmt: skip
        current = SimpleNamespace(
            buffer_bytes=1 << 20, low_water_percent=75,
            states=lambda: {"PING": (self.number, self.state)},
        )  # fmt: skip
        codec = "tcpkmon.collector.writer.klogger_codec"
        with (
            patch(f"{codec}.online_cpus", lambda: list(online)),
            patch(f"{codec}.process_notes", lambda: []),
        ):
            self.stream.begin(info, current, self.clocks)  # type: ignore[arg-type]
        self.stream.start()

    def open_stream(self) -> Stream:
        return Stream(STREAMS["klogger"](), self.folder, rotates=self.rotates)

    def records(self, count: int, lose: int = 0, cpus: int = CPUS) -> None:
        """Some records of each CPU, after some that found no room."""
        self.online |= set(range(cpus))
        for cpu in range(cpus) if count else ():
            first = int(self.serials[cpu]) + lose + 1
            rows = np.zeros(count, self.dtype)
            words = rows.view(np.uint8).reshape(count, -1)
            serials = np.arange(first, first + count)
            times = self.now_ns + np.arange(count) * 10 + cpu
            words[:, 0:4] = serials.astype("u4").view(np.uint8).reshape(count, 4)
            words[:, 4:12] = times.astype("u8").view(np.uint8).reshape(count, 8)
            words[:, 16:20] = np.full(count, self.number, "u4").view(np.uint8).reshape(count, 4)
            words[:, 32:40] = (
                np.arange(self.sent, self.sent + count).astype("u8").view(np.uint8).reshape(-1, 8)
            )
            self.sent += count
            self.serials[cpu] += count + lose
            self.ledger["attempts"][cpu, self.row] += count + lose
            self.ledger["written"][cpu, self.row] += count
            self.ledger["ring_full"][cpu, self.row] += lose
            self.stream.push([Batch(cpu, rows, 0)])
        self.now_ns += 10 * count + 10
        self.stream.release(FOREVER_NS)
        self.stream.settle()

    @property
    def row(self) -> int:
        from tcpkmon.collector.ring.points import row_of

        return row_of(self.number)

    def books(self) -> Books:
        order = self.stream.order
        return Books(
            self.ledger.copy(), self.serials.copy(), read=dict(order.read), late=dict(order.late),
            programs={"on_ping": Program(0, 0, 0, 0, 0)}, online=frozenset(self.online),
            shed=None if self.shed is None else self.shed.copy(),
        )  # fmt: skip

    def rotate(self) -> None:
        self.stream.rotate(self.books(), self.clocks.read(), "test")

    def switch(self, on: int) -> None:
        self.state = on
        self.now_ns += 1000
        change = Change(0, self.number, self.now_ns - 500, self.now_ns, 1 - on, on, 0)
        self.stream.switched(["PING"])
        self.stream.changed([change])

    def leave_out(self, count: int) -> None:
        """A step of the budget leaves out so many events of CPU 0."""
        if self.shed is None:
            self.shed = np.zeros(self.ledger.shape, np.uint64)
        self.shed[0, self.row] += count
        self.ledger["attempts"][0, self.row] += count

    def step(self, old: int, new: int, why: int = 0) -> None:
        """Another step of the budget is in force."""
        self.now_ns += 1000
        change = Change(ChangeKind.SHED, 0, self.now_ns - 500, self.now_ns, old, new, 0, why)
        self.stream.changed([change])

    def checkpoint(self) -> None:
        self.stream.checkpoint(self.books())

    def mark(self, number: int) -> None:
        self.stream.marks([Mark(number, "")], 7)

    def close(self, reason: EndReason | None = EndReason.ASKED) -> None:
        """End it; None: as if it was killed."""
        if reason is not None:
            mono_ns = self.now_ns + 10**6
            serials = {cpu: int(serial) for cpu, serial in enumerate(self.serials)}
            self.stream.finish(serials, mono_ns)
            self.stream.end(self.books(), self.clocks.read(), reason, mono_ns)
        assert self.stream.close(WAIT_S)
        self.stream.discard()

    @property
    def paths(self) -> list[Path]:
        return [segment.path(self.folder) for segment in find_segments(self.folder)]


def make_logs(folder: Path, segments: int = 3, count: int = 50, lose: int = 0) -> list[Path]:
    """A finished capture of so many segments; their paths."""
    maker = LogMaker(folder)
    for number in range(segments):
        if number:
            maker.rotate()
        maker.records(count, lose)
        maker.checkpoint()
    maker.close()
    return maker.paths
