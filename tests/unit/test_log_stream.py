# SPDX-License-Identifier: Apache-2.0
"""What the streams into PSC files and logs hand to their spools: all of it, once, as copies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.sequencer.buffer_pool import PIECE_BYTES, Pool
from tcpkmon.collector.sequencer.ordered import Ordered
from tcpkmon.collector.sequencer.sequencer import COPY_BYTES, FOREVER_NS, Queues, Sequencer
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.log_batch import LogBatch
from tcpkmon.collector.writer.note import Note
from tcpkmon.collector.writer.stream import STREAMS
from tcpkmon.formats.klogger import LogReader
from tests.unit.makers import CPUS, LogMaker
from tests.unit.test_drain import FULL, LOSS, check_stream, make_rows

ROWS = COPY_BYTES // FULL.itemsize


@pytest.mark.parametrize(
    ("counts", "batches"),
    [
        ((), []),
        ((1,), [1]),
        ((3, 5, 7), [3, 5, 7]),
        ((ROWS, 1), [ROWS, 1]),
        ((1, ROWS, 2), [1, ROWS, 2]),
        ((2 * ROWS,), [ROWS, ROWS]),
    ],
)
def test_batches(counts: tuple[int, ...], batches: list[int]) -> None:
    queues = Queues(FULL)
    memory = []
    for cpu, count in enumerate(counts):
        serials = np.arange(1, count + 1)
        memory.append(make_rows(FULL, cpu, serials, serials))
        queues.push(Batch(cpu, memory[-1], 0))
    made = [LogBatch(*copy) for copy in queues.copies(FOREVER_NS, Pool())]
    for rows in memory:
        rows.view(np.uint8)[:] = 0xDD
    assert [len(batch) for batch in made] == batches
    found: dict[int, list[int]] = {cpu: [] for cpu in range(len(counts))}
    for batch in made:
        assert batch.rows.flags.c_contiguous
        found[batch.cpu] += batch.rows.view(FULL)["serial"].tolist()
    assert found == {cpu: list(range(1, count + 1)) for cpu, count in enumerate(counts)}


@pytest.mark.parametrize("rotates", [False, True])
def test_every_dump_but_the_first_says_when_the_one_before_was_written(
    tmp_path: Path, rotates: bool
) -> None:
    """The last one has no records: so of all that have some the log says when they were written."""
    maker = LogMaker(tmp_path / "log", rotates)
    for _ in range(3):
        maker.records(5)
    maker.close()
    files = [path for path in (tmp_path / "log").rglob("kernlog.dump.cpu*") if path.is_file()]
    assert len(files) == CPUS
    for path in files:
        with LogReader(path) as log:
            begins = np.concatenate([batch.rows("DUMP_BEGIN") for batch in log.batches()])
            last = [batch for batch in log.batches() if batch.dump == begins["index"][-1]]
            assert not any(len(batch.where("PING")) for batch in last)
        assert list(begins["index"]) == list(range(len(begins))) and len(begins) >= 3
        assert (begins["wrote_from"][1:] > 0).all(), begins
        assert (begins["wrote_until"] >= begins["wrote_from"]).all()


PSC_ROWS = PIECE_BYTES // FULL.itemsize


def make_stream(folder: Path) -> tuple[Stream, list[Ordered]]:
    put: list[Ordered] = []
    stream = Stream(STREAMS["psc"](), folder / "a.pm")
    stream._show = None
    stream.codec.order = Sequencer(FULL, lambda: 10**18, first_seq=2)
    stream._spool = SimpleNamespace(put=put.append, flush=lambda: None)  # type: ignore[assignment]
    return stream, put


def test_a_large_release_comes_in_pieces(tmp_path: Path) -> None:
    stream, put = make_stream(tmp_path)
    serials = np.arange(1, 3 * PSC_ROWS)
    rows = make_rows(FULL, 0, serials, serials)
    stream.push([Batch(0, rows[: 2 * PSC_ROWS], 0), Batch(0, rows[2 * PSC_ROWS :], 0)])
    stream.release(int(serials[-10]))
    stream.settle()
    rows.view(np.uint8)[:] = 0xDD
    assert stream.records == len(serials) - 9
    assert len(put) == 3
    assert max(piece.nbytes for piece in put) <= PIECE_BYTES
    stream.finish({0: 3 * PSC_ROWS + 1, 1: 5}, 10**9)
    found = check_stream(put, FULL, first_seq=2)
    assert found["serial"][found["location"] != LOSS].tolist() == serials.tolist()
    assert found[found["location"] == LOSS]["callvalue"].tolist() == [0, 1]
    assert stream.records == len(serials)
    assert stream.order.lost == 2 + 5


def test_sockets_that_a_format_cannot_hold_are_not_listed() -> None:
    def listed() -> list[Note]:
        raise AssertionError("a million sockets take seconds")

    assert not STREAMS["psc"]().existing(listed)
