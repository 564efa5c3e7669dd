# SPDX-License-Identifier: Apache-2.0
"""A capture that rotates, with records made up here: all that collect does behind the rings."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.collector.plan.columns import choose_columns, load_schema, make_layout
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.points import ACCOUNT, ROWS
from tcpkmon.collector.sequencer.clock_pairs import Clocks
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.capture_info import CaptureInfo
from tcpkmon.collector.writer.ledger import Books
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.base.control import EndReason
from tcpkmon.formats.base.segments import find_segments

WAIT_S = 60.0
LOCATION = 1
CPUS = 2


class Maker:
    """Segments of a PSC capture; close() ends it."""

    form = "psc"
    chosen = "default"
    schema_text = ""

    def __init__(self, folder: Path, rotates: bool = True) -> None:
        self.folder = folder
        schema = load_schema()
        layout = make_layout(schema, choose_columns(schema.event("SNAPSHOT"), self.chosen), ())
        self.dtype = layout.dtype
        self.offset_ns = time.time_ns() - time.monotonic_ns()
        self.clock_ns = time.monotonic_ns()
        """The stream's clock: CLOCK_MONOTONIC."""
        self.clocks = Clocks(lambda: self.clock_ns, lambda: self.clock_ns + self.offset_ns)
        self.time_ns = self.clocks.start.mono_ns
        self.columns: dict[str, Any] = {}
        """More columns of the records of CPU 0."""
        self.rotates = rotates
        self.ledger = np.zeros((CPUS, ROWS), ACCOUNT)
        self.serials = np.zeros(CPUS, np.uint64)
        self.stream = self.open_stream()
        info = CaptureInfo(
            version="test", kernel="test", settings={"tcpkmon": "test"}, dtype=self.dtype,
            cpus=CPUS, requested=2, recorded=2, programs=1, buffer_bytes=1 << 20,
            low_water_percent=75, columns=layout.columns, entry_size=layout.entry_size,
            page_bytes=4096, schema_text=self.schema_text,
        )  # fmt: skip
        self.stream.begin(info, None, self.clocks)  # type: ignore[arg-type]
        self.stream.start()

    def open_stream(self) -> Stream:
        return Stream(STREAMS[self.form](), self.folder, rotates=self.rotates)

    def records(self, count: int, lose: int = 0, keep: int = 0) -> None:
        """Some records of each CPU; the kernel loses some before them. keep: this many wait on."""
        batches = []
        until = 2**62
        for cpu in range(CPUS):
            first = int(self.serials[cpu]) + lose + 1
            serials = np.arange(first, first + count)
            rows = np.zeros(count, self.dtype)
            times = self.time_ns + serials * 100
            rows["seq_no"] = serials
            rows.view(np.uint8).reshape(count, -1)[:, 4:12] = (
                times.astype(np.uint64).view(np.uint8).reshape(count, 8)
            )
            rows["location"], rows["lport"], rows["rport"] = LOCATION, 1, 2
            own: dict[str, Any] = {"cpu": cpu, "serial": serials, "time_ns": times}
            for name, values in (own | (self.columns if not cpu else {})).items():
                if name in own and name not in (self.dtype.names or ()):
                    continue  # classic
                rows[name] = values
            batches.append(Batch(cpu, rows, 0))
            until = min(until, int(times[-1]) - keep * 100)
            self.serials[cpu] += count + lose
            for location in rows["location"].tolist():
                self.ledger["attempts"][cpu, location] += 1
                self.ledger["written"][cpu, location] += 1
            self.ledger["attempts"][cpu, LOCATION] += lose
            self.ledger["ring_full"][cpu, LOCATION] += lose
        self.stream.push(batches)
        self.stream.release(until)
        self.stream.settle()

    def books(self) -> Books:
        order = self.stream.order
        return Books(
            self.ledger.copy(), self.serials.copy(), read=dict(order.read),
            late=dict(order.late), killed=dict(order.killed), online=frozenset(range(CPUS)),
        )  # fmt: skip

    def rotate(self) -> None:
        self.stream.rotate(self.books(), self.clocks.read(), "test")

    def checkpoint(self) -> None:
        self.stream.checkpoint(self.books())

    def close(self, reason: EndReason = EndReason.ASKED) -> None:
        mono_ns = self.time_ns + 10**9
        serials = {cpu: int(serial) for cpu, serial in enumerate(self.serials) if serial}
        self.stream.finish(serials, mono_ns)
        self.stream.end(self.books(), self.clocks.read(), reason, mono_ns)
        assert self.stream.close(WAIT_S)
        self.stream.discard()

    @property
    def paths(self) -> list[Path]:
        return [segment.path(self.folder) for segment in find_segments(self.folder)]


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


def index_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
