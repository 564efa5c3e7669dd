# SPDX-License-Identifier: Apache-2.0
"""What the stream into a PSC file hands to its spool: all of it, once, nothing of the rings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.sequencer.buffer_pool import PIECE_BYTES
from tcpkmon.collector.sequencer.ordered import Ordered
from tcpkmon.collector.sequencer.sequencer import Sequencer
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.note import Note
from tcpkmon.collector.writer.stream import STREAMS
from tests.unit.test_sequencer import FULL, LOSS, check_stream, make_rows

ROWS = PIECE_BYTES // FULL.itemsize


def make_stream(folder: Path) -> tuple[Stream, list[Ordered]]:
    put: list[Ordered] = []
    stream = Stream(STREAMS["psc"](), folder / "a.pm")
    stream._show = None
    stream.codec.order = Sequencer(FULL, lambda: 10**18, first_seq=2)
    stream._spool = SimpleNamespace(put=put.append, flush=lambda: None)  # type: ignore[assignment]
    return stream, put


def test_a_large_release_comes_in_pieces(tmp_path: Path) -> None:
    stream, put = make_stream(tmp_path)
    serials = np.arange(1, 3 * ROWS)
    rows = make_rows(FULL, 0, serials, serials)
    stream.push([Batch(0, rows[: 2 * ROWS], 0), Batch(0, rows[2 * ROWS :], 0)])
    stream.release(int(serials[-10]))
    stream.settle()
    rows.view(np.uint8)[:] = 0xDD
    assert stream.records == len(serials) - 9
    assert len(put) == 3
    assert max(piece.nbytes for piece in put) <= PIECE_BYTES
    stream.finish({0: 3 * ROWS + 1, 1: 5}, 10**9)
    found = check_stream(put, FULL, first_seq=2)
    assert found["serial"][found["location"] != LOSS].tolist() == serials.tolist()
    assert found[found["location"] == LOSS]["callvalue"].tolist() == [0, 1]
    assert stream.records == len(serials)
    assert stream.order.lost == 2 + 5


def test_sockets_that_a_format_cannot_hold_are_not_listed() -> None:
    def listed() -> list[Note]:
        raise AssertionError("a million sockets take seconds")

    assert not STREAMS["psc"]().existing(listed)
