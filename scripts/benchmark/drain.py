# SPDX-License-Identifier: Apache-2.0
"""What a record costs on its way from the ring to the file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.experiments.capture import capturing
from scripts.experiments.context import Context, cpus
from scripts.experiments.load import BenchError
from tcpkmon.collector.linux.privileges import raise_limits
from tcpkmon.collector.loader.prepare import prepare
from tcpkmon.collector.plan.filters import Filters, parse
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.ring.rings import DEFAULT_TRANSPORT
from tcpkmon.collector.sequencer.clock_pairs import Clocks
from tcpkmon.collector.sequencer.sequencer import Sequencer
from tcpkmon.collector.writer.codec import ALL, File
from tcpkmon.collector.writer.file_sink import FileSink
from tcpkmon.collector.writer.psc_codec import PscCodec
from tcpkmon.collector.writer.writer import Writer

NAME = "drain"
TITLE = "From the ring to the file"
COLUMNS = ("classic", "default", "all")
STEPS = ("order", "write")
RING_BYTES = 128 << 20
PIECE_BYTES = 1 << 20
"""What a wake-up finds in a ring of 4 MiB at the default low-water mark."""


def measure(context: Context) -> None:
    """Records real rings once, then replays them."""
    raise_limits()
    recorded = {columns: record(context, columns) for columns in COLUMNS}
    for _ in context.each_round(NAME):
        for columns, (dtype, raw) in recorded.items():
            for step, seconds in replay(dtype, raw, context.folder / "replayed").items():
                per_record = seconds / (len(raw) // DEFAULT_TRANSPORT.row_bytes(dtype.itemsize))
                context.results.add(NAME, f"drain, {step}", columns, 1e9 * per_record)
            (context.folder / "replayed").unlink()


def record(context: Context, columns: str) -> tuple[np.dtype[Any], NDArray[np.uint8]]:
    """The rows of the fullest ring after a flood, as bytes."""
    seconds = context.pick(0.3, 0.1)
    wanted = Request(
        Filters(), "-", columns=columns, locations="RECEIVE_CALL", existing=False
    )
    prepared = prepare(wanted)
    with context.lab() as (_, load), capturing(prepared, parse(), RING_BYTES) as (kernel, rings):
        load.pin(cpus()[1], cpus()[1])
        load.run(f"receive {seconds} 0")
        kernel.loaded.detach()
        entries = max((batch.entries for batch in rings.drain()), key=len)
        if not len(entries):
            raise BenchError("the flood left nothing in the rings")
        row = DEFAULT_TRANSPORT.row_bytes(prepared.dtype.itemsize)
        rows = np.zeros((len(entries), row), np.uint8)
        whole = np.ascontiguousarray(entries).view(np.uint8)
        rows[:, : prepared.dtype.itemsize] = whole.reshape(len(entries), -1)
    return prepared.dtype, rows.reshape(-1)


def replay(dtype: np.dtype[Any], raw: NDArray[np.uint8], path: Path) -> dict[str, float]:
    """CPU seconds by step; `order` includes the copy out of the ring."""
    clocks = Clocks()
    sequencer = Sequencer(dtype, clocks.to_epoch)
    codec = PscCodec()
    codec.encode(dtype, clocks.to_epoch)
    writer = Writer(codec)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    writer.files[ALL] = File(ALL, FileSink(fd, dtype.itemsize))
    spent = dict.fromkeys(STEPS, 0.0)
    row = DEFAULT_TRANSPORT.row_bytes(dtype.itemsize)
    for start in range(0, len(raw), PIECE_BYTES // row * row):
        piece = raw[start : start + PIECE_BYTES // row * row]
        entries: NDArray[Any] = np.ndarray((len(piece) // row,), dtype, piece.data, 0, (row,))
        times = [time.process_time()]
        sequencer.push(Batch(0, entries, 0))
        ordered = list(sequencer.pieces(time.monotonic_ns()))
        sequencer.settle()
        times.append(time.process_time())
        writer.write(*ordered)
        times.append(time.process_time())
        for name, begin, end in zip(STEPS, times, times[1:], strict=False):
            spent[name] += end - begin
    writer.close()
    return spent
