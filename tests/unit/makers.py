# SPDX-License-Identifier: Apache-2.0
"""A capture that rotates, with records made up here: all that collect does behind the rings."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.plan.columns import choose_columns, load_schema, make_layout
from tcpkmon.collector.plan.event_layout import lay_out, ring_dtype
from tcpkmon.collector.plan.schema_sources import find_sources
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.points import ACCOUNT, ROWS, row_of
from tcpkmon.collector.sequencer.clock_pairs import Clocks
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
LOCATION = 1
CPUS = 2


class Maker:
    """Segments of a PSC capture of two CPUs; close() ends it."""

    form = "psc"
    chosen = "default"
    schema_text = ""
    row = LOCATION
    """Where the ledger counts the records."""
    programs: Mapping[str, Program] = {}
    switches: Mapping[str, tuple[int, int]] = {}

    def __init__(
        self, folder: Path, rotates: bool = True, online: Sequence[int] = range(CPUS),
        settings: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.rotates, self.online = folder, rotates, set(online)
        self.offset_ns = time.time_ns() - time.monotonic_ns()
        self.now_ns = time.monotonic_ns()
        """The stream's clock: CLOCK_MONOTONIC."""
        self.clocks = Clocks(lambda: self.now_ns, lambda: self.now_ns + self.offset_ns)
        self.columns: dict[str, Any] = {}
        """More columns of the records of CPU 0."""
        described = self.describe()
        self.ledger = np.zeros((CPUS, max(ROWS, self.row + 1)), ACCOUNT)
        self.serials = np.zeros(CPUS, np.uint64)
        self.shed: NDArray[Any] | None = None
        self.stream = self.open_stream()
        self.info = CaptureInfo(
            version="test", kernel="test", settings={"tcpkmon": "test", **(settings or {})},
            dtype=self.dtype, cpus=CPUS, requested=2, recorded=2, programs=1,
            buffer_bytes=1 << 20, low_water_percent=75, **described,
        )  # fmt: skip
        self.current: Any = SimpleNamespace(
            buffer_bytes=1 << 20, low_water_percent=75, states=lambda: self.switches
        )
        codec = "tcpkmon.collector.writer.klogger_codec"
        with (
            patch(f"{codec}.online_cpus", lambda: list(online)),
            patch(f"{codec}.process_notes", lambda: []),
        ):
            self.stream.begin(self.info, self.current, self.clocks)
        self.stream.start()

    def describe(self) -> dict[str, Any]:
        """What the capture's information has of this format; sets dtype."""
        schema = load_schema()
        layout = make_layout(schema, choose_columns(schema.event("SNAPSHOT"), self.chosen), ())
        self.dtype = layout.dtype
        return {"columns": layout.columns, "entry_size": layout.entry_size, "page_bytes": 4096,
                "schema_text": self.schema_text}  # fmt: skip

    def open_stream(self) -> Stream:
        return Stream(STREAMS[self.form](), self.folder, rotates=self.rotates)

    def records(self, count: int, lose: int = 0, keep: int = 0, cpus: int = CPUS) -> None:
        """Some records of each CPU, after some that found no room. keep: this many wait on."""
        self.online |= set(range(cpus))
        times = self.now_ns + np.arange(count) * 10
        for cpu in range(cpus) if count else ():
            rows = np.zeros(count, self.dtype)
            words = rows.view(np.uint8).reshape(count, -1)
            serials = np.arange(1, count + 1) + int(self.serials[cpu]) + lose
            words[:, 0:4] = serials.astype("u4").view(np.uint8).reshape(count, 4)
            words[:, 4:12] = times.astype("u8").view(np.uint8).reshape(count, 8)
            points = self.fill(cpu, rows, serials, times)
            self.serials[cpu] += count + lose
            for name in ("attempts", "written"):
                np.add.at(self.ledger[name][cpu], points, 1)
            self.ledger["attempts"][cpu, self.row] += lose
            self.ledger["ring_full"][cpu, self.row] += lose
            self.stream.push([Batch(cpu, rows, 0)])
        self.stream.release(self.now_ns + 10 * (count - keep) - 1)
        self.now_ns += 10 * count + 10
        self.stream.settle()

    def fill(self, cpu: int, rows: Any, serials: Any, times: Any) -> Any:
        """The fields of a CPU's records; where the ledger counts each."""
        rows["location"], rows["lport"], rows["rport"] = LOCATION, 1, 2
        own: dict[str, Any] = {"cpu": cpu, "serial": serials, "time_ns": times}
        for name, values in (own | (self.columns if not cpu else {})).items():
            if name not in own or name in rows.dtype.names:  # not so if classic
                rows[name] = values
        return rows["location"]

    def books(self) -> Books:
        order = self.stream.order
        return Books(
            self.ledger.copy(), self.serials.copy(), read=dict(order.read), late=dict(order.late),
            killed=dict(order.killed), programs=self.programs, online=frozenset(self.online),
            shed=None if self.shed is None else self.shed.copy(),
        )  # fmt: skip

    def rotate(self) -> None:
        self.stream.rotate(self.books(), self.clocks.read(), "test")

    def checkpoint(self) -> None:
        self.stream.checkpoint(self.books())

    def mark(self, number: int) -> None:
        self.stream.marks([Mark(number, "")], 7)

    def switch(self, on: int) -> None:
        """The records are switched on or off."""
        self.now_ns += 1000
        times = self.now_ns - 500, self.now_ns
        self.stream.changed([Change(0, self.row, *times, 1 - on, on, 0)])

    def step(self, old: int, new: int, why: int = 0) -> None:
        """Another step of the budget is in force."""
        self.now_ns += 1000
        change = Change(ChangeKind.SHED, 0, self.now_ns - 500, self.now_ns, old, new, 0, why)
        self.stream.changed([change])

    def leave_out(self, count: int) -> None:
        """A step of the budget leaves out so many events of CPU 0."""
        if self.shed is None:
            self.shed = np.zeros(self.ledger.shape, np.uint64)
        self.shed[0, self.row] += count
        self.ledger["attempts"][0, self.row] += count

    def close(self, reason: EndReason | None = EndReason.ASKED) -> None:
        """End it; None: as if it was killed."""
        if reason is not None:
            mono_ns = self.now_ns + 10**6
            serials = {cpu: int(serial) for cpu, serial in enumerate(self.serials) if serial}
            self.stream.finish(serials, mono_ns)
            self.stream.end(self.books(), self.clocks.read(), reason, mono_ns)
        assert self.stream.close(WAIT_S)
        self.stream.discard()

    @property
    def paths(self) -> list[Path]:
        return [segment.path(self.folder) for segment in find_segments(self.folder)]


class LogMaker(Maker):
    """Segments of a log of two CPUs with the event PING, whose n counts on."""

    form = "klogger"
    programs: Mapping[str, Program] = {"on_ping": Program(0, 0, 0, 0, 0)}
    sent = 0

    def describe(self) -> dict[str, Any]:
        conf = self.folder.with_suffix(".conf")
        conf.write_text("event PING { uint pid ulonglong n }")
        schema = load([*(source.conf for source in find_sources([])), conf])
        self.layout = lay_out(
            schema, [event.name for event in schema.events if event.name != "PING"]
        )
        self.dtype = ring_dtype(self.layout.entry_size)
        self.number = self.layout.slot("PING").number
        self.row = row_of(self.number)
        self.switches = {"PING": (self.number, 1)}
        events: list[tuple[int, Event]] = [(one.number, one.event) for one in self.layout.slots]
        return {"schema": schema, "events": events}

    def fill(self, cpu: int, rows: Any, serials: Any, times: Any) -> Any:
        count = len(rows)
        words = rows.view(np.uint8).reshape(count, -1)
        words[:, 16:20] = np.full(count, self.number, "u4").view(np.uint8).reshape(count, 4)
        numbers = np.arange(self.sent, self.sent + count).astype("u8")
        words[:, 32:40] = numbers.view(np.uint8).reshape(count, 8)
        self.sent += count
        return np.full(count, self.row)

    def switch(self, on: int) -> None:
        self.switches = {"PING": (self.number, on)}
        self.stream.switched(["PING"])
        super().switch(on)


def make(
    folder: Path, segments: int = 4, count: int = 50, lose: int = 0, kind: type[Maker] = Maker
) -> list[Path]:
    """A finished capture of so many segments; their paths."""
    maker = kind(folder)
    for number in range(segments):
        if number:
            maker.rotate()
        maker.records(count, lose)
        maker.checkpoint()
    maker.close()
    return maker.paths


def make_logs(folder: Path, segments: int = 3, count: int = 50, lose: int = 0) -> list[Path]:
    return make(folder, segments, count, lose, LogMaker)


def index_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
